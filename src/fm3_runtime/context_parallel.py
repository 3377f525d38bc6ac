"""Context parallelism: one mask a batch, planned once, shared by every layer."""

from __future__ import annotations

from hashlib import sha256
from types import TracebackType

import torch
import torch.distributed

from fm3_comm import ExchangeBackend, connect, make_exchange, routes
from fm3_core import (
    Cluster,
    ColumnMask,
    Exchange,
    MaskError,
    PartitionError,
    PlanError,
    UnknownNameError,
    needs,
)
from fm3_core.check import require_int
from fm3_planner import (
    CostWeights,
    Planner,
    PlanProblem,
    PlanResult,
    StepSpeeds,
    advise_chunk_size,
    balanced_chunk_size,
    planners,
)
from fm3_planner import plan as solve
from fm3_planner.planning import DEFAULT_PLANNER
from fm3_runtime.plan_cache import PlanCache
from fm3_runtime.step import Step

GRADIENT_WIRES: dict[str, torch.dtype | None] = {"float32": None, "bfloat16": torch.bfloat16}
"""What partial dK and dV travel as; None is what they were accumulated in, float64 for float64 inputs."""

CACHED_PLANS = 8


class ContextParallel:
    """One rank's view of a group of ranks that share the tokens of each batch.

    Args:
        group: a torch.distributed group; None is the default group, or one rank where none is initialised.
        planner: a planner's name or object; it must be the same on every rank.
        backend: "auto" (torch_dist in a group, loopback for one rank), a backend's name, or this rank's
            handle of a backend that is open already, as `fm3_comm.loopback.run` hands out; a handle is not
            closed by `close`.
        chunk_size: tokens of the chunks that the planner moves; None chooses for each mask: with `speeds` by
            `fm3_planner.advise_chunk_size`, which plans with several sizes, without by
            `fm3_planner.balanced_chunk_size`, which looks at balance only and plans once.
        gradient_wire: "float32" or "bfloat16", what partial gradients of K and V travel as; sums are float32
            anyway.
        ranks_per_node: ranks of a node, None for all.
        route: "flat", chunks go from their owners directly, or "hierarchical", once to each other node and on
            from there; a name in `fm3_comm.routes`.
        overlap: whether attention works on keys that are here while others are on their way, and gradients
            leave while others are still computed. With `deterministic` the results are the same bits.
        cost: what a kernel block costs, of a calibration say; None for the assumptions of `CostWeights`.
        speeds: of compute and links, for the choice of chunk sizes; None where they are not known.

    Raises:
        UnknownNameError: an unknown backend, planner, gradient wire or route; it lists the known ones.
        PlanError: `planner`, `cost` or `speeds` is of another kind.
    """

    def __init__(
        self,
        group: torch.distributed.ProcessGroup | None = None,
        planner: str | Planner = DEFAULT_PLANNER,
        backend: str | ExchangeBackend = "auto",
        chunk_size: int | None = None,
        gradient_wire: str = "float32",
        *,
        ranks_per_node: int | None = None,
        route: str = "flat",
        overlap: bool = True,
        cost: CostWeights | None = None,
        speeds: StepSpeeds | None = None,
    ) -> None:
        """Open the backend."""
        routes.get(route)
        if not isinstance(gradient_wire, str) or gradient_wire not in GRADIENT_WIRES:
            raise UnknownNameError(
                f"unknown gradient_wire {gradient_wire!r}; known: {', '.join(GRADIENT_WIRES)}"
            )
        if isinstance(planner, str):
            planners.get(planner)
        elif not callable(getattr(planner, "assign", None)):
            raise PlanError(f"planner must be a name or an object with assign(problem), got {planner!r}")
        if not isinstance(cost, CostWeights | None):
            raise PlanError(f"cost must be CostWeights or None, got {type(cost).__name__}")
        if not isinstance(speeds, StepSpeeds | None):
            raise PlanError(f"speeds must be StepSpeeds or None, got {type(speeds).__name__}")
        if not isinstance(backend, str | ExchangeBackend):
            raise UnknownNameError(f"backend must be a name or a handle of an open backend, got {backend!r}")
        if chunk_size is not None:
            require_int("chunk_size", chunk_size, minimum=1, error=PartitionError)
        self.planner = planner
        self.chunk_size = chunk_size
        self.route = route
        self.overlap = overlap
        self.wire_dtype = GRADIENT_WIRES[gradient_wire]
        self.backend = connect(group, backend=backend) if isinstance(backend, str) else backend
        self.cost = CostWeights() if cost is None else cost
        self.speeds = speeds
        self._opened_it = self.backend not in (backend, group)
        self.cluster = Cluster(self.backend.num_ranks, ranks_per_node)
        self._cache: PlanCache[tuple[PlanResult, Exchange]] = PlanCache(CACHED_PLANS)

    @property
    def rank(self) -> int:
        """This rank."""
        return self.backend.rank

    @property
    def num_ranks(self) -> int:
        """Ranks that share the tokens."""
        return self.backend.num_ranks

    def plan(self, mask: ColumnMask, result: PlanResult | None = None, verify: bool = False) -> Step:
        """Plan one batch; every layer's attention takes the step that this returns.

        Planning is a function of the mask's integers, so ranks agree without communication. The last few
        plans are kept by the mask's fingerprint.

        Args:
            mask: the whole sequence's mask, with as many rows as keys; the same on every rank.
            result: a plan made earlier, in a data loader say; it must be for this mask and this many ranks.
            verify: first compare what the ranks hold (one small all-gather), so that ranks with different
                masks or plans stop with a message and not with a hang.

        Raises:
            MaskError: rows and keys differ, or, with verify, the ranks' masks do.
            PlanError: `result` was made for another mask or another number of ranks.
            PartitionError: fewer tokens than ranks.
        """
        if not isinstance(mask, ColumnMask):
            raise MaskError(f"plan takes a ColumnMask, got {type(mask).__name__}; planning is host work")
        if mask.num_rows != mask.num_keys:
            raise MaskError(
                f"context parallelism shares one sequence: num_rows={mask.num_rows} and "
                f"num_keys={mask.num_keys} differ"
            )
        if not isinstance(result, PlanResult | None):
            raise PlanError(f"result must be a PlanResult or None, got {type(result).__name__}")
        planned, exchange = self._planned(mask) if result is None else self._given(mask, result)
        if verify:
            self._verify(mask, planned)
        return Step(
            mask=mask,
            result=planned,
            exchange=exchange,
            backend=self.backend,
            wire_dtype=self.wire_dtype,
            overlap=self.overlap,
        )

    def problem(self, mask: ColumnMask, chunk_size: int | None = None) -> PlanProblem:
        """Return the planning problem that `plan` solves for `mask`.

        Args:
            mask: the whole sequence's mask.
            chunk_size: tokens of a chunk; None takes this object's, or chooses.
        """
        if mask.num_rows < self.num_ranks:
            raise PartitionError(
                f"{mask.num_rows} tokens cannot be shared by {self.num_ranks} ranks: more ranks than tokens"
            )
        return PlanProblem.from_mask(
            mask,
            chunk_size=chunk_size or self.chunk_size or self._chosen_chunk_size(mask),
            num_ranks=self.num_ranks,
            ranks_per_node=self.cluster.ranks_per_node,
            cost=self.cost,
        )

    def _chosen_chunk_size(self, mask: ColumnMask) -> int:
        if self.speeds is None:
            return balanced_chunk_size(mask, num_ranks=self.num_ranks, cost=self.cost)
        return advise_chunk_size(
            mask,
            num_ranks=self.num_ranks,
            ranks_per_node=self.cluster.ranks_per_node,
            planner=self.planner,
            cost=self.cost,
            speeds=self.speeds,
        ).chunk_size

    def __enter__(self) -> ContextParallel:
        """Return itself; leaving the block closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; on an error first tell the other ranks, which stop with it instead of waiting."""
        if error is not None:
            self.backend.abort(f"{type(error).__name__}: {error}")
        self.close()

    def close(self) -> None:
        """Release the backend that this object opened."""
        if self._opened_it:
            self.backend.close()

    def _planned(self, mask: ColumnMask) -> tuple[PlanResult, Exchange]:
        def make() -> tuple[PlanResult, Exchange]:
            problem = self.problem(mask)
            result = solve(problem, planner=self.planner)
            return result, make_exchange(result.partition, problem.needs, self.cluster, self.route)

        return self._cache.get(mask.fingerprint, make)

    def _given(self, mask: ColumnMask, result: PlanResult) -> tuple[PlanResult, Exchange]:
        reasons = []
        if not result.was_made_for(mask):
            reasons.append(
                f"its mask's fingerprint is {result.fingerprint[:12]}, this mask's {mask.fingerprint[:12]}"
            )
        if result.partition.num_tokens != mask.num_rows:
            reasons.append(f"it places {result.partition.num_tokens} tokens, the mask has {mask.num_rows}")
        if result.cluster != self.cluster:
            reasons.append(f"it was made for {result.cluster}, this group is {self.cluster}")
        if reasons:
            raise PlanError("the plan does not fit: " + "; ".join(reasons))
        needed = needs(mask, chunk_size=result.partition.chunk_size)
        return result, make_exchange(result.partition, needed, self.cluster, self.route)

    def _verify(self, mask: ColumnMask, result: PlanResult) -> None:
        chunks = repr((self.route, result.partition.chunk_size, result.partition.chunks_by_rank)).encode()
        held = [
            text.split() for text in self.backend.share(f"{mask.fingerprint} {sha256(chunks).hexdigest()}")
        ]
        masks, plans = [first for first, _ in held], [second for _, second in held]
        if len(set(masks)) > 1:
            raise MaskError(f"the ranks hold different masks: {_who_holds_what(masks)}")
        if len(set(plans)) > 1:
            raise PlanError(f"the ranks hold one mask but different plans: {_who_holds_what(plans)}")


def _who_holds_what(fingerprints: list[str]) -> str:
    """Group the ranks by what they hold, in the order of the first rank of each group."""
    groups: dict[str, list[str]] = {}
    for rank, fingerprint in enumerate(fingerprints):
        groups.setdefault(fingerprint, []).append(str(rank))
    return "; ".join(
        f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(ranks)}: {fingerprint[:12]}"
        for fingerprint, ranks in groups.items()
    )
