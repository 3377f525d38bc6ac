"""Inputs on which systems of this kind have failed, and neighbours of them; the oracle is right."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_compare import (
    RESULTS,
    Inputs,
    assert_all_near,
    random_inputs,
    run_engine,
    same_bits,
)
from attention_masks import MASKS

from fm3_core import ColumnMask, patterns
from fm3_kernels import TiledEngine, attention

LARGE = TiledEngine(block_rows=128, block_keys=128, run_keys=256)
ENGINES = ["tiled", LARGE]


def columns(*spans: tuple[int, int, int, int], rows: int, keys: int) -> ColumnMask:
    """Return a mask whose columns repeat the given (lts, lte, uts, ute)."""
    vectors = np.resize(np.array(spans), (keys, 4)).T[:, None, None]
    return ColumnMask(*vectors, num_rows=rows)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("rows", [129, 130, 131, 256, 257])
def test_a_tail_row_block_is_empty_only_within_the_rows_there_are(rows: int, engine: object) -> None:
    mask = columns((128, min(rows, 130), 0, 0), rows=rows, keys=130)
    assert_all_near(random_inputs(mask, dim=8, value_dim=8), engine)


@pytest.mark.parametrize("keys", [127, 128, 129])
def test_what_lies_behind_the_vectors_in_memory_does_not_matter(keys: int) -> None:
    mask = columns((5, 40, 60, 90), rows=100, keys=keys)
    inputs = random_inputs(mask)
    behind = torch.full((1, 400, 2, 16), torch.nan)
    behind[:, :keys] = inputs.k
    in_front_of_nan = Inputs(**{**vars(inputs), "k": behind[:, :keys]})
    mine, theirs = run_engine(inputs, LARGE), run_engine(in_front_of_nan, LARGE)
    assert [name for name in RESULTS if not same_bits(mine[name], theirs[name])] == []


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("dim", [8, 64, 96])
@pytest.mark.parametrize(
    "spans",
    [
        ((291, 512, 0, 313), (147, 512, 0, 402)),
        ((178, 399, 67, 242), (0, 0, 0, 0)),
        ((178, 399, 67, 178), (399, 399, 67, 399)),
    ],
)
def test_overlapping_and_touching_spans(spans: tuple, dim: int, engine: object) -> None:
    mask = columns(*spans, rows=512, keys=200)
    assert_all_near(random_inputs(mask, dim=dim, value_dim=dim), engine)


@pytest.mark.parametrize("hidden", [(0, 14), (297, 300), (0, 300), (128, 256)])
def test_hidden_stretches_of_rows(hidden: tuple[int, int]) -> None:
    mask = columns((*hidden, 0, 0), (0, 0, *hidden), rows=300, keys=150)
    assert_all_near(random_inputs(mask), LARGE)


@pytest.mark.parametrize(("rows", "keys"), [(300, 100), (100, 300), (1, 300), (300, 1)])
def test_causal_masks_of_other_shapes_are_bottom_right_aligned(rows: int, keys: int) -> None:
    inputs = random_inputs(patterns.causal(rows, keys))
    assert_all_near(inputs, "tiled")
    blind = max(0, rows - keys)
    results = run_engine(inputs, "tiled")
    assert torch.isneginf(results["lse"][:, :, :blind]).all()
    assert torch.isfinite(results["lse"][:, :, blind:]).all()


def test_a_key_block_that_only_the_last_row_block_sees() -> None:
    rows, keys = 1023, 512
    hidden_until = np.where(np.arange(keys) < 128, 1000, 0)[None, None]
    nothing = np.zeros_like(hidden_until)
    mask = ColumnMask(nothing, nothing, nothing, hidden_until, num_rows=rows)
    assert_all_near(random_inputs(mask), LARGE)


@pytest.mark.parametrize("lengths", [[0, 1, 3, 7], [512, 513], [1, 0, 0, 1], [257]])
@pytest.mark.parametrize("pattern", [patterns.causal_document, patterns.document])
def test_documents_of_any_length(pattern: object, lengths: list[int]) -> None:
    assert_all_near(random_inputs(pattern(lengths), dim=8, value_dim=8), LARGE)


def test_document_and_window() -> None:
    mask = patterns.document([70, 130, 1]) & patterns.sliding_window(201, 9, 4)
    assert_all_near(random_inputs(mask), LARGE)


def test_window_of_two_over_eight_tokens() -> None:
    assert_all_near(random_inputs(patterns.sliding_window(8, 1)), "tiled")


def test_eight_different_masks_for_eight_query_heads_over_two_kv_heads() -> None:
    mask = patterns.random_eviction(150, 40, heads=8, seed=3)
    inputs = random_inputs(mask, batch=2, query_heads=8, kv_heads=2)
    assert_all_near(inputs, LARGE)


def test_query_heads_use_the_kv_head_of_their_group() -> None:
    inputs = random_inputs(patterns.causal(100), query_heads=6, kv_heads=2)
    inputs.v[:, :, 1] = 0.0
    out = attention(inputs.q, inputs.k, inputs.v, inputs.mask)
    assert out[:, :, 3:].count_nonzero() == 0
    assert out[:, :, :3].count_nonzero() == out[:, :, :3].numel()


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: x.repeat_interleave(2, dim=2)[:, :, ::2],
        lambda x: x.repeat_interleave(2, dim=3)[..., ::2],
        lambda x: x.repeat_interleave(3, dim=1)[:, ::3],
        lambda x: torch.cat([x, x, x], dim=3)[..., 16:32],
    ],
    ids=["heads first", "every second head", "every second dim", "every third row", "packed"],
)
@pytest.mark.parametrize("engine", ["tiled", "reference"])
def test_strided_views_equal_contiguous_tensors(view: object, engine: str) -> None:
    inputs = random_inputs(MASKS["causal_document"], batch=2, query_heads=4, kv_heads=2)
    tensors = {name: view(getattr(inputs, name)) for name in ("q", "k", "v", "dout")}
    assert not any(tensor.is_contiguous() for tensor in tensors.values())
    strided = Inputs(**tensors, dlse=inputs.dlse, mask=inputs.mask)
    mine, theirs = run_engine(inputs, engine), run_engine(strided, engine)
    for name in RESULTS:
        torch.testing.assert_close(mine[name], theirs[name], rtol=2e-6, atol=2e-6)


def test_expanded_inputs_are_read_as_they_are() -> None:
    inputs = random_inputs(patterns.causal(50), query_heads=4, kv_heads=1)
    expanded = Inputs(
        **{**vars(inputs), "k": inputs.k.expand(1, 50, 4, 16), "v": inputs.v.expand(1, 50, 4, 16)}
    )
    out = run_engine(inputs, "tiled")["out"]
    torch.testing.assert_close(run_engine(expanded, "tiled")["out"], out, rtol=2e-6, atol=2e-6)


def test_twenty_backward_passes_give_the_same_bits() -> None:
    mask = patterns.causal_document([200, 312])
    inputs = random_inputs(mask, query_heads=8, kv_heads=1)
    first = run_engine(inputs, "tiled")
    for _ in range(20):
        again = run_engine(inputs, "tiled")
        assert [name for name in RESULTS if not same_bits(first[name], again[name])] == []


@pytest.fixture
def poisoned_memory() -> object:
    """Fill what torch.empty returns with NaN."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (40, 17), (130, 129)])
def test_nothing_is_read_before_it_is_written(shape: tuple[int, int]) -> None:
    assert torch.empty(3).isnan().all()
    inputs = random_inputs(patterns.causal(*shape), query_heads=4, kv_heads=2)
    for _ in range(5):
        assert_all_near(inputs, LARGE)


@pytest.mark.parametrize("batch", [1, 211])
def test_many_tiny_sequences(batch: int) -> None:
    inputs = random_inputs(patterns.causal(32), batch=batch, query_heads=16, kv_heads=16, dim=8, value_dim=8)
    assert_all_near(inputs, "tiled")


@pytest.mark.parametrize("engine", ["tiled", "reference"])
@pytest.mark.parametrize(
    ("batch", "rows", "keys"), [(1, 5, 0), (1, 0, 5), (1, 0, 0), (0, 5, 7), (2, 5, 0), (0, 0, 0)]
)
def test_empty_tensors_are_legal(batch: int, rows: int, keys: int, engine: str) -> None:
    mask = patterns.full(rows, keys)
    results = run_engine(random_inputs(mask, batch=batch, query_heads=4, kv_heads=2, value_dim=8), engine)
    assert results["out"].shape == (batch, rows, 4, 8)
    assert results["out"].count_nonzero() == 0 or keys > 0
    assert torch.isneginf(results["lse"]).all()
    assert all(results[name].count_nonzero() == 0 for name in ("dq", "dk", "dv"))


@pytest.mark.parametrize("lengths", [[30, 50, 20]])
def test_a_document_changes_no_bit_of_another_documents_results(lengths: list[int]) -> None:
    inputs = random_inputs(patterns.causal_document(lengths))
    changed = Inputs(**{**vars(inputs), "k": inputs.k.clone(), "v": inputs.v.clone()})
    changed.k[:, 30:80] += 1.0
    changed.v[:, 30:80] *= -3.0
    mine, theirs = run_engine(inputs, LARGE), run_engine(changed, LARGE)
    others = [*range(30), *range(80, 100)]
    assert same_bits(mine["out"][:, others], theirs["out"][:, others])
    assert same_bits(mine["dv"][:, others], theirs["dv"][:, others])
    assert not same_bits(mine["out"], theirs["out"])
