"""Dense masks and FlashMask indices, both ways."""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import numpy as np
import pytest
from core_masks import assert_equal, mask_of_columns, masks, random_mask
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fm3_core import ColumnMask, MaskError, dense, patterns

LAW = settings(deadline=None, max_examples=150)


@LAW
@given(masks())
def test_the_dense_mask_is_the_definition(mask):
    seen = mask.to_dense()
    for batch, head, row, key in itertools.product(*map(range, mask.shape)):
        lts, lte, uts, ute = (vector[batch, head, key] for vector in mask.vectors)
        assert seen[batch, head, row, key] == (not lts <= row < lte and not uts <= row < ute)
    assert_equal(dense.visible(mask), seen)


@LAW
@given(masks())
def test_a_dense_mask_of_a_column_mask_comes_back(mask):
    assert ColumnMask.from_dense(mask.to_dense()) == mask


class _Read(NamedTuple):
    masks: list[np.ndarray]
    refusals: list[str]


def _read(visible):
    """Return the dense mask that comes back from from_dense, or the text of its refusal."""
    try:
        return _Read([ColumnMask.from_dense(visible).to_dense()], [])
    except MaskError as refused:
        return _Read([], [str(refused)])


@LAW
@given(hnp.arrays(bool, st.tuples(st.just(1), st.just(2), st.integers(0, 7), st.integers(0, 3))))
def test_any_dense_mask_is_read_exactly_or_its_first_column_without_a_form_is_named(visible):
    hidden = np.pad(~visible, ((0, 0), (0, 0), (1, 0), (0, 0)))
    bad = np.argwhere((hidden[:, :, 1:] & ~hidden[:, :, :-1]).sum(axis=2) > 2)
    many = f"({len(bad)} of {visible.shape[1] * visible.shape[3]} columns have none)"
    refusals = [f"from_dense: batch 0, head {head}, column {key} has no form" for _, head, key in bad[:1]]
    read = _read(visible)
    assert [text[: len(refusals[0])] for text in read.refusals] == refusals
    assert all(text.endswith(many) for text in read.refusals)
    assert all(np.array_equal(dense_again, visible) for dense_again in read.masks)
    assert len(read.masks) + len(read.refusals) == 1


def test_the_refusal_of_a_dense_mask_says_what_the_column_hides():
    visible = np.ones((1, 1, 6, 2), dtype=bool)
    visible[0, 0, [0, 2, 3, 5], 1] = False
    with pytest.raises(MaskError) as caught:
        ColumnMask.from_dense(visible)
    assert str(caught.value) == (
        "from_dense: batch 0, head 0, column 1 has no form with two hidden spans: it hides "
        "[0, 1), [2, 4), [5, 6) (1 of 2 columns have none)"
    )


@pytest.mark.parametrize("visible", [np.ones((1, 1, 2, 2)), np.ones((2, 2), dtype=bool), [[[[1, 0]]]]])
def test_what_is_no_bool_array_of_four_dimensions_is_refused(visible):
    with pytest.raises(MaskError, match=r"a dense mask must be bool \[batch, heads, rows, keys\]"):
        ColumnMask.from_dense(visible)


def _by_the_words(indices, causal, rows, keys):
    """What FlashMask's documentation says, for one column list."""
    seen = np.ones((rows, keys), dtype=bool)
    for row, key in itertools.product(range(rows), range(len(indices))):
        column = indices[key]
        lts = column[0]
        lte = column[1] if len(column) == 4 or (causal and len(column) == 2) else rows
        uts, ute = column[2:] if len(column) == 4 else (0, 0 if causal else column[1])
        above_diagonal = causal and key > row + keys - rows
        seen[row, key] = not (lts <= row < lte or uts <= row < ute or above_diagonal)
    return seen


def _with_spans_in_order(indices, causal):
    starts_and_ends = {(True, 1): [], (True, 2): [[0, 1]], (False, 2): [], (False, 4): [[0, 1], [2, 3]]}
    for pair in starts_and_ends[causal, indices.shape[3]]:
        indices[..., pair] = np.sort(indices[..., pair], axis=-1)
    return indices


@LAW
@given(st.data(), st.sampled_from([(True, 1), (True, 2), (False, 2), (False, 4)]))
def test_indices_mean_what_flashmask_says(data, form):
    causal, vectors = form
    rows, keys = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 5))
    indices = data.draw(hnp.arrays(np.int32, (1, 1, keys, vectors), elements=st.integers(0, rows)))
    indices = _with_spans_in_order(indices, causal)
    mask = ColumnMask.from_startend_row_indices(indices, causal=causal, num_rows=rows)
    assert_equal(mask.to_dense()[0, 0], _by_the_words(indices[0, 0], causal, rows, keys))


@LAW
@given(masks())
def test_indices_of_a_mask_come_back_as_the_same_mask(mask):
    indices, causal = mask.to_startend_row_indices()
    assert indices.dtype == np.int32
    assert indices.shape[:3] == (mask.batch, mask.heads, mask.num_keys)
    assert ColumnMask.from_startend_row_indices(indices, causal=causal, num_rows=mask.num_rows) == mask


@functools.cache
def _columns_of_form(causal, vectors, rows, keys, key):
    """Every visible column that a form can express at one key."""
    columns = set()
    for column in itertools.product(range(rows + 1), repeat=vectors):
        indices = np.zeros((key + 1, vectors), dtype=int)
        indices[key] = column
        columns.add(tuple(_by_the_words(indices, causal, rows, keys)[:, key]))
    return columns


@LAW
@given(masks(shape=(4, 3), batch=1, heads=1))
def test_indices_use_the_form_with_the_fewest_vectors(mask):
    seen = mask.to_dense()[0, 0]
    able = [
        vectors
        for causal, vectors in [(True, 1), (True, 2), (False, 2), (False, 4)]
        if all(tuple(seen[:, key]) in _columns_of_form(causal, vectors, 4, 3, key) for key in range(3))
    ]
    assert mask.to_startend_row_indices()[0].shape[3] == min(able)


@pytest.mark.parametrize(
    ("mask", "vectors", "causal"),
    [
        (patterns.causal(6), 1, True),
        (patterns.causal(4, 6), 1, True),
        (patterns.causal_document([2, 4]), 1, True),
        (patterns.share_question([[2, 2, 2]]), 1, True),
        (patterns.causal_blockwise([2, 2, 2]), 2, True),
        (patterns.sliding_window(6, 1), 1, True),
        (patterns.document([2, 4]), 2, False),
        (patterns.sliding_window(6, 1, 1), 2, False),
        (patterns.prefix_lm_document([(1, 3), (2, 3)]), 2, False),
        (patterns.qk_sparse(9, [(2, 4)]), 2, True),
        (patterns.global_sliding_window(9, 1, 1, 1), 4, False),
        (patterns.full(6), 2, False),
    ],
)
def test_the_usual_masks_take_the_usual_forms(mask, vectors, causal):
    indices, is_causal = mask.to_startend_row_indices()
    assert (indices.shape[3], is_causal) == (vectors, causal)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.int64, np.uint64])
def test_indices_of_a_narrow_dtype_do_not_wrap_at_the_number_of_rows(dtype):
    indices = np.full((1, 1, 300, 1), 100, dtype=dtype)
    mask = ColumnMask.from_startend_row_indices(indices, causal=True)
    assert mask.num_rows == 300
    assert mask.lte.max() == 300


def test_indices_are_read_from_a_poisoned_buffer_without_touching_its_rest():
    buffer = np.full((1, 1, 256, 2), -(2**31), dtype=np.int32)
    buffer[:, :, :129, 0] = 129
    buffer[:, :, :129, 1] = 0
    mask = ColumnMask.from_startend_row_indices(buffer[:, :, :129], causal=False)
    assert mask == patterns.full(129)


@pytest.mark.parametrize(
    ("indices", "causal", "words"),
    [
        (np.zeros((1, 3, 1), int), True, r"shape \[batch, heads, keys, n\], got \(1, 3, 1\)"),
        (np.zeros((1, 1, 3, 1)), True, "must be integers, got float64"),
        (
            np.zeros((1, 1, 3, 3), int),
            True,
            "n = 1 or 2 vectors when causal and 2 or 4 when not, got causal=True and n = 3",
        ),
        (np.zeros((1, 1, 3, 1), int), False, "got causal=False and n = 1"),
        (np.zeros((1, 1, 3, 4), int), True, "got causal=True and n = 4"),
        (np.full((1, 1, 3, 1), 4), True, r"column 0: lower span \[4, 3\)"),
        (np.full((1, 1, 3, 2), -1), False, r"column 0: lower span \[-1, 3\)"),
    ],
)
def test_indices_that_are_not_a_mask_are_refused(indices, causal, words):
    with pytest.raises(MaskError, match=words):
        ColumnMask.from_startend_row_indices(indices, causal=causal)


def test_the_causal_span_is_bottom_right_aligned_when_rows_and_keys_differ():
    indices = np.full((1, 1, 100, 1), 300)
    mask = ColumnMask.from_startend_row_indices(indices, causal=True, num_rows=300)
    assert mask == patterns.causal(300, 100)
    assert not mask.to_dense()[0, 0, :200].any()
    assert mask.to_dense()[0, 0, 200:, 0].all()


def test_every_head_and_batch_entry_keeps_its_own_indices():
    mask = random_mask(np.random.default_rng(3), 2, 4, 6, 5)
    indices, causal = mask.to_startend_row_indices()
    again = ColumnMask.from_startend_row_indices(indices, causal=causal, num_rows=6)
    assert_equal(again.to_dense(), mask.to_dense())


def test_a_column_hidden_from_everybody_comes_back_through_every_form():
    mask = mask_of_columns(3, (0, 3, 0, 0), (3, 3, 0, 1), (3, 3, 0, 2))
    indices, causal = mask.to_startend_row_indices()
    assert (indices.shape[3], causal) == (1, True)
    assert ColumnMask.from_startend_row_indices(indices, causal=causal) == mask
