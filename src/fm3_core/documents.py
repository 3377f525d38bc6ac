"""The lengths of packed documents from the forms in which data loaders describe them, and back.

The patterns take lengths: `patterns.causal_document(lengths_from_cumulative([0, 3, 8]))`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fm3_core.check import require_ints
from fm3_core.errors import MaskError

_MAX_TOKENS = 2**31 - 1


def lengths_from_cumulative(cumulative_lengths: ArrayLike) -> NDArray[np.int64]:
    """Return the documents' lengths, int64 [documents], from cumulative ones (`cu_seqlens`).

    Args:
        cumulative_lengths: integers [documents + 1], from 0, not descending; equal neighbours are an empty
            document.

    Raises:
        MaskError: no value, a first one that is not 0, or the first that is below the one before it.
    """
    bounds = require_ints("cumulative_lengths", cumulative_lengths, maximum=_MAX_TOKENS)
    if not len(bounds) or bounds[0] != 0:
        got = f"got {bounds[0]}" if len(bounds) else "got none"
        raise MaskError(f"cumulative_lengths must start with 0, {got}")
    lengths = np.diff(bounds)
    wrong = np.flatnonzero(lengths < 0) + 1
    if wrong.size:
        i = wrong[0]
        raise MaskError(
            f"cumulative_lengths[{i}] = {bounds[i]} must not be below the one before it, {bounds[i - 1]} "
            f"({wrong.size} of {len(bounds)} are wrong)"
        )
    return lengths


def lengths_from_document_ids(document_ids: ArrayLike) -> NDArray[np.int64]:
    """Return the documents' lengths, int64 [documents], from each token's document.

    Args:
        document_ids: integers [tokens], any values; a document is a run of one id.

    Raises:
        MaskError: an id that comes back after another one; it names the token and the id.
    """
    ids = require_ints("document_ids", document_ids, minimum=int(np.iinfo(np.int64).min))
    starts = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))[: len(ids)]
    _, first_runs = np.unique(ids[starts], return_index=True)
    if len(first_runs) < len(starts):
        returned = np.setdiff1d(np.arange(len(starts)), first_runs)
        token = starts[returned[0]]
        raise MaskError(
            f"document_ids[{token}] = {ids[token]} comes back after another document; "
            f"a document's tokens must be neighbours ({len(returned)} of {len(starts)} runs are wrong)"
        )
    return np.diff(np.append(starts, len(ids)))


def lengths_from_position_ids(position_ids: ArrayLike) -> NDArray[np.int64]:
    """Return the documents' lengths, int64 [documents], from each token's position in its document.

    Args:
        position_ids: integers [tokens]; each document counts 0, 1, 2 and so on.

    Raises:
        MaskError: the first token whose position is neither 0 nor one more than the one before it.
    """
    positions = require_ints("position_ids", position_ids, maximum=_MAX_TOKENS)
    expected = np.concatenate([[0], positions[:-1] + 1])[: len(positions)]
    wrong = np.flatnonzero((positions != 0) & (positions != expected))
    if wrong.size:
        token = wrong[0]
        rule = f"0 or {expected[token]}" if token else "0"
        raise MaskError(
            f"position_ids[{token}] = {positions[token]} must be {rule}: a document counts up from 0 "
            f"({wrong.size} of {len(positions)} are wrong)"
        )
    return np.diff(np.append(np.flatnonzero(positions == 0), len(positions)))


def cumulative_lengths(lengths: ArrayLike) -> NDArray[np.int32]:
    """Return int32 [documents + 1]: where each document starts, then the tokens in all (`cu_seqlens`)."""
    return np.concatenate([[0], np.cumsum(_checked_lengths(lengths))]).astype(np.int32)


def document_ids(lengths: ArrayLike) -> NDArray[np.int64]:
    """Return int64 [tokens]: the document of each token, from 0; empty documents keep their number."""
    checked = _checked_lengths(lengths)
    return np.repeat(np.arange(len(checked)), checked)


def position_ids(lengths: ArrayLike) -> NDArray[np.int64]:
    """Return int64 [tokens]: the position of each token in its document, from 0."""
    checked = _checked_lengths(lengths)
    starts = np.cumsum(checked) - checked
    return np.arange(int(checked.sum()), dtype=np.int64) - np.repeat(starts, checked)


def _checked_lengths(lengths: ArrayLike) -> NDArray[np.int64]:
    checked = require_ints("lengths", lengths, maximum=_MAX_TOKENS)
    total = int(checked.sum())
    if total > _MAX_TOKENS:
        raise MaskError(
            f"{len(checked)} lengths sum to {total}; they must sum to at most {_MAX_TOKENS} tokens"
        )
    return checked
