"""The twelve masks over packed documents, by name: the parameters follow from the documents' lengths alone.

Windows, prefixes and evictions scale with the sequence as in the published FlashMask kernel benchmark; where
that draws at random inside documents (prefixes, answers, hidden stretches) fixed shares stand in, so that a
name and the lengths say which mask it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from fm3_core import ColumnMask, UnknownNameError, patterns
from fm3_core.check import require_ints

NUM_GLOBAL_TOKENS = 16
WINDOW_SHARE = 16
"""A window reaches over a sixteenth of the sequence."""
PREFIX_SHARE = 4
"""A document's prefix, or its question, is a quarter of it."""
ANSWERS = 3
EVICTION_SEED = 0


def mask_names() -> list[str]:
    """Return the names that `named_mask` knows, sorted."""
    return sorted(_MASKS)


def named_mask(name: str, lengths: Sequence[int]) -> ColumnMask:
    """Return the mask called `name` over documents of these lengths, one after another.

    Args:
        name: one of `mask_names()`.
        lengths: tokens of each document; their sum is the sequence.

    Raises:
        UnknownNameError: an unknown name; it lists the known ones.
    """
    if name not in _MASKS:
        raise UnknownNameError(f"unknown mask {name!r}; known: {', '.join(mask_names())}")
    checked = require_ints("lengths", lengths).tolist()
    return _MASKS[name](checked, sum(checked))


def _share_question(lengths: list[int]) -> ColumnMask:
    groups = []
    for length in lengths:
        question = length // PREFIX_SHARE
        ends = [question + (length - question) * i // ANSWERS for i in range(ANSWERS + 1)]
        groups.append([question, *(end - start for start, end in pairwise(ends))])
    return patterns.share_question(groups)


def _qk_sparse(lengths: list[int], tokens: int) -> ColumnMask:
    """Every second document does not see itself."""
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    return patterns.qk_sparse(tokens, list(zip(starts, lengths, strict=True))[1::2])


_MASKS: dict[str, Callable[[list[int], int], ColumnMask]] = {
    "full": lambda lengths, tokens: patterns.full(tokens),
    "causal": lambda lengths, tokens: patterns.causal(tokens),
    "sliding_window": lambda lengths, tokens: patterns.sliding_window(
        tokens, max(tokens // WINDOW_SHARE - 1, 0)
    ),
    "causal_document": lambda lengths, tokens: patterns.causal_document(lengths),
    "document": lambda lengths, tokens: patterns.document(lengths),
    "share_question": lambda lengths, tokens: _share_question(lengths),
    "global_sliding_window": lambda lengths, tokens: patterns.global_sliding_window(
        tokens, NUM_GLOBAL_TOKENS, tokens // WINDOW_SHARE, tokens // WINDOW_SHARE
    ),
    "causal_blockwise": lambda lengths, tokens: patterns.causal_blockwise(lengths),
    "prefix_lm_document": lambda lengths, tokens: patterns.prefix_lm_document(
        [(length // PREFIX_SHARE, length) for length in lengths]
    ),
    "prefix_lm_causal": lambda lengths, tokens: patterns.prefix_lm_causal(tokens, tokens // 2),
    "qk_sparse": _qk_sparse,
    "random_eviction": lambda lengths, tokens: patterns.random_eviction(
        tokens, -(-tokens // 2), seed=EVICTION_SEED
    ),
}
