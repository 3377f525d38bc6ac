"""Tensors of a GPU travel through every backend and come back to their device."""

from __future__ import annotations

import pytest
import torch
from rank_kinds import ranks_are_threads, runner

from fm3_comm import backends

# torch.cuda.is_available starts the driver, which ranks that fork from this process would lose.
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a CUDA device, this machine has none"),
]


@pytest.fixture(params=backends.names())
def run(request):
    """Run P ranks of one backend kind."""
    kind = backends.get(request.param)
    reason = kind.why_unavailable()
    if reason is not None:
        pytest.skip(reason)
    if not ranks_are_threads(request.param):
        request.getfixturevalue("ranks_share_gpus")
    return runner(kind, request.param, 60.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_keys_and_gradients_of_a_gpu_arrive_there(make_case, run, dtype):
    case = make_case(3, 26, 4, density=0.6, dtype=dtype)

    def exchanged(handle, device):
        local = (tensor.to(device) for tensor in case.local(handle.rank))
        gathered = handle.start_gather(case.exchange, *local).wait()
        partials = (partial.to(device) for partial in case.partials(handle.rank))
        return *gathered, *handle.start_reduce(case.exchange, *partials).wait()

    def work(handle):
        on_gpu, on_cpu = (exchanged(handle, device) for device in ("cuda", "cpu"))
        return [(a.is_cuda, torch.equal(a.cpu(), b)) for a, b in zip(on_gpu, on_cpu, strict=True)]

    assert run(3, work) == [[(True, True)] * 4] * 3
