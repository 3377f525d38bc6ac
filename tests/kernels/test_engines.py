"""Engines by name; a suite that any registered engine passes; what the tiled engine visits and allocates."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from attention_compare import assert_all_near, random_inputs
from attention_masks import MASKS
from torch.utils._python_dispatch import TorchDispatchMode

from fm3_core import BlockMap, UnknownNameError, UnsupportedError, patterns
from fm3_core.blocks import EMPTY
from fm3_kernels import (
    TiledEngine,
    attention,
    attention_backward,
    attention_forward,
    engines,
    why_unsupported,
)

X = random_inputs(MASKS["causal_document"])


def able() -> list[str]:
    """Return the registered engines that serve a call on this machine's CPU."""
    return [name for name in engines.names() if not why_unsupported(X.q, X.k, X.v, X.mask, engine=name)]


def test_the_engines_are_listed() -> None:
    assert engines.names() == ["hopper", "reference", "tiled"]


@pytest.mark.parametrize("name", able())
@pytest.mark.parametrize("mask", ["causal_document", "causal, more rows", "random_eviction"])
def test_every_able_engine_keeps_the_contract(name: str, mask: str) -> None:
    assert_all_near(random_inputs(MASKS[mask], batch=2, query_heads=4, kv_heads=2, value_dim=8), name)


def test_hopper_says_every_reason_against_a_call() -> None:
    reasons = why_unsupported(X.q, X.k, X.v, X.mask, engine="hopper")
    assert [reason for reason in reasons if "was not built here" not in reason] == [
        "engine 'hopper': the tensors are on cpu, it needs a CUDA device of compute capability 9.0",
        "engine 'hopper': the tensors are torch.float32, it takes torch.float16 and torch.bfloat16",
        "engine 'hopper': the head dim is 16, it takes 64 and 128",
    ]
    for operation in (attention, attention_forward):
        with pytest.raises(UnsupportedError) as error:
            operation(X.q, X.k, X.v, X.mask, engine="hopper")
        assert list(error.value.reasons) == reasons


def test_hopper_says_that_its_extension_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fm3_kernels.hopper.load_extension", lambda: None)
    reasons = why_unsupported(X.q, X.k, X.v, X.mask, engine="hopper")
    assert reasons[0].startswith(
        "engine 'hopper': fm3_kernels._C was not built here: the install found no nvcc"
    )


def test_auto_is_the_tiled_engine_here() -> None:
    mine = attention(X.q, X.k, X.v, X.mask)
    assert torch.equal(mine, attention(X.q, X.k, X.v, X.mask, engine="tiled"))
    assert why_unsupported(X.q, X.k, X.v, X.mask) == []


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="unknown engine 'fast'; known: hopper, reference, tiled"):
        attention(X.q, X.k, X.v, X.mask, engine="fast")


class Doubled(TiledEngine):
    """An engine that a user brings: twice the output, and a limit of its own."""

    def why_unsupported(self, q, k, v, mask, *, deterministic):  # type: ignore[no-untyped-def]
        """Refuse deterministic calls."""
        return ["it is not deterministic"] if deterministic else []

    def forward(self, *args, **options):  # type: ignore[no-untyped-def]
        """Double the output."""
        out, lse = super().forward(*args, **options)
        return 2 * out, lse


@pytest.fixture
def doubled() -> Iterator[str]:
    engines.register("doubled", Doubled())
    yield "doubled"
    engines.unregister("doubled")


def test_a_registered_engine_is_used_by_name(doubled: str) -> None:
    mine = attention(X.q, X.k, X.v, X.mask, engine=doubled)
    assert torch.equal(mine, 2 * attention(X.q, X.k, X.v, X.mask))
    with pytest.raises(UnsupportedError, match="engine 'doubled': it is not deterministic"):
        attention(X.q, X.k, X.v, X.mask, engine=doubled, deterministic=True)


def test_an_engine_object_needs_no_name() -> None:
    assert torch.equal(
        attention(X.q, X.k, X.v, X.mask, engine=Doubled()), 2 * attention(X.q, X.k, X.v, X.mask)
    )


class Watch(TorchDispatchMode):
    """Records the largest tensor that an operation returns and the multiplications of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.multiplications = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.largest = max(self.largest, result.numel())
            if "bmm" in func.__name__:
                self.multiplications += result.numel() * args[-2].shape[-1]
        return result


def watched(mask: object, engine: TiledEngine) -> Watch:
    """Return what a forward and a backward of one head of dim 8 did."""
    x = random_inputs(mask, query_heads=1, kv_heads=1, dim=8, value_dim=8)
    with Watch() as watch:
        out, lse = attention_forward(x.q, x.k, x.v, mask, engine=engine)
        attention_backward(x.dout, x.q, x.k, x.v, out, lse, mask, engine=engine)
    return watch


@pytest.mark.parametrize("name", ["causal_document", "sliding_window", "share_question", "causal, more rows"])
def test_exactly_the_blocks_that_are_not_empty_are_multiplied(name: str) -> None:
    engine = TiledEngine(block_rows=16, block_keys=16, run_keys=64)
    mask = MASKS[name]
    kinds = BlockMap.from_mask(mask, 16, 16, method="extrema").kinds[0, 0]
    pairs = sum(
        min(16, mask.num_rows - 16 * row) * min(16, mask.num_keys - 16 * key)
        for row, key in zip(*(kinds != EMPTY).nonzero(), strict=True)
    )
    assert watched(mask, engine).multiplications == 7 * 8 * pairs


@pytest.mark.parametrize("tokens", [2048, 8192])
def test_no_tensor_grows_with_rows_times_keys(tokens: int) -> None:
    engine = TiledEngine(block_rows=64, block_keys=64, run_keys=128)
    assert watched(patterns.sliding_window(tokens, 100), engine).largest <= max(64 * 128, 8 * tokens)


def test_importing_the_package_needs_no_compiled_extension() -> None:
    code = "import sys; sys.modules['fm3_kernels._C'] = None; import fm3_kernels"
    subprocess.run([sys.executable, "-c", code], check=True)
