"""Every named mask is made from lengths alone."""

from __future__ import annotations

import pytest

from fm3_core import MaskError, UnknownNameError, patterns
from fm3_runtime import mask_names, named_mask


def test_the_names_are_the_twelve_patterns():
    assert mask_names() == sorted(patterns.PATTERNS)


@pytest.mark.parametrize("name", mask_names())
@pytest.mark.parametrize("lengths", [[5, 0, 1, 3, 7], [1], [64]])
def test_every_mask_covers_the_sequence(name, lengths):
    mask = named_mask(name, lengths)
    assert mask.shape == (1, 1, sum(lengths), sum(lengths))
    assert 0 < mask.density <= 1


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UnknownNameError, match="unknown mask 'spiral'; known: causal, causal_blockwise,"):
        named_mask("spiral", [4])


@pytest.mark.parametrize("lengths", [5, [3, -1], [2.5]])
def test_lengths_that_are_none_are_refused(lengths):
    with pytest.raises(MaskError, match="lengths"):
        named_mask("causal", lengths)
