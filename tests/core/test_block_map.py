"""Block maps: exact ones decide by counts; those by extrema are sound and lose only what is documented."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from core_masks import assert_equal, benchmark_batch, mask_of_columns, masks, random_mask
from hypothesis import given, settings
from hypothesis import strategies as st

from fm3_core import (
    BlockExtrema,
    BlockMap,
    ColumnMask,
    MaskError,
    UnknownNameError,
    block_counts,
    patterns,
    visible_pairs_by_chunk,
)
from fm3_core.blocks import CUT_BY_LOWER, CUT_BY_UPPER, EMPTY, FULL, METHODS, PARTIAL

LAW = settings(deadline=None, max_examples=200)
SIZES = st.integers(1, 6)
EVERY_METHOD = pytest.mark.parametrize("method", ["exact", "extrema"])


def _truth(mask, block_rows, block_keys):
    dense = mask.to_dense()
    rows, keys = range(0, mask.num_rows, block_rows), range(0, mask.num_keys, block_keys)
    kinds = np.empty((mask.batch, mask.heads, len(rows), len(keys)), dtype=np.uint8)
    for i, r in enumerate(rows):
        for j, k in enumerate(keys):
            block = dense[:, :, r : r + block_rows, k : k + block_keys]
            kinds[:, :, i, j] = np.where(
                block.all(axis=(2, 3)), FULL, np.where(block.any(axis=(2, 3)), PARTIAL, EMPTY)
            )
    return kinds


def _spread(blocks, mask, block_rows, block_keys):
    """Give every (row, key) the value of its block."""
    return blocks.repeat(block_rows, axis=2)[:, :, : mask.num_rows].repeat(block_keys, axis=3)[
        ..., : mask.num_keys
    ]


@LAW
@given(masks(max_rows=13, max_keys=9), SIZES, SIZES)
def test_the_exact_map_is_the_truth(mask, block_rows, block_keys):
    assert_equal(BlockMap.from_mask(mask, block_rows, block_keys).kinds, _truth(mask, block_rows, block_keys))


@LAW
@given(masks(max_rows=13, max_keys=9), SIZES, SIZES)
def test_by_extrema_empty_and_full_are_never_wrong(mask, block_rows, block_keys):
    kinds = BlockMap.from_mask(mask, block_rows, block_keys, method="extrema").kinds
    truth = _truth(mask, block_rows, block_keys)
    decided = kinds != PARTIAL
    assert_equal(kinds[decided], truth[decided])


@EVERY_METHOD
@settings(deadline=None, max_examples=150)
@given(masks(max_rows=13, max_keys=9), SIZES, SIZES)
def test_applying_only_the_spans_that_cut_a_block_gives_exactly_the_visible_pairs(
    method, mask, block_rows, block_keys
):
    blocks = BlockMap.from_mask(mask, block_rows, block_keys, method=method)
    nothing = np.zeros_like(mask.lts)
    outside_lower = ColumnMask(mask.lts, mask.lte, nothing, nothing, num_rows=mask.num_rows).to_dense()
    outside_upper = ColumnMask(nothing, nothing, mask.uts, mask.ute, num_rows=mask.num_rows).to_dense()
    kinds = _spread(blocks.kinds, mask, block_rows, block_keys)
    cuts = _spread(blocks.cuts, mask, block_rows, block_keys)
    seen = (
        (kinds != EMPTY)
        & (outside_lower | (cuts & CUT_BY_LOWER == 0))
        & (outside_upper | (cuts & CUT_BY_UPPER == 0))
    )
    assert_equal(seen, mask.to_dense())
    assert not blocks.cuts[blocks.kinds != PARTIAL].any()
    assert blocks.cuts[blocks.kinds == PARTIAL].all()


@settings(deadline=None, max_examples=150)
@given(masks(max_rows=13, max_keys=9), SIZES, SIZES)
def test_an_exact_cut_is_a_span_that_hides_a_pair_of_the_block(mask, block_rows, block_keys):
    blocks = BlockMap.from_mask(mask, block_rows, block_keys)
    nothing = np.zeros_like(mask.lts)
    for bit, start, end in ((CUT_BY_LOWER, mask.lts, mask.lte), (CUT_BY_UPPER, mask.uts, mask.ute)):
        alone = ColumnMask(start, end, nothing, nothing, num_rows=mask.num_rows)
        touched = _truth(alone, block_rows, block_keys) != FULL
        assert_equal(blocks.cuts & bit > 0, touched & (blocks.kinds == PARTIAL))


def _rule(mask, block_rows, block_keys, *, empty_over_all=True, touch_over_all=False):
    """The extrema rule a block at a time; each flag makes one of its two well known mistakes."""
    kinds = np.empty((-(-mask.num_rows // block_rows), -(-mask.num_keys // block_keys)), dtype=np.uint8)
    for i, j in np.ndindex(kinds.shape):
        start, end = i * block_rows, min((i + 1) * block_rows, mask.num_rows)
        keys = slice(j * block_keys, (j + 1) * block_keys)
        empty = touched = False
        for starts, ends in ((mask.lts, mask.lte), (mask.uts, mask.ute)):
            pairs = [(int(s), int(e)) for s, e in zip(starts[0, 0, keys], ends[0, 0, keys], strict=True)]
            hiding = [(s, e) for s, e in pairs if s < e]
            cover = pairs if empty_over_all else hiding
            touch = pairs if touch_over_all else hiding
            empty |= bool(cover) and start >= max(s for s, _ in cover) and end <= min(e for _, e in cover)
            touched |= bool(touch) and start < max(e for _, e in touch) and end > min(s for s, _ in touch)
        kinds[i, j] = EMPTY if empty else PARTIAL if touched else FULL
    return kinds


def _random_masks(count):
    rng = np.random.default_rng(9)
    for _ in range(count):
        yield random_mask(rng, 1, 1, int(rng.integers(1, 16)), int(rng.integers(1, 9)))


def _mistakes(count, **variant):
    """Return (wrong EMPTY or FULL blocks, PARTIAL blocks that are not) of the rule over random masks."""
    unsound = false_partial = 0
    for mask in _random_masks(count):
        kinds, truth = _rule(mask, 4, 3, **variant), _truth(mask, 4, 3)[0, 0]
        unsound += int(((kinds != PARTIAL) & (kinds != truth)).sum())
        false_partial += int(((kinds == PARTIAL) & (truth != PARTIAL)).sum())
    return unsound, false_partial


def test_the_map_by_extrema_is_the_rule_read_off_a_block_at_a_time():
    for mask in _random_masks(300):
        assert_equal(BlockMap.from_mask(mask, 4, 3, method="extrema").kinds[0, 0], _rule(mask, 4, 3))


def test_leaving_empty_spans_out_of_the_empty_test_is_caught_as_unsound():
    assert _mistakes(500)[0] == 0
    assert _mistakes(500, empty_over_all=False)[0] > 100


def test_keeping_empty_spans_in_the_touch_test_is_caught_as_looser():
    unsound, false_partial = _mistakes(500)
    loose_unsound, loose_false_partial = _mistakes(500, touch_over_all=True)
    assert unsound == loose_unsound == 0
    assert loose_false_partial > 3 * false_partial > 0


@EVERY_METHOD
def test_the_second_row_block_is_empty_because_its_end_is_clamped_to_the_rows(method):
    mask = mask_of_columns(130, *[(128, 130, 0, 0)] * 5)
    assert BlockMap.from_mask(mask, 128, 128, method=method).kinds.tolist() == [[[[FULL], [EMPTY]]]]


@EVERY_METHOD
@pytest.mark.parametrize(("rows", "keys"), [(130, 129), (129, 128), (127, 257), (1, 1)])
def test_blocks_at_the_edges_are_full_when_all_their_rows_and_keys_are_visible(method, rows, keys):
    blocks = BlockMap.from_mask(patterns.full(rows, keys), 128, 128, method=method)
    assert blocks.kinds.shape == (1, 1, -(-rows // 128), -(-keys // 128))
    assert blocks.num_full == blocks.kinds.size


@EVERY_METHOD
@pytest.mark.parametrize("columns", [[(291, 512, 0, 313), (147, 512, 0, 402)], [(178, 399, 67, 242)]])
def test_overlapping_spans_visit_the_same_row_blocks_by_map_and_by_counts(method, columns):
    mask = mask_of_columns(512, *columns)
    for size in (64, 128):
        blocks = BlockMap.from_mask(mask, size, 128, method=method)
        truth = _truth(mask, size, 128)
        assert not ((blocks.kinds == EMPTY) & (truth != EMPTY)).any()
        full, partial = block_counts(mask, range(0, 513, size), 128)
        by_extrema = BlockMap.from_mask(mask, size, 128, method="extrema").kinds
        assert_equal(full + partial, (by_extrema != EMPTY).sum(axis=3))


@EVERY_METHOD
def test_a_key_block_that_only_the_last_row_block_sees_is_found(method):
    lts, ute = np.full(512, 1023), np.where(np.arange(512) < 128, 1000, 0)
    mask = mask_of_columns(1023, *zip(lts, np.full(512, 1023), np.zeros(512, int), ute, strict=True))
    kinds = BlockMap.from_mask(mask, 128, 128, method=method).kinds[0, 0]
    assert kinds[:, 0].tolist() == [EMPTY] * 7 + [PARTIAL]
    assert (kinds[:, 1:] == FULL).all()


@EVERY_METHOD
def test_rows_before_a_bottom_right_aligned_diagonal_visit_nothing(method):
    kinds = BlockMap.from_mask(patterns.causal(300, 100), 100, 100, method=method).kinds
    assert kinds.tolist() == [[[[EMPTY], [EMPTY], [PARTIAL]]]]


@EVERY_METHOD
@pytest.mark.parametrize(("rows", "keys"), [(0, 0), (0, 5), (5, 0)])
def test_masks_without_rows_or_keys_have_no_blocks(method, rows, keys):
    blocks = BlockMap.from_mask(patterns.full(rows, keys), 2, 2, method=method)
    assert blocks.kinds.shape == blocks.cuts.shape == (1, 1, -(-rows // 2), -(-keys // 2))
    assert blocks.num_empty == blocks.num_partial == blocks.num_full == 0


@EVERY_METHOD
def test_every_head_and_batch_entry_has_its_own_blocks(method):
    mask = random_mask(np.random.default_rng(10), 2, 3, 12, 9)
    kinds = BlockMap.from_mask(mask, 4, 4, method=method).kinds
    for batch, head in np.ndindex(2, 3):
        alone = ColumnMask(
            *(vector[batch : batch + 1, head : head + 1] for vector in mask.vectors), num_rows=12
        )
        assert_equal(kinds[batch, head], BlockMap.from_mask(alone, 4, 4, method=method).kinds[0, 0])


@LAW
@given(masks(max_rows=13, max_keys=9), SIZES, SIZES)
def test_visible_pairs_lie_between_full_blocks_and_visited_blocks(mask, block_rows, block_keys):
    everything = patterns.full(mask.num_rows, mask.num_keys)
    area = visible_pairs_by_chunk(everything, chunk_size=block_rows, key_chunk_size=block_keys)
    kinds = BlockMap.from_mask(mask, block_rows, block_keys).kinds
    visible = mask.visible_pairs()
    assert (((kinds == FULL) * area).sum(axis=(2, 3)) <= visible).all()
    assert (visible <= ((kinds != EMPTY) * area).sum(axis=(2, 3))).all()


def test_the_kinds_are_counted():
    blocks = BlockMap.from_mask(patterns.causal(8), 2, 2)
    assert (blocks.num_empty, blocks.num_partial, blocks.num_full) == (6, 4, 6)
    assert repr(blocks) == "BlockMap(8 x 8 in blocks of 2 x 2: 6 empty, 4 partial, 6 full)"


@pytest.mark.parametrize(
    "make", [lambda mask: BlockMap.from_mask(mask, 2, 2), lambda mask: BlockExtrema.from_mask(mask, 2)]
)
def test_maps_and_extrema_are_read_only_also_after_pickling(make):
    for value in (make(patterns.causal(8)), pickle.loads(pickle.dumps(make(patterns.causal(8))))):
        arrays = [array for array in vars(value).values() if isinstance(array, np.ndarray)]
        assert arrays
        assert not any(array.flags.writeable for array in arrays)


@LAW
@given(masks(max_keys=9), SIZES)
def test_extrema_are_the_extrema_of_each_key_block(mask, block_keys):
    extrema = BlockExtrema.from_mask(mask, block_keys)
    assert extrema.num_blocks == -(-mask.num_keys // block_keys)
    for batch, head, block in np.ndindex(mask.batch, mask.heads, extrema.num_blocks):
        keys = (batch, head, slice(block * block_keys, (block + 1) * block_keys))
        lts, lte, uts, ute = (vector[keys].tolist() for vector in mask.vectors)
        at = (batch, head, block)
        assert (extrema.max_lts[at], extrema.min_lte[at]) == (max(lts), min(lte))
        assert (extrema.max_uts[at], extrema.min_ute[at]) == (max(uts), min(ute))
        hiding = [pair for pair in zip(lts, lte, strict=True) if pair[0] < pair[1]]
        assert extrema.min_lts[at] == min((start for start, _ in hiding), default=mask.num_rows)
        assert extrema.max_lte[at] == max((end for _, end in hiding), default=0)
        hiding = [pair for pair in zip(uts, ute, strict=True) if pair[0] < pair[1]]
        assert extrema.min_uts[at] == min((start for start, _ in hiding), default=mask.num_rows)
        assert extrema.max_ute[at] == max((end for _, end in hiding), default=0)


def test_the_usual_patterns_visit_exactly_the_visible_blocks_by_extrema():
    batch = benchmark_batch(8192)
    usual = [
        patterns.full(8192),
        patterns.causal(8192),
        patterns.sliding_window(8192, 511),
        patterns.causal_document(batch["lengths"]),
        patterns.document(batch["lengths"]),
        patterns.causal_blockwise(batch["lengths"]),
        patterns.prefix_lm_document(list(zip(batch["prefix"], batch["lengths"], strict=True))),
        patterns.global_sliding_window(8192, 16, 512, 512),
    ]
    for mask in usual:
        exact, by_extrema = (
            BlockMap.from_mask(mask, 128, 128, method=method).kinds for method in METHODS.names()
        )
        assert_equal(by_extrema == EMPTY, exact == EMPTY)


def test_an_unknown_method_lists_the_known_ones():
    with pytest.raises(UnknownNameError, match="unknown block map method 'fast'; known: exact, extrema"):
        BlockMap.from_mask(patterns.causal(4), 2, 2, method="fast")


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((0, 2), "block_rows must be >= 1, got 0"),
        ((2, -1), "block_keys must be >= 1"),
        ((2, 2.0), "block_keys must be an"),
    ],
)
def test_block_sizes_below_one_are_refused(sizes, words):
    with pytest.raises(MaskError, match=words):
        BlockMap.from_mask(patterns.causal(4), *sizes)


@pytest.mark.parametrize("method", ["exact", "extrema"])
def test_blocks_beyond_any_integer_width_hold_the_whole_mask(method):
    blocks = BlockMap.from_mask(patterns.causal(4), 10**20, 10**20, method=method)
    assert blocks.kinds.tolist() == [[[[PARTIAL]]]]
    assert blocks.block_rows == 10**20
