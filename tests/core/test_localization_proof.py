"""The localization theorem, proved by a machine for integers without bound.

A rank's chunks come in ascending order. The state after some of them, for one boundary:

* sum: owned rows below the boundary x, the sum over the chunks of L = clip(x - O, 0, C);
* image: the maximum over the chunks of L + [L > 0] * T, where T are the rows of the chunks before;
* total: rows of all these chunks;  end: the row behind the last one.

The induction goes over chunks, so their number is not bounded either. A claim is proved when its negation has
no model; false variants must have one, so that the proof can fail.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import z3

from fm3_core import ColumnMask, localize_by_definition

start, rows, boundary, later_boundary, local = z3.Ints("offset length x y local_row")
sum_before, image_before, total_before, end_before = z3.Ints("sum image total end")


@dataclass(frozen=True)
class State:
    """What is known after some chunks."""

    sum: z3.ArithRef
    image: z3.ArithRef
    total: z3.ArithRef
    end: z3.ArithRef


before = State(sum_before, image_before, total_before, end_before)
no_chunk = State(*(z3.IntVal(0),) * 4)


def _clip(value, low, high):
    return z3.If(value < low, low, z3.If(value > high, high, value))


def _maximum(one, other):
    return z3.If(one > other, one, other)


def _with_chunk(state, offset, length, counts=lambda inside: inside > 0):
    """Return the state after one more chunk; `counts` is the bracket of the definition."""
    inside = _clip(boundary - offset, 0, length)
    image = inside + z3.If(counts(inside), state.total, 0)
    return State(state.sum + inside, _maximum(state.image, image), state.total + length, offset + length)


def _invariant(state):
    return z3.And(
        state.sum == state.image,
        state.sum >= 0,
        state.sum <= state.total,
        z3.Implies(state.end <= boundary, state.sum == state.total),
    )


def _counterexample(claim):
    """Return a model of the claim's negation, None where there is none: then the claim is proved."""
    solver = z3.Solver()
    solver.set("timeout", 20_000)
    solver.add(z3.Not(claim))
    answer = solver.check()
    assert answer != z3.unknown
    return solver.model() if answer == z3.sat else None


def _numbers(model, *names):
    return [model.eval(name, model_completion=True).as_long() for name in names]


in_order = z3.And(boundary >= 0, end_before >= 0, rows >= 0, end_before <= start)
after = _with_chunk(before, start, rows)
own_row = z3.And(total_before <= local, local < total_before + rows)
global_row = start + (local - total_before)


def test_the_invariant_holds_without_a_chunk():
    assert _counterexample(z3.Implies(boundary >= 0, _invariant(no_chunk))) is None


def test_a_chunk_in_ascending_order_keeps_the_invariant():
    assert _counterexample(z3.Implies(z3.And(in_order, _invariant(before)), _invariant(after))) is None


def test_a_row_of_the_new_chunk_is_below_the_boundary_iff_its_local_row_is_below_the_image():
    claim = (global_row < boundary) == (local < after.image)
    assert _counterexample(z3.Implies(z3.And(in_order, _invariant(before), own_row), claim)) is None


def test_the_new_chunk_changes_nothing_for_the_rows_before_it():
    claim = z3.Implies(z3.And(local >= 0, local < total_before), (local < sum_before) == (local < after.sum))
    assert _counterexample(z3.Implies(z3.And(in_order, _invariant(before)), claim)) is None


def test_two_boundaries_that_keep_their_side_of_a_row_keep_the_span_around_it():
    row, start, end, local_start, local_end = z3.Ints("row start end local_start local_end")
    same_side = z3.And((row < start) == (local < local_start), (row < end) == (local < local_end))
    claim = z3.And(start <= row, row < end) == z3.And(local_start <= local, local < local_end)
    assert _counterexample(z3.Implies(same_side, claim)) is None


def test_images_keep_the_order_of_boundaries_so_that_local_spans_are_not_reversed():
    inside_x, inside_y = _clip(boundary - start, 0, rows), _clip(later_boundary - start, 0, rows)
    assert (
        _counterexample(z3.Implies(z3.And(rows >= 0, boundary <= later_boundary), inside_x <= inside_y))
        is None
    )


def test_the_last_chunk_that_starts_at_or_before_the_boundary_decides_alone():
    claim = after.sum == total_before + _clip(boundary - start, 0, rows)
    assert _counterexample(z3.Implies(z3.And(in_order, _invariant(before), start <= boundary), claim)) is None
    unchanged = after.sum == sum_before
    assert _counterexample(z3.Implies(z3.And(in_order, boundary < start), unchanged)) is None


# False variants: each has a counterexample.


@pytest.mark.parametrize(
    "weaker",
    [
        z3.And(sum_before == image_before, sum_before >= 0, sum_before <= total_before),
        z3.And(
            sum_before == image_before,
            z3.Implies(end_before <= boundary, sum_before == total_before),
            sum_before >= 0,
        ),
        z3.And(
            sum_before >= 0,
            sum_before <= total_before,
            z3.Implies(end_before <= boundary, sum_before == total_before),
        ),
    ],
)
def test_each_part_of_the_invariant_is_needed(weaker):
    assert _counterexample(z3.Implies(z3.And(in_order, weaker), _invariant(after))) is not None


def test_the_step_is_refuted_without_ascending_order():
    disjoint_or_not = z3.And(boundary >= 0, end_before >= 0, rows >= 0, start >= 0)
    assert (
        _counterexample(z3.Implies(z3.And(disjoint_or_not, _invariant(before)), _invariant(after)))
        is not None
    )


def test_two_disjoint_chunks_in_descending_order_are_refuted_by_a_real_case():
    first_offset, first_length = z3.Ints("first_offset first_length")
    descending = z3.And(boundary >= 0, start >= 0, rows > 0, first_length > 0, start + rows <= first_offset)
    state = _with_chunk(_with_chunk(no_chunk, first_offset, first_length), start, rows)
    model = _counterexample(z3.Implies(descending, state.sum == state.image))
    x, offset, length, other_offset, other_length = _numbers(
        model, boundary, start, rows, first_offset, first_length
    )
    owned = [*range(other_offset, other_offset + other_length), *range(offset, offset + length)]
    insides = [min(max(x - other_offset, 0), other_length), min(max(x - offset, 0), length)]
    image = max(insides[0], insides[1] + (insides[1] > 0) * other_length)
    assert [row < x for row in owned] != [local < image for local in range(len(owned))]


def test_at_least_instead_of_above_zero_in_the_bracket_is_refuted_by_a_real_case():
    first_offset, first_length = z3.Ints("first_offset first_length")
    ascending = z3.And(
        boundary >= 0, first_offset >= 0, first_length > 0, rows > 0, first_offset + first_length <= start
    )
    looser = _with_chunk(
        _with_chunk(no_chunk, first_offset, first_length), start, rows, counts=lambda inside: inside >= 0
    )
    model = _counterexample(z3.Implies(ascending, looser.sum == looser.image))
    x, offset, length, other_offset, other_length = _numbers(
        model, boundary, start, rows, first_offset, first_length
    )
    num_rows = max(x, offset + length)
    mask = ColumnMask([[[0]]], [[[x]]], [[[0]]], [[[0]]], num_rows=num_rows)
    local = localize_by_definition(mask, [other_offset, offset], [other_length, length])
    assert int(local.lte[0, 0, 0]) == model.eval(looser.sum).as_long()
    assert int(local.lte[0, 0, 0]) != model.eval(looser.image).as_long()


def test_overlapping_chunks_are_refuted():
    overlapping = z3.And(boundary >= 0, end_before >= 0, rows >= 0, start >= 0, start < end_before)
    assert _counterexample(z3.Implies(z3.And(overlapping, _invariant(before)), _invariant(after))) is not None


def test_at_or_below_instead_of_below_in_the_row_equivalence_is_refuted():
    claim = (global_row <= boundary) == (local < after.image)
    assert _counterexample(z3.Implies(z3.And(in_order, _invariant(before), own_row), claim)) is not None
