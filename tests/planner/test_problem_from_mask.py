"""Problems from masks: weights are kernel blocks, needs are exact visibility, bytes are K and V."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import BlockMap, ColumnMask, PartitionError, PlanError, patterns
from fm3_planner import Contiguous, CostWeights, Lpt, PlanProblem, Status, check_plan, plan
from fm3_planner.weights import row_bounds

ONE_EACH = CostWeights(full_forward=1, partial_forward=1, full_backward=0, partial_backward=0)


def _random_mask(seed, num_tokens, *, batch=1, heads=1):
    rng = np.random.default_rng(seed)
    shape = (batch, heads, num_tokens)
    lower = np.sort(rng.integers(0, num_tokens + 1, (2, *shape)), axis=0)
    upper = np.sort(rng.integers(0, num_tokens + 1, (2, *shape)), axis=0)
    return ColumnMask(*lower.astype(np.int32), *upper.astype(np.int32), num_rows=num_tokens)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    num_tokens=st.integers(1, 70),
    blocks_per_chunk=st.integers(1, 5),
    block_rows=st.integers(1, 8),
    block_keys=st.integers(1, 40),
)
def test_weights_are_the_visited_blocks_of_each_chunk(
    seed, num_tokens, blocks_per_chunk, block_rows, block_keys
):
    mask = _random_mask(seed, num_tokens, batch=2, heads=2)
    chunk_size = blocks_per_chunk * block_rows
    cost = CostWeights(block_rows=block_rows, block_keys=block_keys)
    kinds = BlockMap.from_mask(mask, block_rows, min(block_keys, chunk_size), method="extrema").kinds
    costs = np.array([0, cost.partial, cost.full])[kinds].sum(axis=(0, 1, 3))
    by_chunk = [
        3 * int(costs[first : first + blocks_per_chunk].sum())
        for first in range(0, len(costs), blocks_per_chunk)
    ]
    problem = PlanProblem.from_mask(mask, chunk_size=chunk_size, num_ranks=1, cost=cost, query_heads=6)
    assert problem.weights.tolist() == by_chunk


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    chunk_size=st.integers(1, 40),
    sizes=st.tuples(*(st.integers(1, 30) for _ in range(4))),
)
def test_backward_blocks_of_another_size_are_counted_by_themselves(seed, chunk_size, sizes):
    rows, keys, backward_rows, backward_keys = sizes
    mask = _random_mask(seed, 60, heads=2)

    def weights(**cost):
        problem = PlanProblem.from_mask(mask, chunk_size=chunk_size, num_ranks=1, cost=CostWeights(**cost))
        return problem.weights

    nothing = {"full_backward": 0, "partial_backward": 0}
    forward = {"full_forward": 3, "partial_forward": 5, "row_block_forward": 7}
    backward = {"full_backward": 11, "partial_backward": 13, "row_block_backward": 17}
    as_forward = {name.replace("backward", "forward"): value for name, value in backward.items()}
    both = weights(
        **forward, **backward, block_rows=rows, block_keys=keys,
        backward_block_rows=backward_rows, backward_block_keys=backward_keys,
    )  # fmt: skip
    one = weights(**forward, **nothing, block_rows=rows, block_keys=keys)
    other = weights(**as_forward, **nothing, block_rows=backward_rows, block_keys=backward_keys)
    assert both.tolist() == (one + other).tolist()


@settings(max_examples=60, deadline=None)
@given(num_rows=st.integers(1, 60), chunk_size=st.integers(1, 70), block_rows=st.integers(1, 20))
def test_row_blocks_start_anew_at_each_chunk(num_rows, chunk_size, block_rows):
    bounds, first_block = row_bounds(num_rows, chunk_size, block_rows)
    starts = [row for row in range(num_rows) if row % chunk_size % block_rows == 0]
    assert bounds.tolist() == [*starts, num_rows]
    assert [starts[block] for block in first_block] == list(range(0, num_rows, chunk_size))


def test_a_chunk_smaller_than_a_block_is_one_block_of_its_own_size():
    problem = PlanProblem.from_mask(patterns.causal(12), chunk_size=4, num_ranks=1, cost=ONE_EACH)
    assert problem.weights.tolist() == [1, 2, 3]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), num_tokens=st.integers(1, 50), chunk_size=st.integers(1, 12))
def test_needs_are_exact_visibility_of_any_batch_entry_and_head(seed, num_tokens, chunk_size):
    mask = _random_mask(seed, num_tokens, batch=2, heads=2)
    visible = mask.to_dense().any(axis=(0, 1))
    num_chunks = -(-num_tokens // chunk_size)
    seen = np.zeros((num_chunks, num_chunks), dtype=bool)
    np.logical_or.at(seen, tuple(index // chunk_size for index in np.nonzero(visible)), True)
    problem = PlanProblem.from_mask(mask, chunk_size=chunk_size, num_ranks=1)
    assert np.array_equal(problem.needs, seen)


def test_a_causal_mask_worked_by_hand():
    cost = CostWeights(full_forward=1, partial_forward=10, full_backward=100, partial_backward=1000)
    problem = PlanProblem.from_mask(patterns.causal(512), chunk_size=256, num_ranks=2, cost=cost)
    # Rows of 128: chunk 0 has blocks P and F P, chunk 1 has F F P and F F F P.
    assert problem.weights.tolist() == [1 * 101 + 2 * 1010, 5 * 101 + 2 * 1010]
    assert problem.needs.tolist() == [[True, False], [True, True]]


def test_the_fields_of_a_mask_problem():
    mask = patterns.causal_document([5, 6])
    problem = PlanProblem.from_mask(mask, chunk_size=3, num_ranks=3, ranks_per_node=2)
    assert (problem.num_tokens, problem.chunk_size, problem.num_chunks) == (11, 3, 4)
    assert (problem.cluster.num_ranks, problem.cluster.num_nodes) == (3, 2)
    assert problem.fingerprint == mask.fingerprint


def test_bytes_are_those_of_k_and_v_of_every_batch_entry_and_the_last_chunk_is_shorter():
    mask = _random_mask(0, 10, batch=3)
    problem = PlanProblem.from_mask(
        mask, chunk_size=4, num_ranks=2, query_heads=8, kv_heads=2, head_dim=64, element_bytes=4
    )
    token_bytes = 2 * 3 * 2 * 64 * 4
    assert problem.chunk_bytes.tolist() == [4 * token_bytes, 4 * token_bytes, 2 * token_bytes]


def test_defaults_are_the_heads_of_the_mask_and_128_elements_of_two_bytes():
    problem = PlanProblem.from_mask(_random_mask(0, 8, heads=4), chunk_size=4, num_ranks=2)
    assert problem.chunk_bytes.tolist() == [4 * 2 * 4 * 128 * 2] * 2


def test_query_heads_multiply_weights_and_kv_heads_do_not():
    mask = patterns.causal(64)
    one = PlanProblem.from_mask(mask, chunk_size=16, num_ranks=2)
    eight = PlanProblem.from_mask(mask, chunk_size=16, num_ranks=2, query_heads=8, kv_heads=2)
    assert eight.weights.tolist() == [8 * weight for weight in one.weights.tolist()]
    assert eight.chunk_bytes.tolist() == [2 * size for size in one.chunk_bytes.tolist()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chunk_size": 0}, "chunk_size must be >= 1, got 0"),
        ({"chunk_size": 1.5}, "chunk_size must be an integer, got 1.5"),
        ({"num_ranks": 0}, "num_ranks must be >= 1, got 0"),
        ({"num_ranks": 4}, "8 tokens in chunks of 3 are 3 chunks, fewer than the 4 ranks"),
        ({"query_heads": 3}, "query_heads=3 must be a multiple of the 2 heads of mask 0"),
        ({"query_heads": 4, "kv_heads": 3}, "query_heads=4 must be a multiple of kv_heads=3"),
        ({"kv_heads": 0}, "kv_heads must be >= 1, got 0"),
        ({"head_dim": 0}, "head_dim must be >= 1, got 0"),
        ({"element_bytes": 0}, "element_bytes must be >= 1, got 0"),
        ({"cost": 3}, "cost of mask 0 must be a CostWeights, got int"),
    ],
)
def test_an_argument_that_breaks_its_rule_is_refused_by_name(changes, message):
    arguments = {"chunk_size": 3, "num_ranks": 2} | changes
    with pytest.raises(PlanError, match=message):
        PlanProblem.from_mask(_random_mask(0, 8, heads=2), **arguments)


def test_ranks_per_node_is_checked_by_the_cluster():
    with pytest.raises(PartitionError, match="ranks_per_node must be >= 1, got 0"):
        PlanProblem.from_mask(patterns.causal(8), chunk_size=2, num_ranks=2, ranks_per_node=0)


def test_a_mask_that_is_not_square_is_refused():
    with pytest.raises(PlanError, match="mask 0 has 8 rows and 12 keys; planning needs as many rows as keys"):
        PlanProblem.from_mask(patterns.causal(8, 12), chunk_size=2, num_ranks=2)


def test_a_mask_without_tokens_is_refused():
    with pytest.raises(PlanError, match="the masks have no tokens"):
        PlanProblem.from_mask(patterns.full(0), chunk_size=2, num_ranks=1)


def test_what_is_no_mask_is_refused():
    with pytest.raises(PlanError, match="mask 0 must be a ColumnMask, got list"):
        PlanProblem.from_mask([1, 2], chunk_size=2, num_ranks=1)


def test_costs_that_overflow_int64_are_refused():
    cost = CostWeights(full_forward=2**61, partial_forward=2**61)
    with pytest.raises(
        PlanError, match=r"weights.* must be an integer in 0..9223372036854775807|weights sum to"
    ):
        PlanProblem.from_mask(patterns.causal(64), chunk_size=8, num_ranks=2, cost=cost)


def test_several_masks_sum_weights_by_layers_and_need_what_any_needs():
    window, wide = patterns.sliding_window(32, 3), patterns.document([16, 16])
    arguments = {"chunk_size": 4, "num_ranks": 4, "query_heads": 2}
    dear = CostWeights(full_forward=7)
    one, other = (
        PlanProblem.from_mask(window, **arguments),
        PlanProblem.from_mask(wide, cost=dear, **arguments),
    )
    both = PlanProblem.from_masks([(window, 3, CostWeights()), (wide, 1, dear)], **arguments)
    assert both.weights.tolist() == (3 * one.weights + other.weights).tolist()
    assert np.array_equal(both.needs, one.needs | other.needs)
    assert both.chunk_bytes.tolist() == one.chunk_bytes.tolist()
    result = plan(both)
    check_plan(both, result)
    assert result.was_made_for(window)
    assert result.was_made_for(wide)
    assert not result.was_made_for(patterns.causal(36))


def test_a_mask_that_occurs_in_two_layer_groups_is_fingerprinted_once():
    mask = patterns.causal(8)
    problem = PlanProblem.from_masks(
        [(mask, 1, CostWeights()), (mask, 2, ONE_EACH)], chunk_size=2, num_ranks=2
    )
    assert problem.fingerprint == mask.fingerprint


def test_a_mask_of_batch_one_stands_for_every_batch_entry_of_the_others():
    shared, by_entry = patterns.causal(12), _random_mask(1, 12, batch=3)
    arguments = {"chunk_size": 4, "num_ranks": 2}
    both = PlanProblem.from_masks([(shared, 1, CostWeights()), (by_entry, 1, CostWeights())], **arguments)
    one, other = PlanProblem.from_mask(shared, **arguments), PlanProblem.from_mask(by_entry, **arguments)
    assert both.weights.tolist() == (3 * one.weights + other.weights).tolist()


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], r"layers must name at least one \(mask, num_layers, cost\), got none"),
        ([patterns.causal(8)], r"layers\[0\] must be \(mask, num_layers, cost\), got ColumnMask"),
        ([(patterns.causal(8), 0, ONE_EACH)], "num_layers of mask 0 must be >= 1, got 0"),
        (
            [(patterns.causal(8), 1, ONE_EACH), (patterns.causal(9), 1, ONE_EACH)],
            "mask 1 has 9 tokens, mask 0 has 8",
        ),
        (
            [(_random_mask(0, 8, batch=2), 1, ONE_EACH), (_random_mask(0, 8, batch=3), 1, ONE_EACH)],
            "mask 0 has batch 2; with a largest batch of 3 it must be that or 1",
        ),
    ],
)
def test_layers_that_do_not_fit_are_refused(layers, message):
    with pytest.raises(PlanError, match=message):
        PlanProblem.from_masks(layers, chunk_size=2, num_ranks=2)


def test_a_document_and_its_long_neighbour_are_balanced_in_work_and_not_only_in_tokens():
    """Documents of 4 and 12 tokens on 2 ranks: contiguous halves do 20 and 68 pairs, a fair plan 44."""
    mask = patterns.causal_document([4, 12])
    problem = PlanProblem.from_mask(mask, chunk_size=1, num_ranks=2, cost=ONE_EACH)
    assert sum(problem.weights.tolist()) == int(mask.visible_pairs().sum()) == 88
    assert plan(problem, Contiguous()).cost.loads == (20, 68)
    fair = plan(problem, Lpt())
    assert fair.cost.loads == (44, 44)
    assert fair.status is Status.OPTIMAL


@pytest.mark.parametrize(("num_tokens", "num_ranks"), [(698, 4), (7, 2), (7 * 4 + 3, 4), (7 * 5 + 3, 5)])
@pytest.mark.parametrize("planner", ["contiguous", "striped", "zigzag", "lpt"])
def test_lengths_that_do_not_divide_are_placed_whole_without_padding(num_tokens, num_ranks, planner):
    mask = patterns.causal_document([num_tokens // 3, num_tokens - num_tokens // 3])
    problem = PlanProblem.from_mask(
        mask, chunk_size=max(1, num_tokens // (3 * num_ranks)), num_ranks=num_ranks
    )
    result = plan(problem, planner)
    check_plan(problem, result)
    assert sum(result.partition.num_tokens_of(rank) for rank in range(num_ranks)) == num_tokens


def test_padding_is_no_work_and_a_rank_may_have_nothing_else():
    mask = patterns.causal_document([4], padding=12)
    problem = PlanProblem.from_mask(mask, chunk_size=4, num_ranks=4)
    result = plan(problem, "contiguous")
    assert problem.weights.tolist()[1:] == [0, 0, 0]
    assert result.cost.loads[1:] == (0, 0, 0)
    assert result.cost.rank_traffic == 0


def test_a_sequence_shorter_than_the_ranks_is_refused():
    with pytest.raises(PlanError, match="3 tokens in chunks of 1 are 3 chunks, fewer than the 4 ranks"):
        PlanProblem.from_mask(patterns.causal(3), chunk_size=1, num_ranks=4)


def test_the_same_meaning_of_a_mask_is_the_same_fingerprint_and_another_mask_is_another():
    mask = patterns.causal(16)
    arguments = {"chunk_size": 4, "num_ranks": 2}
    problem = PlanProblem.from_mask(mask, **arguments)
    again = PlanProblem.from_mask(ColumnMask.from_dense(mask.to_dense()), **arguments)
    other = PlanProblem.from_mask(patterns.full(16), **arguments)
    assert problem.fingerprint == again.fingerprint != other.fingerprint
    with pytest.raises(PlanError, match="fingerprint is"):
        check_plan(other, plan(problem))
