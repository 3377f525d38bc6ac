"""Document lengths from and to cumulative lengths, document ids and position ids."""

from __future__ import annotations

import numpy as np
import pytest
from core_masks import assert_equal
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import MaskError, documents, patterns

LAW = settings(deadline=None, max_examples=100)
LENGTHS = st.lists(st.integers(0, 6), max_size=6)
FILLED = st.lists(st.integers(1, 6), max_size=6)


@LAW
@given(LENGTHS)
def test_cumulative_lengths_come_back_with_empty_documents(lengths):
    cumulative = documents.cumulative_lengths(lengths)
    assert cumulative.dtype == np.int32
    assert cumulative.tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    assert_equal(documents.lengths_from_cumulative(cumulative), np.array(lengths, dtype=np.int64))


@LAW
@given(FILLED)
def test_document_ids_come_back(lengths):
    ids = documents.document_ids(lengths)
    assert ids.tolist() == [document for document, length in enumerate(lengths) for _ in range(length)]
    assert_equal(documents.lengths_from_document_ids(ids), np.array(lengths, dtype=np.int64))


@LAW
@given(FILLED)
def test_position_ids_come_back(lengths):
    positions = documents.position_ids(lengths)
    assert positions.tolist() == [position for length in lengths for position in range(length)]
    assert_equal(documents.lengths_from_position_ids(positions), np.array(lengths, dtype=np.int64))


@LAW
@given(LENGTHS)
def test_all_three_forms_describe_one_mask(lengths):
    mask = patterns.causal_document(lengths)
    for read, written in (
        (documents.lengths_from_cumulative, documents.cumulative_lengths),
        (documents.lengths_from_document_ids, documents.document_ids),
        (documents.lengths_from_position_ids, documents.position_ids),
    ):
        assert patterns.causal_document(read(written(lengths))) == mask


def test_document_ids_may_be_any_numbers_in_any_order():
    assert documents.lengths_from_document_ids([7, 7, -3, 0, 0, 0]).tolist() == [2, 1, 3]


def test_a_document_of_one_token_is_a_position_of_zero():
    assert documents.lengths_from_position_ids([0, 0, 0, 1]).tolist() == [1, 1, 2]


@pytest.mark.parametrize("read", [documents.lengths_from_document_ids, documents.lengths_from_position_ids])
def test_no_tokens_are_no_documents(read):
    assert read([]).tolist() == []
    assert documents.lengths_from_cumulative([0]).tolist() == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: documents.lengths_from_cumulative([]), "cumulative_lengths must start with 0, got none"),
        (lambda: documents.lengths_from_cumulative([1, 2]), "cumulative_lengths must start with 0, got 1"),
        (
            lambda: documents.lengths_from_cumulative([0, 5, 3, 2]),
            "cumulative_lengths[2] = 3 must not be below the one before it, 5 (2 of 4 are wrong)",
        ),
        (
            lambda: documents.lengths_from_document_ids([4, 4, 9, 4, 4, 9]),
            "document_ids[3] = 4 comes back after another document; a document's tokens must be neighbours "
            "(2 of 4 runs are wrong)",
        ),
        (
            lambda: documents.lengths_from_position_ids([0, 1, 3, 0, 2]),
            "position_ids[2] = 3 must be 0 or 2: a document counts up from 0 (2 of 5 are wrong)",
        ),
        (
            lambda: documents.lengths_from_position_ids([1, 2]),
            "position_ids[0] = 1 must be 0: a document counts up from 0 (1 of 2 are wrong)",
        ),
        (
            lambda: documents.position_ids([2, -1]),
            "lengths[1] must be in 0..2147483647, got -1 (1 of 2 are wrong)",
        ),
        (
            lambda: documents.cumulative_lengths([2**31 - 1, 1]),
            "2 lengths sum to 2147483648; they must sum to at most 2147483647 tokens",
        ),
        (lambda: documents.document_ids([1.0]), "lengths[0] must be an integer, got 1.0 (float)"),
        (
            lambda: documents.lengths_from_position_ids([[0, 1]]),
            "position_ids must be a sequence of integers, got [[0, 1]]",
        ),
    ],
)
def test_what_describes_no_documents_is_refused_with_the_token_and_the_rule(call, message):
    with pytest.raises(MaskError) as caught:
        call()
    assert str(caught.value) == message
