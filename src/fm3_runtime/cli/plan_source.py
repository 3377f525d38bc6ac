"""The planning problem that a verb's options describe: a mask over documents, or a frozen instance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fm3_core import ColumnMask, UnknownNameError
from fm3_planner import CostWeights, Instance, PlanProblem, balanced_chunk_size, read_instances
from fm3_runtime.cli.options import read_mask
from fm3_runtime.cli.output import count
from fm3_runtime.packing import DocumentError


@dataclass(frozen=True, kw_only=True)
class PlanSource:
    """A problem and what it came from.

    Attributes:
        problem: what is planned.
        title: a few words, for headings.
        mask: the mask, None for an instance of plain weights.
    """

    problem: PlanProblem
    title: str
    mask: ColumnMask | None


def problem_of_mask(
    name: str,
    lengths: str | None,
    folder: Path | None,
    glob: str | None,
    tokens: int | None,
    *,
    ranks: int,
    ranks_per_node: int | None,
    chunk_size: int | None,
    cost: CostWeights,
) -> PlanSource:
    """Return the problem of a named mask over documents; the chunk size is chosen where none is given."""
    mask, chosen = read_mask(name, lengths, folder, glob, tokens)
    size = chunk_size or balanced_chunk_size(mask, num_ranks=ranks, cost=cost)
    problem = PlanProblem.from_mask(
        mask, chunk_size=size, num_ranks=ranks, ranks_per_node=ranks_per_node, cost=cost
    )
    title = f"{name} over {count(len(chosen), 'document')}, {count(mask.num_rows, 'token')}"
    return PlanSource(problem=problem, title=title, mask=mask)


def problem_of_instance(file: Path, name: str) -> PlanSource:
    """Return the problem called `name` in a file of instances.

    Raises:
        DocumentError: there is no such file.
        UnknownNameError: no instance has that name; it lists some that do.
    """
    if not file.is_file():
        raise DocumentError(f"{file} is not a file")
    instances = {instance.name: instance for instance in read_instances(file)}
    if name not in instances:
        known = ", ".join(list(instances)[:5])
        raise UnknownNameError(
            f"unknown instance {name!r} in {file}; its {len(instances)} instances begin with {known}"
        )
    instance: Instance = instances[name]
    return PlanSource(
        problem=instance.problem(), title=f"instance {name}", mask=instance.mask() if instance.masks else None
    )
