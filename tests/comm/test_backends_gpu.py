"""Tensors of a GPU travel through every backend and come back to their device."""

from __future__ import annotations

import pytest
import torch

from fm3_comm import backends

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, this machine has none"),
]


@pytest.mark.parametrize("name", backends.names())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_keys_and_gradients_of_a_gpu_arrive_there(make_case, name, dtype):
    case = make_case(3, 26, 4, density=0.6, dtype=dtype)

    def work(handle):
        k, v = (tensor.cuda() for tensor in case.local(handle.rank))
        gathered = handle.start_gather(case.exchange, k, v).wait()
        partials = (partial.cuda() for partial in case.partials(handle.rank))
        return *gathered, *handle.start_reduce(case.exchange, *partials).wait()

    def work_on_the_cpu(handle):
        gathered = handle.start_gather(case.exchange, *case.local(handle.rank)).wait()
        return *gathered, *handle.start_reduce(case.exchange, *case.partials(handle.rank)).wait()

    kind = backends.get(name)
    on_gpu, on_cpu = (kind.run(3, fn, timeout_seconds=60) for fn in (work, work_on_the_cpu))
    for rank in range(3):
        assert all(tensor.is_cuda for tensor in on_gpu[rank])
        assert all(torch.equal(a.cpu(), b) for a, b in zip(on_gpu[rank], on_cpu[rank], strict=True))
