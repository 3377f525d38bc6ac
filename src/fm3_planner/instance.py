"""Planning problems as data: masks by name and arguments, or plain weights, on a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fm3_core import patterns
from fm3_core.cluster import Cluster
from fm3_core.errors import PlanError, UnknownNameError
from fm3_core.mask import ColumnMask
from fm3_planner.problem import PlanProblem
from fm3_planner.saved import needs_from_hex
from fm3_planner.weights import CostWeights

VERSION = 1
FORMAT = "fm3.instances"


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One problem as data.

    Attributes:
        name: unique in its file.
        group: what kind of problem it is, for tables.
        source: where its numbers come from.
        num_ranks: ranks to place chunks on.
        ranks_per_node: ranks of a node.
        chunk_size: tokens of a chunk.
        cost: what a kernel block costs.
        masks: the masks that are all kept, each {"pattern": name, "arguments": {...}}; () for plain weights.
        weights: cost of each chunk where there is no mask.
        needs: "causal", "none" or hexadecimal rows (see `needs_to_hex`), where there is no mask.
        chunk_bytes: bytes of every chunk where there is no mask.
    """

    name: str
    group: str
    source: str
    num_ranks: int
    ranks_per_node: int
    chunk_size: int
    cost: CostWeights = field(default_factory=CostWeights)
    masks: tuple[Mapping[str, Any], ...] = ()
    weights: tuple[int, ...] = ()
    needs: str | tuple[str, ...] = "causal"
    chunk_bytes: int = 1

    def mask(self) -> ColumnMask:
        """Return the mask, the intersection of `masks`.

        Raises:
            PlanError: the instance has plain weights and no mask.
            UnknownNameError: no pattern has that name.
        """
        if not self.masks:
            raise PlanError(f"instance {self.name} has plain weights and no mask")
        return reduce(and_, (_mask(description) for description in self.masks))

    def problem(self) -> PlanProblem:
        """Return the problem."""
        if self.masks:
            return PlanProblem.from_mask(
                self.mask(),
                chunk_size=self.chunk_size,
                num_ranks=self.num_ranks,
                ranks_per_node=self.ranks_per_node,
                cost=self.cost,
            )
        num_chunks = len(self.weights)
        return PlanProblem(
            weights=self.weights,  # type: ignore[arg-type]  # any integers, checked there
            needs=_needs(self.needs, num_chunks),
            chunk_bytes=[self.chunk_bytes] * num_chunks,  # type: ignore[arg-type]  # likewise
            cluster=Cluster(self.num_ranks, self.ranks_per_node),
            num_tokens=num_chunks * self.chunk_size,
            chunk_size=self.chunk_size,
        )


def read_instances(path: Path) -> list[Instance]:
    """Return the instances of a file of `FORMAT`.

    Raises:
        PlanError: the file cannot be read, is no JSON, of another format or version, its fields make no
            instances, or two instances have one name.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as failure:
        raise PlanError(f"{path} cannot be read: {failure.strerror}") from failure
    except ValueError as failure:
        raise PlanError(f"{path} is no JSON: {failure}") from failure
    is_object = isinstance(content, dict)
    found = (content.get("format"), content.get("version")) if is_object else (type(content).__name__, None)
    if found != (FORMAT, VERSION):
        raise PlanError(f"{path}: must be {FORMAT} version {VERSION}, got {found[0]!r} version {found[1]!r}")
    instances = []
    try:
        cost = CostWeights(**content["cost"])
        for fields in content["instances"]:
            instances.append(Instance(cost=cost, **{key: _frozen(value) for key, value in fields.items()}))
    except (AttributeError, KeyError, TypeError) as wrong:
        what = f"field {wrong} is missing" if isinstance(wrong, KeyError) else str(wrong)
        raise PlanError(f"{path}: instances[{len(instances)}]: {what}") from wrong
    names = [instance.name for instance in instances]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PlanError(f"{path}: instance {twice[0]!r} is there more than once ({len(twice)} such names)")
    return instances


def _mask(description: Mapping[str, Any]) -> ColumnMask:
    name = description.get("pattern")
    if name not in patterns.PATTERNS:
        raise UnknownNameError(f"unknown pattern {name!r}; known: {', '.join(sorted(patterns.PATTERNS))}")
    try:
        mask: ColumnMask = patterns.PATTERNS[name](**description.get("arguments", {}))
    except TypeError as wrong:
        raise PlanError(f"pattern {name!r}: {wrong}") from wrong
    return mask


def _needs(needs: str | tuple[str, ...], num_chunks: int) -> NDArray[np.bool_]:
    if needs == "causal":
        return np.tril(np.ones((num_chunks, num_chunks), dtype=np.bool_))
    if needs == "none":
        return np.eye(num_chunks, dtype=np.bool_)
    return needs_from_hex(list(needs), num_chunks)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
