"""`Variant`: a kernel without one of its ideas, as edits of the sources in csrc.

An edit names the text that it replaces; text that is not there exactly once is an error, so a variant cannot
outlive the code that it was written for.
"""
# ruff: noqa: E501 - lines of C++ have up to 120 characters

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CSRC = Path(__file__).parents[2] / "csrc"


@dataclass(frozen=True)
class Edit:
    """One text of one source in place of another."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What a variant lacks, and how.

    Attributes:
        name: of the folder that it is built into, and of its results.
        lacks: the idea, as the results' table names it.
        instead: what it does in its place.
        predicted: what the idea is thought to give, said before it was measured.
        edits: of sources in csrc.
        listed: whether the mask's map of blocks holds lists of blocks; see `VARIANTS`.
        backward: whether it is the backward kernel that is changed.
    """

    name: str
    lacks: str
    instead: str
    predicted: str
    edits: tuple[Edit, ...]
    listed: bool = False
    backward: bool = False

    def sources(self) -> dict[str, str]:
        """Return the changed sources by file.

        Raises:
            ValueError: a text to replace is not in its file exactly once.
        """
        changed: dict[str, str] = {}
        for edit in self.edits:
            text = changed.get(edit.file) or (CSRC / edit.file).read_text(encoding="utf-8")
            if (count := text.count(edit.old)) != 1:
                raise ValueError(
                    f"variant {self.name}: {edit.file} must have its text once, it has it {count} times:\n{edit.old}"
                )
            changed[edit.file] = text.replace(edit.old, edit.new)
        return changed


STATIC_SCHEDULE = Variant(
    name="static_schedule",
    lacks="preemptive scheduler",
    instead="CTA c takes tiles c, c + CTAs, c + 2 CTAs ... of the same order",
    predicted="+2 % causal, +5 to +10 % documents and share question, 0 full",
    edits=(
        Edit(
            "attention/fwd_generator.cuh",
            """      int taken = 0;
      if (lane_ == 0) taken = atomicAdd(params_.next_tile, 1);
      queue_tile(locate_tile(params_, index));
      index = static_cast<int>(gridDim.x) + __shfl_sync(~0u, taken, 0);
""",
            """      queue_tile(locate_tile(params_, index));
      index += static_cast<int>(gridDim.x);
""",
        ),
    ),
)

ALL_COMPARES = Variant(
    name="all_compares",
    lacks="span kinds",
    instead="every cut block compares its rows with all four vectors",
    predicted="+3 % causal at 8K, +5 to +10 % eviction, +10 % window and share question at 8K, 0 full",
    edits=(
        Edit(
            "attention/block_classify.cuh",
            "  return visible | cuts;\n",
            "  return visible | (cuts != 0 ? kVectorFlags : 0);\n",
        ),
    ),
)

NO_ROW_SKIPPING = Variant(
    name="no_row_skipping",
    lacks="sub-block skipping",
    instead="a warpgroup computes a block that its 64 rows do not see, where the other warpgroup sees it",
    predicted="+1 to +2 %: both share every stage, a block takes as long as the slower one; power is what is saved",
    edits=(
        Edit(
            "attention/block_classify.cuh",
            "    flags |= classify_rows(left, right, start, min(start + 64, num_rows)) << (kFlagBits * group);\n  }\n",
            """    flags |= classify_rows(left, right, start, min(start + 64, num_rows)) << (kFlagBits * group);
  }
#pragma unroll
  for (int group = 0; group < kWarpgroups; ++group) {
    const bool unseen = ((flags >> (kFlagBits * group)) & kVisibleFlags) == 0;
    if (flags != 0 && unseen) flags |= (kVisibleFlags | kVectorFlags) << (kFlagBits * group);
  }
""",
        ),
    ),
)

# The map of blocks to keep, [.., row blocks, key blocks], has eight bytes a block here: the row block's list of (key
# block, flags). The pass that counts blocks fills it, once a mask; the generator copies it.
PREPARED_LISTS = Variant(
    name="prepared_lists",
    lacks="generator in the kernel",
    instead="the lists of blocks, with their flags, were written to memory once a mask, outside the clock",
    predicted="0: the generator runs ahead; +-1 % at 8K where lists are short",
    listed=True,
    edits=(
        Edit(
            "attention/mask_prepare.cu",
            """  for (int key_block = threadIdx.x % 32; key_block < num_key_blocks; key_block += 32) {
    if (keep != nullptr && keep[unit * num_key_blocks + key_block] == 0) continue;
    if (classify_block<kWarpgroups>(head_extrema, key_block, 64 * kWarpgroups * row_block, num_rows) == 0) continue;
    first = min(first, key_block);
    last = key_block;
    ++count;
  }
""",
            """  auto* list = reinterpret_cast<uint2*>(const_cast<uint8_t*>(keep)) + unit * num_key_blocks;
  const int lane = threadIdx.x % 32;
  int listed = 0;
  for (int base = 0; base < num_key_blocks; base += 32) {
    const int key_block = base + lane;
    uint32_t flags = 0;
    if (key_block < num_key_blocks) {
      flags = classify_block<kWarpgroups>(head_extrema, key_block, 64 * kWarpgroups * row_block, num_rows);
    }
    const uint32_t lanes = __ballot_sync(~0u, flags != 0);
    if (flags != 0) {
      list[listed + __popc(lanes & ((1u << lane) - 1))] = make_uint2(key_block, flags);
      first = min(first, key_block);
      last = key_block;
      ++count;
    }
    listed += __popc(lanes);
  }
""",
        ),
        Edit(
            "attention/fwd_generator.cuh",
            """    const int4* extrema = params_.mask.extrema + scheduled.mask_head * params_.mask.num_key_blocks * 4;
    const int row_start = scheduled.tile.row_block * kConfig.block_rows();
    const uint8_t* keep = params_.mask.keep;
    if (keep != nullptr) {
      const int64_t line = scheduled.mask_head * params_.mask.num_row_blocks + scheduled.tile.row_block;
      keep += line * params_.mask.num_key_blocks;
    }
    for (int base = first; base <= last; base += kQueueEntries) {
      const int key_block = base + lane_;
      uint32_t flags = 0;
      if (key_block <= last && (keep == nullptr || keep[key_block] != 0)) {
        flags = classify_block<kConfig.consumer_warpgroups>(extrema, key_block, row_start, params_.num_rows);
      }
      if (__any_sync(~0u, flags != 0)) {
        uint32_t marks = (key_block == first ? BlockEntry::kFirst : 0) | (key_block == last ? BlockEntry::kLast : 0);
        if (flags != 0 && (all_arrived_ || has_arrived(params_.ready, key_block / params_.ready.blocks_per_chunk))) {
          marks |= BlockEntry::kArrived;
        }
        publish(scheduled.tile, flags != 0, {key_block | marks, flags});
      }
    }
""",
            """    const int64_t line = scheduled.mask_head * params_.mask.num_row_blocks + scheduled.tile.row_block;
    const uint2* list = reinterpret_cast<const uint2*>(params_.mask.keep) + line * params_.mask.num_key_blocks;
    const int count = scheduled.row_block.w;
    for (int base = 0; base < count; base += kQueueEntries) {
      const int place = base + lane_;
      const uint2 entry = place < count ? list[place] : make_uint2(0, 0);
      const uint32_t marks = (place == 0 ? BlockEntry::kFirst : 0) | (place == count - 1 ? BlockEntry::kLast : 0);
      publish(scheduled.tile, place < count, {entry.x | marks | BlockEntry::kArrived, entry.y});
    }
""",
        ),
    ),
)

EPILOGUE_APART = Variant(
    name="epilogue_apart",
    lacks="epilogue overlap",
    instead="a tile's last product and its store end before the next tile's first product begins",
    predicted="+5 to +10 % window, share question and documents at 8K, a quarter of that at 32K, 0 full",
    edits=(
        Edit(
            "attention/fwd_consumer.cuh",
            "    if (!sees_block()) return false;\n",
            "    if (!sees_block() || entry_.is_first()) return false;\n",
        ),
        Edit(
            "attention/fwd_consumer.cuh",
            "    if (pending_is_last_) store_output(tile_, softmax_, rows_.stage);\n",
            "    if (pending_is_last_) {\n      store_output(tile_, softmax_, rows_.stage);\n      finish_store();\n    }\n",
        ),
    ),
)

NO_PING_PONG = Variant(
    name="no_ping_pong",
    lacks="turns at issuing products",
    instead="the two warpgroups issue products whenever they can",
    predicted="+1 to +3 %",
    edits=(
        Edit(
            "attention/instances/fwd_bf16_dim128.cu",
            ".stages = 2}",
            ".stages = 2, .ping_pong = false}",
        ),
    ),
)

ANY_ORDER = Variant(
    name="any_order",
    lacks="order of additions to dQ",
    instead="sums are zeroed before, key blocks come heaviest first and add when they like",
    predicted="-2 to +2 % full and causal, +10 % share question at 8K, +3 % other sparse masks",
    backward=True,
    edits=(
        Edit("attention/bwd_generator.cuh", "      await_loader();\n    }\n", "    }\n"),
        Edit("attention/bwd_prepare.cu", "records[head_start + other].y;", "records[head_start + other].w;"),
        Edit(
            "attention/bwd_prepare.cu",
            "first > mine.y || (first == mine.y && other < mine.x)",
            "first > mine.w || (first == mine.w && other < mine.x)",
        ),
        Edit("attention/bwd_rows.cu", "is_set = turns[blockIdx.x] != 0;", "is_set = true;"),
        Edit(
            "attention/bwd_writer.cuh", "      await_turn(target);  // mostly before the block is done\n", ""
        ),
        Edit("attention/bwd_writer.cuh", "if (target.turn == 0) {", "if (false) {"),
        Edit("attention/bwd_writer.cuh", "      pass_turn(target.block);\n", ""),
        Edit(
            "bindings/backward.cpp",
            "  fm3::attention::prepare_rows(",
            """  const int64_t sums = static_cast<int64_t>(rows.batch) * rows.heads * rows.num_row_blocks * fm3::attention::kBwdRows;
  cudaMemsetAsync(pointer<float>(dq_sums), 0, 4 * sums * rows.head_dim, as_stream(stream));
  fm3::attention::prepare_rows(""",
        ),
    ),
)

VARIANTS = {
    variant.name: variant
    for variant in (
        STATIC_SCHEDULE,
        ALL_COMPARES,
        NO_ROW_SKIPPING,
        PREPARED_LISTS,
        EPILOGUE_APART,
        NO_PING_PONG,
    )
}
