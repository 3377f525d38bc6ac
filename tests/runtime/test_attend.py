"""The main job: real documents, several ranks, errors against float64."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fm3_runtime.attend import (
    AttendError,
    AttendOptions,
    RunOutput,
    Yardstick,
    embed,
    make_yardstick,
    run_rank,
)
from fm3_runtime.launch import run_ranks
from fm3_runtime.packing import PackedDocuments, pack_documents, standard_library

SMALL = AttendOptions(heads=4, kv_heads=2, head_dim=16)


@pytest.fixture(scope="module")
def documents() -> PackedDocuments:
    return pack_documents(standard_library(), 3000, "*.py")


@pytest.fixture(scope="module")
def output(documents: PackedDocuments) -> RunOutput:
    return run_ranks(3, run_rank, documents, SMALL)[0]


@pytest.fixture(scope="module")
def yardstick(documents: PackedDocuments) -> Yardstick:
    return make_yardstick(documents, SMALL)


def test_errors_are_within_bounds(yardstick, output):
    assert yardstick.errors_of(output.tensors).within_bounds


@pytest.mark.parametrize("name", ["out", "dq", "dk", "dv"])
def test_a_wrong_result_is_out_of_bounds(yardstick, output, name):
    tensors = dict(output.tensors)
    tensors[name] = tensors[name].clone()
    tensors[name][0, 2100, 0, 0] += 1e-3
    assert not yardstick.errors_of(tensors).within_bounds


def test_a_nan_is_out_of_bounds(yardstick, output):
    tensors = {**output.tensors, "dq": torch.full_like(output.tensors["dq"], torch.nan)}
    assert not yardstick.errors_of(tensors).within_bounds


def test_float64_on_several_ranks_is_within_bounds_though_one_rank_is_its_own_yardstick(documents):
    options = dataclasses.replace(SMALL, dtype="float64")
    few = PackedDocuments(tokens=documents.tokens[:200], lengths=(120, 80), names=("a", "b"), skipped=())
    errors = make_yardstick(few, options).errors_of(run_ranks(3, run_rank, few, options)[0].tensors)
    assert errors.one_rank == dict.fromkeys(errors.one_rank, 0.0)
    assert errors.within_bounds


def test_one_result_that_one_rank_has_exactly_does_not_make_rounding_an_error(documents):
    options = dataclasses.replace(SMALL, dtype="bfloat16", mask="sliding_window")
    few = PackedDocuments(tokens=documents.tokens[:8], lengths=(8,), names=("a",), skipped=())
    yardstick = make_yardstick(few, options)
    assert yardstick.exact["dq"].abs().max() < 1e-12
    rounding = {name: x + 2**-24 if name == "dq" else x for name, x in yardstick.exact.items()}
    errors = yardstick.errors_of(rounding)
    assert errors.ranks["dq"] == pytest.approx(2**-24, rel=1e-6)
    assert errors.within_bounds


def test_the_ranks_figures_add_up(documents, output):
    assert sum(rank.tokens for rank in output.ranks) == 3000
    assert tuple(rank.load for rank in output.ranks) == output.plan.cost.loads
    token_bytes = 2 * SMALL.kv_heads * SMALL.head_dim * 4
    seen_and_own = output.plan.partition.num_tokens
    foreign = sum(rank.gathered_tokens for rank in output.ranks) - seen_and_own
    assert sum(rank.sent_bytes for rank in output.ranks) == 3 * foreign * token_bytes
    everything = 3 * token_bytes * 3000 * 2
    assert sum(rank.sent_bytes + rank.pruned_bytes for rank in output.ranks) == everything


def test_the_embedding_is_a_function_of_byte_position_and_seed(documents):
    (q, k, v), dout = embed(documents.tokens, SMALL, np.array([3, 100]))
    (again, *_), _ = embed(documents.tokens, SMALL, np.array([100]))
    (other, *_), _ = embed(documents.tokens, dataclasses.replace(SMALL, seed=1), np.array([100]))
    assert (q.shape, k.shape, v.shape, dout.shape) == (
        (1, 2, 4, 16),
        (1, 2, 2, 16),
        (1, 2, 2, 16),
        (1, 2, 4, 16),
    )
    assert torch.equal(q[:, 1:], again)
    assert not torch.equal(again, other)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"heads": 3, "kv_heads": 2}, "heads=3 must be a multiple of kv_heads=2"),
        ({"head_dim": 0}, "head_dim must be >= 1, got 0"),
        ({"seed": 2**64}, "seed must be in 0..18446744073709551615, got 18446744073709551616"),
        ({"dtype": "int8"}, "unknown dtype 'int8'; known: float32, float64, bfloat16, float16"),
    ],
)
def test_impossible_options_are_refused(options, text):
    with pytest.raises(AttendError, match=text):
        AttendOptions(**options)
