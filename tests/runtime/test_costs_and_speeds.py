"""ContextParallel plans with the costs and the speeds that it is given."""

from __future__ import annotations

import pytest

from fm3_comm import loopback
from fm3_core import PlanError, patterns
from fm3_planner import CostWeights, PlanProblem, StepSpeeds, advise_chunk_size
from fm3_runtime import ContextParallel

MASK = patterns.causal_document([2538, 1742, 3912])
LINKS = {"node_bytes_per_second": 10**6, "rank_bytes_per_second": 10**6}
SLOW, FAST = StepSpeeds(**LINKS), StepSpeeds(**dict.fromkeys(LINKS, 10**15))


def _advised(speeds):
    return advise_chunk_size(MASK, num_ranks=4, ranks_per_node=2, planner="lpt", speeds=speeds).chunk_size


@pytest.mark.parametrize("speeds", [SLOW, FAST], ids=["slow links", "fast links"])
def test_with_speeds_the_advisor_chooses_the_chunk_size(speeds):
    def chosen(backend):
        cp = ContextParallel(backend=backend, planner="lpt", ranks_per_node=2, speeds=speeds)
        return cp.plan(MASK).result.partition.chunk_size

    assert loopback.run(4, chosen) == 4 * [_advised(speeds)]


def test_slow_links_ask_for_larger_chunks():
    assert _advised(SLOW) > _advised(FAST)


def test_given_costs_are_what_is_balanced():
    mask, cost = patterns.causal(2048), CostWeights(full_forward=1, partial_forward=1000)

    def weights(backend):
        return ContextParallel(backend=backend, cost=cost).problem(mask, 256).weights.tolist()

    expected = PlanProblem.from_mask(mask, chunk_size=256, num_ranks=1, cost=cost).weights.tolist()
    assert loopback.run(1, weights) == [expected]
    assert expected != PlanProblem.from_mask(mask, chunk_size=256, num_ranks=1).weights.tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cost": 3}, "cost must be CostWeights or None, got int"),
        ({"speeds": LINKS}, "speeds must be StepSpeeds or None, got dict"),
    ],
)
def test_costs_and_speeds_of_another_kind_are_refused(arguments, message):
    with pytest.raises(PlanError, match=message):
        ContextParallel(**arguments)
