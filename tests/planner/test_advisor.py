"""The chunk-size advisor looks at several sizes, says which are worth it and chooses one with a reason."""

from __future__ import annotations

import pytest

from fm3_core import PlanError, patterns
from fm3_planner import PlanProblem, StepSpeeds, advise_chunk_size, balanced_chunk_size, lower_bounds
from fm3_planner.advisor import default_chunk_sizes

MASK = patterns.causal_document([900, 300, 1500, 700, 696])


@pytest.mark.parametrize(
    ("num_tokens", "num_ranks", "block", "sizes"),
    [
        (65536, 8, 128, [256, 512, 1024, 2048, 4096, 8192]),
        (65536, 64, 128, [128, 256, 512, 1024]),
        (1000, 2, 128, [128, 256, 512]),
        (100, 4, 128, [1, 2, 4, 7, 13, 25]),
        (5, 5, 128, [1]),
        (2**20, 4096, 128, [256]),
    ],
)
def test_default_sizes_halve_from_one_chunk_a_rank_and_are_blocks_where_they_can(
    num_tokens, num_ranks, block, sizes
):
    assert default_chunk_sizes(num_tokens, num_ranks, block) == sizes


def test_the_same_mask_gets_the_same_advice():
    one = advise_chunk_size(MASK, num_ranks=4, ranks_per_node=2)
    assert advise_chunk_size(MASK, num_ranks=4, ranks_per_node=2) == one


def test_the_choice_is_one_of_the_options_and_near_the_least_prediction():
    advice = advise_chunk_size(MASK, num_ranks=4, ranks_per_node=2)
    least = min(option.predicted_picoseconds for option in advice.options)
    assert [option.chunk_size for option in advice.options] == [128, 256, 512, 1024]
    assert advice.chosen.chunk_size == advice.chunk_size
    assert 100 * advice.chosen.predicted_picoseconds <= 101 * least
    assert advice.reason.startswith(
        f"chunks of {advice.chunk_size} tokens, {advice.chosen.num_chunks} in all"
    )


def test_no_option_of_the_frontier_is_beaten_and_every_other_one_is():
    advice = advise_chunk_size(MASK, num_ranks=4, ranks_per_node=2)
    goals = {
        option.chunk_size: (
            option.result.cost.compute,
            option.result.cost.node_traffic,
            option.num_chunks,
        )
        for option in advice.options
    }
    beaten = {
        size
        for size, mine in goals.items()
        if any(
            other != mine and all(a <= b for a, b in zip(other, mine, strict=True))
            for other in goals.values()
        )
    }
    assert {option.chunk_size for option in advice.frontier} == set(goals) - beaten


def test_slow_links_ask_for_larger_chunks_and_slow_compute_for_smaller_ones():
    slow_links = StepSpeeds(node_bytes_per_second=10**6, rank_bytes_per_second=10**6)
    slow_compute = StepSpeeds(unit_femtoseconds=10**12)
    arguments = {"num_ranks": 4, "ranks_per_node": 2, "planner": "lpt"}
    large = advise_chunk_size(MASK, speeds=slow_links, **arguments).chunk_size
    small = advise_chunk_size(MASK, speeds=slow_compute, **arguments).chunk_size
    assert small < large


def test_of_equal_predictions_the_largest_chunks_win():
    advice = advise_chunk_size(patterns.full(1024), num_ranks=2, planner="contiguous")
    assert advice.chunk_size == 512


def test_sizes_that_are_given_are_the_ones_looked_at():
    advice = advise_chunk_size(MASK, num_ranks=2, chunk_sizes=[300, 100, 300])
    assert [option.chunk_size for option in advice.options] == [100, 300]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_ranks": 0}, "num_ranks must be >= 1, got 0"),
        ({"num_ranks": 2, "chunk_sizes": []}, "chunk_sizes must name at least one size, got none"),
        ({"num_ranks": 2, "chunk_sizes": [0]}, "chunk size must be >= 1, got 0"),
        ({"num_ranks": 2, "block": 0}, "block must be >= 1, got 0"),
        ({"num_ranks": 5000}, "4096 tokens on 5000 ranks"),
    ],
)
def test_an_argument_that_breaks_its_rule_is_refused(arguments, message):
    with pytest.raises(PlanError, match=message):
        advise_chunk_size(MASK, **arguments)


def test_speeds_are_integers_above_zero():
    with pytest.raises(PlanError, match=r"StepSpeeds.unit_femtoseconds must be an integer, got 0.5"):
        StepSpeeds(unit_femtoseconds=0.5)


def test_the_balanced_size_is_the_largest_whose_bound_is_near_the_average():
    sizes = default_chunk_sizes(MASK.num_rows, 4)
    bounds = {}
    for size in sizes:
        problem = PlanProblem.from_mask(MASK, chunk_size=size, num_ranks=4)
        bounds[size] = lower_bounds(problem).compute.value * 4 / int(problem.weights.sum())
    near = [size for size, share in bounds.items() if share <= 1.05]
    assert balanced_chunk_size(MASK, num_ranks=4, slack=0.05) == max(near)
    assert balanced_chunk_size(MASK, num_ranks=4, slack=10.0) == max(sizes)


def test_where_no_size_is_near_the_average_the_least_bound_decides():
    mask = patterns.causal_document([512], padding=8 * 512)
    assert balanced_chunk_size(mask, num_ranks=8, slack=0.0) == 128


def test_a_mask_without_work_has_the_largest_chunks():
    assert balanced_chunk_size(patterns.causal_document([], padding=1024), num_ranks=4) == 256


@pytest.mark.parametrize("slack", [-0.1, float("nan"), True, "much"])
def test_a_slack_that_is_none_is_refused(slack):
    with pytest.raises(PlanError, match="slack must be a finite number >= 0, got "):
        balanced_chunk_size(MASK, num_ranks=2, slack=slack)
