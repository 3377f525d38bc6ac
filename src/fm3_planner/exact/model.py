"""An assignment problem in 0/1 variables and linear rows, in integers, before any solver sees it.

Variables: x[i, r], chunk i is on rank r; z[i, v], it is on node v; y[v, j], key chunk j is on node v or used
there; u[r, j], the same for a rank; one largest load a group of layers. Ranks of a node, and nodes of a size,
are interchangeable in everything that counts, so only the first labelling of each is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fm3_planner.bounds import node_capacity
from fm3_planner.goal import Figure
from fm3_planner.problem import PlanProblem

Terms = list[tuple[int, int]]
"""A linear form: (coefficient, variable)."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """lower <= form <= upper; None is no limit."""

    terms: Terms
    lower: int | None = None
    upper: int | None = None


@dataclass(kw_only=True)
class Model:
    """Integer variables with bounds, rows, one linear form that is minimised, and a point to start from."""

    upper: list[int] = field(default_factory=list)
    lower: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    objective: Terms = field(default_factory=list)
    objective_constant: int = 0
    hint: list[int] = field(default_factory=list)

    def variable(self, lower: int, upper: int, hint: int) -> int:
        """Add a variable and return its number."""
        self.lower.append(lower)
        self.upper.append(upper)
        self.hint.append(hint)
        return len(self.upper) - 1

    def value(self, values: list[int]) -> int:
        """Return the objective at a point."""
        return self.objective_constant + sum(
            coefficient * values[variable] for coefficient, variable in self.objective
        )


class Formulation:
    """The model of one problem; each goal builds it anew with what earlier goals allow.

    Args:
        problem: what is to be placed.
        owner: rank of each chunk in a plan that is feasible, relabelled to the kept labelling.
        bounds: a lower bound of the loads and the limits of earlier goals, by figure.
        max_buffer_bytes: the most bytes that a rank may receive, None for no limit.
    """

    def __init__(
        self,
        problem: PlanProblem,
        owner: list[int],
        *,
        allowed: dict[Figure, int],
        max_buffer_bytes: int | None,
    ) -> None:
        """Make variables and rows for the placement itself."""
        self.problem = problem
        self.owner = owner
        self.model = Model()
        self.on_rank = self._place()
        self._on_node: list[list[int]] | None = None
        if Figure.COMPUTE in allowed:
            self._limit_loads(allowed[Figure.COMPUTE])
        if Figure.NODE_TRAFFIC in allowed:
            terms, constant = self._node_traffic()
            self._add(terms, upper=allowed[Figure.NODE_TRAFFIC] - constant)
        self._rank_touches: NDArray[np.int64] | None = None
        if max_buffer_bytes is not None:
            self._limit_buffers(max_buffer_bytes)

    def minimise(self, figure: Figure, least: int) -> Model:
        """Make `figure` the objective, known to be at least `least`, and return the model."""
        if figure is Figure.COMPUTE:
            self.model.objective = self._largest_loads(least)
        else:
            terms, constant = self._node_traffic() if figure is Figure.NODE_TRAFFIC else self._rank_traffic()
            self.model.objective, self.model.objective_constant = terms, constant
            self._add(terms, lower=least - constant)
        return self.model

    def owners(self, values: list[int]) -> list[int]:
        """Return the rank of each chunk at a point of the model."""
        return [max(ranks, key=lambda rank: (values[ranks[rank]], -rank)) for ranks in self.on_rank]

    def _place(self) -> list[dict[int, int]]:
        """Add x: every chunk on one rank, counts of ranks at most one apart, labels as first used."""
        problem, model = self.problem, self.model
        per_rank, ranks_with_more = problem.chunks_per_rank
        order = heavy_first(problem)
        on_rank: list[dict[int, int]] = [{} for _ in order]
        for place, chunk in enumerate(order):
            for rank in range(problem.num_ranks):
                if label_is_kept(problem, rank, place):
                    on_rank[chunk][rank] = model.variable(0, 1, int(self.owner[chunk] == rank))
            self._add([(1, variable) for variable in on_rank[chunk].values()], lower=1, upper=1)
        for rank in range(problem.num_ranks):
            owned = [(1, ranks[rank]) for ranks in on_rank if rank in ranks]
            self._add(owned, lower=per_rank, upper=per_rank + bool(ranks_with_more))
        return on_rank

    def _loads(self, rank: int, weights: list[int]) -> Terms:
        return [
            (weight, ranks[rank])
            for weight, ranks in zip(weights, self.on_rank, strict=True)
            if weight and rank in ranks
        ]

    def _largest_loads(self, least: int) -> Terms:
        """Add the largest load of each group of layers and return their sum."""
        problem = self.problem
        objective: Terms = []
        for weights in problem.groups.tolist():
            loads = [0] * problem.num_ranks
            for chunk, rank in enumerate(self.owner):
                loads[rank] += weights[chunk]
            total = sum(weights)
            largest = self.model.variable(-(-total // problem.num_ranks), total, max(loads))
            for rank in range(problem.num_ranks):
                self._add([*self._loads(rank, weights), (-1, largest)], upper=0)
            objective.append((1, largest))
        self._add(objective, lower=least)
        return objective

    def _limit_loads(self, allowed: int) -> None:
        if len(self.problem.groups) == 1:
            for rank in range(self.problem.num_ranks):
                self._add(self._loads(rank, self.problem.weights.tolist()), upper=allowed)
        else:
            self._add(self._largest_loads(0), upper=allowed)

    def _nodes(self) -> list[list[int]]:
        """Add z, chunk i on node v, and return its variables."""
        if self._on_node is None:
            cluster = self.problem.cluster
            self._on_node = []
            for chunk, ranks in enumerate(self.on_rank):
                of_chunk = []
                for node in range(cluster.num_nodes):
                    members = [ranks[rank] for rank in cluster.ranks_of(node) if rank in ranks]
                    is_here = int(cluster.node_of(self.owner[chunk]) == node)
                    variable = self.model.variable(0, int(bool(members)), is_here)
                    self._add([*((1, member) for member in members), (-1, variable)], lower=0, upper=0)
                    of_chunk.append(variable)
                self._on_node.append(of_chunk)
        return self._on_node

    def _node_traffic(self) -> tuple[Terms, int]:
        nodes = self._nodes()
        owner = [self.problem.cluster.node_of(rank) for rank in self.owner]
        capacity = node_capacity(self.problem)
        touched = self._touches(self.problem.cluster.num_nodes, nodes, owner, capacity)
        return self._times_crossed(touched)

    def _rank_traffic(self) -> tuple[Terms, int]:
        return self._times_crossed(self._touched_ranks())

    def _touched_ranks(self) -> NDArray[np.int64]:
        if self._rank_touches is None:
            per_rank, ranks_with_more = self.problem.chunks_per_rank
            capacity = per_rank + bool(ranks_with_more)
            self._rank_touches = self._touches(self.problem.num_ranks, self.on_rank, self.owner, capacity)
        return self._rank_touches

    def _touches(
        self,
        num_places: int,
        on_place: list[list[int]] | list[dict[int, int]],
        owner: list[int],
        capacity: int,
    ) -> NDArray[np.int64]:
        """Add y, place p holds or uses key chunk j, and return its variables [places, chunks].

        A chunk's pins are its users and itself. Where the pins of another chunk are among them, that chunk's
        variable stands for all of them: documents need one row a place and chunk, not one a pair of chunks.
        """
        pins = self.problem.needs.T | np.eye(self.problem.num_chunks, dtype=np.bool_)
        touched = np.empty((num_places, len(pins)), dtype=np.int64)
        sizes = pins.sum(axis=1)
        done: list[int] = []
        for chunk in np.lexsort((np.arange(len(pins)), sizes)).tolist():
            members = np.flatnonzero(pins[chunk]).tolist()
            inner = self._largest_inside(pins, chunk, done)
            rest = members if inner is None else np.flatnonzero(pins[chunk] & ~pins[inner]).tolist()
            for place in range(num_places):
                is_touched = any(owner[member] == place for member in members)
                variable = self.model.variable(0, 1, int(is_touched))
                touched[place, chunk] = variable
                if inner is not None:
                    self._add([(1, int(touched[place, inner])), (-1, variable)], upper=0)
                for member in rest:
                    known = on_place[member]
                    if isinstance(known, list) or place in known:
                        self._add([(1, known[place]), (-1, variable)], upper=0)
            least = -(-len(members) // capacity)
            self._add([(1, int(variable)) for variable in touched[:, chunk]], lower=least)
            done.append(chunk)
        return touched

    @staticmethod
    def _largest_inside(pins: NDArray[np.bool_], chunk: int, done: list[int]) -> int | None:
        """Return the chunk of `done` with the most pins that are all pins of `chunk`, the last of equals."""
        if not done:
            return None
        inside = ~(pins[done] & ~pins[chunk]).any(axis=1)
        found = np.flatnonzero(inside)
        best = done[int(found[-1])] if len(found) else None
        return best if best is not None and pins[best].sum() > 1 else None

    def _times_crossed(self, touched: NDArray[np.int64]) -> tuple[Terms, int]:
        sizes: list[int] = self.problem.chunk_bytes.tolist()
        terms = [
            (size, int(variable))
            for chunk, size in enumerate(sizes)
            if size
            for variable in touched[:, chunk]
        ]
        return terms, -sum(sizes)

    def _limit_buffers(self, max_buffer_bytes: int) -> None:
        touched = self._touched_ranks()
        sizes: list[int] = self.problem.chunk_bytes.tolist()
        for rank in range(self.problem.num_ranks):
            received = [(size, int(touched[rank, chunk])) for chunk, size in enumerate(sizes) if size]
            own = [
                (-size, self.on_rank[chunk][rank])
                for chunk, size in enumerate(sizes)
                if size and rank in self.on_rank[chunk]
            ]
            self._add([*received, *own], upper=max_buffer_bytes)

    def _add(
        self, terms: Iterable[tuple[int, int]], *, lower: int | None = None, upper: int | None = None
    ) -> None:
        self.model.rows.append(Row(terms=list(terms), lower=lower, upper=upper))


def heavy_first(problem: PlanProblem) -> list[int]:
    """Return the chunks by descending weight, then by number: the order in which labels are given."""
    weights = problem.weights.tolist()
    return sorted(range(problem.num_chunks), key=lambda chunk: (-weights[chunk], chunk))


def label_is_kept(problem: PlanProblem, rank: int, place: int) -> bool:
    """Say whether the chunk at `place` of the order may be on `rank` when labels are given as first used."""
    cluster = problem.cluster
    node, local = cluster.node_of(rank), cluster.local_rank(rank)
    if local > place:
        return False
    is_short = len(cluster.ranks_of(node)) < cluster.node_size
    return is_short or node <= place


def first_labels(problem: PlanProblem, owner: list[int]) -> list[int]:
    """Return the same plan with nodes of a size, and ranks of each node, numbered as the order uses them."""
    cluster = problem.cluster
    full = [node for node in range(cluster.num_nodes) if len(cluster.ranks_of(node)) == cluster.node_size]
    new_node: dict[int, int] = {node: node for node in range(cluster.num_nodes) if node not in full}
    new_local: list[dict[int, int]] = [{} for _ in range(cluster.num_nodes)]
    labelled = [0] * len(owner)
    for chunk in heavy_first(problem):
        node, local = cluster.node_of(owner[chunk]), cluster.local_rank(owner[chunk])
        if node not in new_node:
            new_node[node] = sum(other in full for other in new_node)
        locals_of_node = new_local[node]
        locals_of_node.setdefault(local, len(locals_of_node))
        labelled[chunk] = cluster.ranks_of(new_node[node]).start + locals_of_node[local]
    return labelled
