"""Which chunk size: small chunks balance better, large ones plan faster and cross nodes less.

The choice is a function of its arguments, in integers: ranks that hold the same mask choose alike.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from fm3_core.check import require_int
from fm3_core.errors import PlanError
from fm3_core.mask import ColumnMask
from fm3_planner.base import Planner
from fm3_planner.bounds import largest_load_bound
from fm3_planner.planning import DEFAULT_PLANNER, plan
from fm3_planner.problem import PlanProblem
from fm3_planner.result import PlanResult
from fm3_planner.weights import CostWeights, chunk_weights

CHUNKS_PER_RANK = (1, 2, 4, 8, 16, 32)
MAX_CHUNKS = 4096
_DEFAULT_COST = CostWeights()


@dataclass(frozen=True, kw_only=True)
class StepSpeeds:
    """Integer speeds that turn a plan's figures into picoseconds of one layer, forward and backward.

    `Calibration.unit_femtoseconds` is the measured time of a unit of a calibration's cost weights.

    The defaults are assumptions for a Hopper GPU: a matrix product of a 128 x 128 block and head dim 128 is
    4.2 million multiplications and additions, at 500 T/s 8,400 ps, which default weights count as 10 units;
    NVLink moves 400 GB/s a rank, the network 50 GB/s a rank.

    Attributes:
        unit_femtoseconds: time of a unit of cost.
        rank_bytes_per_second: what a rank receives within its node.
        node_bytes_per_second: what a rank receives from other nodes.

    Raises:
        PlanError: a value is not an integer >= 1.
    """

    unit_femtoseconds: int = 840_000
    rank_bytes_per_second: int = 400 * 10**9
    node_bytes_per_second: int = 50 * 10**9

    def __post_init__(self) -> None:
        """Validate every value."""
        for name in ("unit_femtoseconds", "rank_bytes_per_second", "node_bytes_per_second"):
            require_int(f"StepSpeeds.{name}", getattr(self, name), minimum=1, error=PlanError)


@dataclass(frozen=True, kw_only=True)
class ChunkOption:
    """One chunk size and the plan that it allows.

    Attributes:
        chunk_size: tokens of a chunk.
        num_chunks: chunks in all.
        result: the plan; `result.stats` says what planning took, which the choice does not look at.
        predicted_picoseconds: compute of the slowest rank, then the largest share of traffic; see
            `advise_chunk_size`.
        is_on_frontier: whether no other option is at least as good in load, traffic between nodes and number
            of chunks, and better in one.
    """

    chunk_size: int
    num_chunks: int
    result: PlanResult
    predicted_picoseconds: int
    is_on_frontier: bool


@dataclass(frozen=True, kw_only=True)
class ChunkAdvice:
    """The choice with its reason.

    Attributes:
        chunk_size: the chosen one.
        reason: why, one sentence.
        options: every size that was looked at, smallest first.
    """

    chunk_size: int
    reason: str
    options: tuple[ChunkOption, ...]

    @property
    def frontier(self) -> tuple[ChunkOption, ...]:
        """The options that no other one beats."""
        return tuple(option for option in self.options if option.is_on_frontier)

    @property
    def chosen(self) -> ChunkOption:
        """The option of the chosen size."""
        return next(option for option in self.options if option.chunk_size == self.chunk_size)


def advise_chunk_size(
    mask: ColumnMask,
    *,
    num_ranks: int,
    ranks_per_node: int | None = None,
    block: int = 128,
    chunk_sizes: Sequence[int] | None = None,
    planner: str | Planner = DEFAULT_PLANNER,
    cost: CostWeights = _DEFAULT_COST,
    speeds: StepSpeeds | None = None,
    query_heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    element_bytes: int = 2,
) -> ChunkAdvice:
    """Plan with several chunk sizes and choose one.

    Predicted is the load of the slowest rank, plus what the busiest rank receives by the speed within a node,
    plus an equal share of the traffic between nodes by the speed between nodes: nothing overlaps. Keys and
    values travel once in forward and once in backward, where their gradients travel back as well: three times
    the bytes of `PlanCost`. The largest size within one percent of the least prediction is chosen, as
    fewer chunks plan faster and make longer messages.

    Args:
        mask: what is attended; as many rows as keys.
        num_ranks: ranks that share the sequence.
        ranks_per_node: ranks of a node, None for one node.
        block: rows of the kernel's block; sizes are multiples of it where the sequence is long enough.
        chunk_sizes: the sizes to look at; None: those that give a rank 1, 2, 4, 8, 16 and 32 chunks.
        planner: who plans, a name or a planner.
        cost: what a kernel block costs.
        speeds: how figures become time; None: assumptions, see `StepSpeeds`.
        query_heads: as in `PlanProblem.from_mask`.
        kv_heads: as in `PlanProblem.from_mask`.
        head_dim: as in `PlanProblem.from_mask`.
        element_bytes: as in `PlanProblem.from_mask`.

    Raises:
        PlanError: there are fewer tokens than ranks, an argument breaks its rule, or a size gives fewer
            chunks than ranks.
    """
    num_ranks = require_int("num_ranks", num_ranks, minimum=1, error=PlanError)
    block = require_int("block", block, minimum=1, error=PlanError)
    speeds = StepSpeeds() if speeds is None else speeds
    sizes = (
        default_chunk_sizes(mask.num_rows, num_ranks, block)
        if chunk_sizes is None
        else sorted({require_int("chunk size", size, minimum=1, error=PlanError) for size in chunk_sizes})
    )
    if not sizes:
        raise PlanError("chunk_sizes must name at least one size, got none")
    results = [
        plan(
            PlanProblem.from_mask(
                mask,
                chunk_size=size,
                num_ranks=num_ranks,
                ranks_per_node=ranks_per_node,
                cost=cost,
                query_heads=query_heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                element_bytes=element_bytes,
            ),
            planner,
        )
        for size in sizes
    ]
    options = tuple(
        ChunkOption(
            chunk_size=size,
            num_chunks=result.partition.num_chunks,
            result=result,
            predicted_picoseconds=_predicted(result, speeds),
            is_on_frontier=not any(_beats(other, result) for other in results),
        )
        for size, result in zip(sizes, results, strict=True)
    )
    least = min(option.predicted_picoseconds for option in options)
    near = [option for option in options if 100 * option.predicted_picoseconds <= 101 * least]
    chosen = max(near, key=lambda option: option.chunk_size)
    return ChunkAdvice(chunk_size=chosen.chunk_size, reason=_reason(chosen, options, least), options=options)


def balanced_chunk_size(
    mask: ColumnMask,
    *,
    num_ranks: int,
    block: int = 128,
    cost: CostWeights = _DEFAULT_COST,
    slack: float = 0.02,
) -> int:
    """Return the largest default size whose compute bound is within `slack` of the average load.

    No plan is made and no need is looked at: a few milliseconds, for code that must choose a size for every
    batch. Where no size is that good, the size with the least bound is returned, of equal ones the largest.

    Args:
        mask: what is attended; as many rows as keys.
        num_ranks: ranks that share the sequence.
        block: rows of the kernel's block, as in `default_chunk_sizes`.
        cost: what a kernel block costs.
        slack: how far above the average the bound may be, >= 0; read as the decimal that is written.

    Raises:
        PlanError: there are fewer tokens than ranks, or an argument breaks its rule.
    """
    num_ranks = require_int("num_ranks", num_ranks, minimum=1, error=PlanError)
    block = require_int("block", block, minimum=1, error=PlanError)
    if isinstance(slack, bool) or not isinstance(slack, numbers.Real) or not 0 <= slack < math.inf:
        raise PlanError(f"slack must be a finite number >= 0, got {slack!r}")
    most = 1 + Fraction(str(float(slack)))
    looked_at = []
    for size in reversed(default_chunk_sizes(mask.num_rows, num_ranks, block)):
        weights = chunk_weights(mask, chunk_size=size, cost=cost, query_heads=mask.heads)
        bound = largest_load_bound(weights, num_ranks).value
        if bound * num_ranks <= most * sum(weights):
            return size
        # Blocks start anew at each chunk, so sums differ by size: bounds are compared as shares.
        looked_at.append((Fraction(bound * num_ranks, sum(weights)), -size))
    return -min(looked_at)[1]


def default_chunk_sizes(num_tokens: int, num_ranks: int, block: int = 128) -> list[int]:
    """Return the sizes that give a rank about 1, 2, 4, 8, 16 and 32 chunks, ascending.

    They are multiples of `block` where that leaves every rank a chunk, and make at most `MAX_CHUNKS` chunks
    where larger ones exist.

    Raises:
        PlanError: there are fewer tokens than ranks.
    """
    if num_tokens < num_ranks:
        raise PlanError(f"{num_tokens} tokens on {num_ranks} ranks: every rank owns at least one chunk")
    sizes = set()
    for per_rank in CHUNKS_PER_RANK:
        exact = -(-num_tokens // (num_ranks * per_rank))
        for size in (-(-exact // block) * block, exact // block * block, exact):
            if size and -(-num_tokens // size) >= num_ranks:
                sizes.add(size)
                break
    few = {size for size in sizes if -(-num_tokens // size) <= max(MAX_CHUNKS, num_ranks)}
    return sorted(few or {num_tokens // num_ranks})


def _predicted(result: PlanResult, speeds: StepSpeeds) -> int:
    cost, ranks = result.cost, result.cluster.num_ranks
    second = 10**12
    return (
        cost.compute * speeds.unit_femtoseconds // 1000
        + 3 * cost.buffer_bytes * second // speeds.rank_bytes_per_second
        + 3 * cost.node_traffic * second // (ranks * speeds.node_bytes_per_second)
    )


def _beats(one: PlanResult, other: PlanResult) -> bool:
    """Say whether `one` is nowhere worse and somewhere better in load, traffic between nodes and chunks."""
    mine, theirs = _figures_of(one), _figures_of(other)
    return mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))


def _figures_of(result: PlanResult) -> tuple[int, int, int]:
    return result.cost.compute, result.cost.node_traffic, result.partition.num_chunks


def _reason(chosen: ChunkOption, options: tuple[ChunkOption, ...], least: int) -> str:
    above = chosen.predicted_picoseconds / least - 1
    best = "the least predicted time" if above == 0 else f"within {above:.2%} of the least predicted time"
    gap = chosen.result.gaps.compute
    return (
        f"chunks of {chosen.chunk_size} tokens, {chosen.num_chunks} in all, have {best} of the "
        f"{len(options)} sizes looked at, and are the fewest of those within 1%; their load is {gap:.2%} "
        f"above its bound ({chosen.result.bounds.compute.reason})"
    )
