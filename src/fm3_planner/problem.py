"""The planning problem: what each chunk costs, who needs it, how many bytes it has, and on which cluster."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fm3_core.check import require_int
from fm3_core.cluster import Cluster
from fm3_core.errors import PlanError
from fm3_core.mask import ColumnMask
from fm3_core.workload import needs as needed_chunks
from fm3_planner.weights import CostWeights, chunk_weights

INT64_MAX = int(np.iinfo(np.int64).max)
DEFAULT_HEAD_DIM = 128
_DEFAULT_COST = CostWeights()
_COMPUTE = ("largest_sum", "sum_of_maxima")


@dataclass(frozen=True, eq=False)
class PlanProblem:
    """Chunks of tokens to be placed on ranks, as plain integers; all that a planner knows.

    The arrays are copied and read-only. Every sum that a plan can have fits int64; problems where one would
    not are refused.

    Attributes:
        weights: int64 [chunks], cost of each query chunk, >= 0.
        needs: bool [chunks, chunks], True at [i, j] where query chunk i needs key chunk j.
        chunk_bytes: int64 [chunks], bytes of each chunk's K and V, >= 0.
        cluster: the ranks and their nodes; no more ranks than chunks.
        num_tokens: tokens of the sequence.
        chunk_size: tokens of a chunk; the last chunk may be shorter.
        fingerprint: of the mask that the problem was made from; those of several masks are joined by "+"; ""
            for a problem that was made from no mask.
        weights_by_group: int64 [groups, chunks] whose sum over groups is `weights`, or None. Where given,
            ranks wait for each other after each group of layers: the compute load of a plan is the sum over
            groups of the largest load of a rank, not the largest sum.

    Raises:
        PlanError: a field breaks its rule; the message names the field, the index, the value and the rule.
    """

    weights: NDArray[np.int64]
    needs: NDArray[np.bool_]
    chunk_bytes: NDArray[np.int64]
    cluster: Cluster
    num_tokens: int
    chunk_size: int
    fingerprint: str = ""
    weights_by_group: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        """Validate and copy every field."""
        num_tokens = require_int("num_tokens", self.num_tokens, minimum=1, error=PlanError)
        chunk_size = require_int("chunk_size", self.chunk_size, minimum=1, error=PlanError)
        if not isinstance(self.cluster, Cluster):
            raise PlanError(f"cluster must be a Cluster, got {type(self.cluster).__name__}")
        num_chunks = _count_chunks(num_tokens, chunk_size, self.cluster)
        if not isinstance(self.fingerprint, str):
            raise PlanError(f"fingerprint must be a string, got {self.fingerprint!r}")
        object.__setattr__(self, "num_tokens", num_tokens)
        object.__setattr__(self, "chunk_size", chunk_size)
        object.__setattr__(self, "weights", _int64_vector("weights", self.weights, num_chunks))
        object.__setattr__(self, "chunk_bytes", _int64_vector("chunk_bytes", self.chunk_bytes, num_chunks))
        object.__setattr__(self, "needs", _bool_square("needs", self.needs, num_chunks))
        if self.weights_by_group is not None:
            groups = _groups("weights_by_group", self.weights_by_group, self.weights)
            object.__setattr__(self, "weights_by_group", groups)
        self._refuse_overflow()

    @property
    def groups(self) -> NDArray[np.int64]:
        """Weights of the groups of layers that end together, int64 [groups, chunks]; one group by default."""
        return self.weights[None, :] if self.weights_by_group is None else self.weights_by_group

    @property
    def num_chunks(self) -> int:
        """Number of chunks, the short last one included."""
        return len(self.weights)

    @property
    def num_ranks(self) -> int:
        """Number of ranks that the chunks are placed on."""
        return self.cluster.num_ranks

    @property
    def chunks_per_rank(self) -> tuple[int, int]:
        """Chunks that every rank owns at least, and how many ranks own one more."""
        return divmod(self.num_chunks, self.num_ranks)

    @classmethod
    def from_mask(
        cls,
        mask: ColumnMask,
        *,
        chunk_size: int,
        num_ranks: int,
        ranks_per_node: int | None = None,
        cost: CostWeights = _DEFAULT_COST,
        query_heads: int | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        element_bytes: int = 2,
    ) -> PlanProblem:
        """Make the problem of one attention layer; its batch entries share one placement.

        Args:
            mask: rows and keys are the same tokens, so there are as many of both.
            chunk_size: tokens of a chunk; the last may be shorter.
            num_ranks: ranks to place the chunks on, at most as many as chunks.
            ranks_per_node: ranks of a node, None for one node.
            cost: what a kernel block costs.
            query_heads: heads of q, a multiple of the mask's heads; None: as many as the mask has.
            kv_heads: heads of k and v, a divisor of query_heads; None: query_heads.
            head_dim: elements of one head of k and of v; None: 128.
            element_bytes: bytes of an element as it travels.

        Raises:
            PlanError: an argument breaks its rule, or the problem is not one (see the class).
        """
        return cls.from_masks(
            [(mask, 1, cost)],
            chunk_size=chunk_size,
            num_ranks=num_ranks,
            ranks_per_node=ranks_per_node,
            query_heads=query_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            element_bytes=element_bytes,
        )

    @classmethod
    def from_masks(
        cls,
        layers: Sequence[tuple[ColumnMask, int, CostWeights]],
        *,
        chunk_size: int,
        num_ranks: int,
        ranks_per_node: int | None = None,
        query_heads: int | None = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        element_bytes: int = 2,
        compute: str = "largest_sum",
    ) -> PlanProblem:
        """Make one problem of a model whose layers have different masks: one placement for all layers.

        Weights are summed over the layers. A chunk needs what it needs in any layer. `chunk_bytes` are those
        of one layer, as every layer reuses the same buffers. A mask of batch 1 beside masks of a larger batch
        stands for every batch entry.

        Args:
            layers: (mask, number of layers that have it, cost of its kernel blocks), at least one.
            chunk_size: tokens of a chunk; the last may be shorter.
            num_ranks: ranks to place the chunks on, at most as many as chunks.
            ranks_per_node: ranks of a node, None for one node.
            query_heads: heads of q, a multiple of each mask's heads; None: the most heads that a mask has.
            kv_heads: heads of k and v, a divisor of query_heads; None: query_heads.
            head_dim: elements of one head of k and of v; None: 128.
            element_bytes: bytes of an element as it travels.
            compute: "largest_sum": the load is the largest sum over all layers, right where ranks may run
                ahead of each other; "sum_of_maxima": the sum over `layers` of the largest load of a layer,
                right where every layer's exchange makes them wait.

        Raises:
            PlanError: an argument breaks its rule, or the problem is not one (see the class).
        """
        if compute not in _COMPUTE:
            raise PlanError(f"compute must be one of {', '.join(_COMPUTE)}, got {compute!r}")
        checked = [_checked_layer(index, layer) for index, layer in enumerate(layers)]
        if not checked:
            raise PlanError("layers must name at least one (mask, num_layers, cost), got none")
        chunk_size = require_int("chunk_size", chunk_size, minimum=1, error=PlanError)
        cluster = Cluster(
            require_int("num_ranks", num_ranks, minimum=1, error=PlanError),
            ranks_per_node,
        )
        num_tokens, batch = _common_shape([mask for mask, _, _ in checked])
        most_heads = max(mask.heads for mask, _, _ in checked)
        query_heads = _optional_int("query_heads", query_heads, most_heads)
        kv_heads = _optional_int("kv_heads", kv_heads, query_heads)
        head_dim = _optional_int("head_dim", head_dim, DEFAULT_HEAD_DIM)
        element_bytes = require_int("element_bytes", element_bytes, minimum=1, error=PlanError)
        if query_heads % kv_heads:
            raise PlanError(f"query_heads={query_heads} must be a multiple of kv_heads={kv_heads}")
        num_chunks = _count_chunks(num_tokens, chunk_size, cluster)

        weights_of_layers = []
        needs = np.zeros((num_chunks, num_chunks), dtype=np.bool_)
        for index, (mask, num_layers, cost) in enumerate(checked):
            if query_heads % mask.heads:
                raise PlanError(
                    f"query_heads={query_heads} must be a multiple of the {mask.heads} heads of mask {index}"
                )
            times = num_layers * (batch // mask.batch)
            of_mask = chunk_weights(mask, chunk_size=chunk_size, cost=cost, query_heads=query_heads)
            weights_of_layers.append([times * weight for weight in of_mask])
            needs |= needed_chunks(mask, chunk_size=chunk_size)

        weights = [sum(of_chunk) for of_chunk in zip(*weights_of_layers, strict=True)]
        token_bytes = 2 * batch * kv_heads * head_dim * element_bytes
        lengths = [min(chunk_size, num_tokens - chunk * chunk_size) for chunk in range(num_chunks)]
        return cls(
            weights=weights,  # type: ignore[arg-type]  # integers of any size, narrowed with a check
            needs=needs,
            chunk_bytes=[length * token_bytes for length in lengths],  # type: ignore[arg-type]  # likewise
            cluster=cluster,
            num_tokens=num_tokens,
            chunk_size=chunk_size,
            fingerprint="+".join(dict.fromkeys(mask.fingerprint for mask, _, _ in checked)),
            weights_by_group=weights_of_layers if compute == "sum_of_maxima" else None,  # type: ignore[arg-type]
        )

    def _refuse_overflow(self) -> None:
        """Refuse a problem with a plan whose load or traffic would not fit int64."""
        total_weight = sum(self.weights.tolist())
        if total_weight > INT64_MAX:
            raise PlanError(f"weights sum to {total_weight}, more than int64 holds ({INT64_MAX})")
        total_bytes = sum(self.chunk_bytes.tolist()) * self.num_ranks
        if total_bytes > INT64_MAX:
            raise PlanError(
                f"chunk_bytes sum to {total_bytes} over {self.num_ranks} ranks, more than int64 holds "
                f"({INT64_MAX})"
            )


def _count_chunks(num_tokens: int, chunk_size: int, cluster: Cluster) -> int:
    """Return how many chunks the tokens are, or raise if some rank would get none."""
    num_chunks = -(-num_tokens // chunk_size)
    if num_chunks < cluster.num_ranks:
        raise PlanError(
            f"{num_tokens} tokens in chunks of {chunk_size} are {num_chunks} chunks, fewer than the "
            f"{cluster.num_ranks} ranks; every rank owns at least one chunk"
        )
    return num_chunks


def _int64_vector(name: str, values: Any, length: int) -> NDArray[np.int64]:
    """Return a read-only int64 copy of `length` integers >= 0, or raise naming the first that is wrong."""
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "iu":
            raise PlanError(f"{name} must be integers, got an array of {values.dtype}")
        shape: tuple[int, ...] = values.shape
        entries: list[Any] = values.tolist() if values.ndim == 1 else []
    else:
        try:
            entries = list(values)
        except TypeError:
            raise PlanError(f"{name} must be a vector of integers, got {values!r}") from None
        shape = (len(entries),)
    if shape != (length,):
        raise PlanError(f"{name} must have shape [{length}], one value a chunk, got {list(shape)}")
    wrong = [
        index
        for index, value in enumerate(entries)
        if isinstance(value, bool)
        or not isinstance(value, numbers.Integral)
        or not 0 <= int(value) <= INT64_MAX
    ]
    if wrong:
        raise PlanError(
            f"{name}[{wrong[0]}] must be an integer in 0..{INT64_MAX}, got {entries[wrong[0]]!r} "
            f"({len(wrong)} of {length} are wrong)"
        )
    copy = np.array([int(value) for value in entries], dtype=np.int64)
    copy.flags.writeable = False
    return copy


def _groups(name: str, values: Any, weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a read-only int64 matrix [groups, chunks] that sums to the weights, or raise."""
    try:
        rows = list(values)
    except TypeError:
        raise PlanError(f"{name} must be a matrix of integers, got {values!r}") from None
    if not rows:
        raise PlanError(f"{name} must have at least one group, got none")
    checked = [_int64_vector(f"{name}[{index}]", row, len(weights)) for index, row in enumerate(rows)]
    for chunk, of_chunk in enumerate(zip(*(row.tolist() for row in checked), strict=True)):
        if sum(of_chunk) != weights[chunk]:
            raise PlanError(
                f"{name} of chunk {chunk} sum to {sum(of_chunk)}, the chunk's weight is {weights[chunk]}"
            )
    groups = np.stack(checked)
    groups.flags.writeable = False
    return groups


def _bool_square(name: str, values: Any, length: int) -> NDArray[np.bool_]:
    """Return a read-only copy of a bool matrix [length, length], or raise."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise PlanError(
            f"{name} must be a bool matrix [{length}, {length}], got rows of unequal length"
        ) from None
    if array.dtype != np.bool_:
        raise PlanError(f"{name} must be bool, got {array.dtype}")
    if array.shape != (length, length):
        raise PlanError(f"{name} must have shape [{length}, {length}], got {list(array.shape)}")
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def _optional_int(name: str, value: int | None, default: int) -> int:
    return default if value is None else require_int(name, value, minimum=1, error=PlanError)


def _checked_layer(index: int, layer: Any) -> tuple[ColumnMask, int, CostWeights]:
    if not isinstance(layer, tuple) or len(layer) != 3:
        raise PlanError(f"layers[{index}] must be (mask, num_layers, cost), got {type(layer).__name__}")
    mask, num_layers, cost = layer
    if not isinstance(mask, ColumnMask):
        raise PlanError(f"mask {index} must be a ColumnMask, got {type(mask).__name__}")
    if not isinstance(cost, CostWeights):
        raise PlanError(f"cost of mask {index} must be a CostWeights, got {type(cost).__name__}")
    if mask.num_rows != mask.num_keys:
        raise PlanError(
            f"mask {index} has {mask.num_rows} rows and {mask.num_keys} keys; planning needs as many rows as "
            f"keys, the same tokens"
        )
    if 0 in (mask.batch, mask.heads):
        raise PlanError(
            f"mask {index} has batch {mask.batch} and {mask.heads} heads; there is nothing to plan"
        )
    return mask, require_int(f"num_layers of mask {index}", num_layers, minimum=1, error=PlanError), cost


def _common_shape(masks: list[ColumnMask]) -> tuple[int, int]:
    """Return the tokens and the batch that all masks share, or raise naming the first that differs."""
    num_tokens, batch = masks[0].num_rows, max(mask.batch for mask in masks)
    for index, mask in enumerate(masks):
        if mask.num_rows != num_tokens:
            raise PlanError(
                f"mask {index} has {mask.num_rows} tokens, mask 0 has {num_tokens}; all must have as many"
            )
        if mask.batch not in (1, batch):
            raise PlanError(
                f"mask {index} has batch {mask.batch}; with a largest batch of {batch} it must be that or 1"
            )
    if num_tokens == 0:
        raise PlanError("the masks have no tokens; there is nothing to place")
    return num_tokens, batch
