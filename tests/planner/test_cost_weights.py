"""Cost weights are integers with a stated provenance."""

from __future__ import annotations

import dataclasses

import pytest

from fm3_core import PlanError
from fm3_planner import CostWeights


def test_the_default_says_that_it_is_an_assumption():
    assert CostWeights().provenance.startswith("assumption: ")


def test_backward_does_five_products_where_forward_does_two_and_a_partial_block_costs_more():
    cost = CostWeights()
    assert cost.full_forward * 5 == cost.full_backward * 2
    assert cost.partial > cost.full


def test_kinds_sum_forward_and_backward():
    cost = CostWeights(full_forward=1, partial_forward=2, full_backward=30, partial_backward=40)
    assert (cost.full, cost.partial) == (31, 42)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"full_forward": -1}, "CostWeights.full_forward must be >= 0, got -1"),
        ({"partial_backward": 1.5}, "CostWeights.partial_backward must be an integer, got 1.5"),
        ({"partial_forward": float("nan")}, "CostWeights.partial_forward must be an integer, got nan"),
        ({"block_rows": 0}, "CostWeights.block_rows must be >= 1, got 0"),
        ({"block_keys": True}, "CostWeights.block_keys must be an integer, got True"),
        ({"backward_block_rows": 0}, "CostWeights.backward_block_rows must be >= 1, got 0"),
        ({"backward_block_keys": 1.5}, "CostWeights.backward_block_keys must be an integer, got 1.5"),
        ({"provenance": 3}, "CostWeights.provenance must be a string, got 3"),
    ],
)
def test_a_wrong_number_is_refused_by_name(changes, message):
    with pytest.raises(PlanError, match=message):
        CostWeights(**changes)


def test_options_are_frozen_and_by_keyword_only():
    with pytest.raises(TypeError):
        CostWeights(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        CostWeights().full_forward = 1
