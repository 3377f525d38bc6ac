"""`fm3 doctor`: what this machine can run, and why not the rest."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

import fm3_kernels
from fm3_comm import backends
from fm3_comm.symmetric import memories
from fm3_core import UnknownNameError, patterns
from fm3_core.registry import Registry
from fm3_planner import planners
from fm3_runtime.cli.options import AsJson
from fm3_runtime.cli.output import console, new_table, print_json


def doctor(as_json: AsJson = False) -> None:
    """Say which engines, backends, symmetric memories and planners run here, and why not the others.

    [bold]Example[/]

    fm3 doctor --json
    """
    found = examine()
    if as_json:
        print_json(found)
        return
    machine = found["machine"]
    console.print(
        f"[bold]{machine['processor']}[/], {machine['cores']} cores, Python {machine['python']}, "
        f"torch {machine['torch']}"
    )
    console.print("GPU: " + (", ".join(machine["gpus"]) or "none"))
    console.print()
    table = new_table("what", "name", "here", "why not", text=("name", "here", "why not"))
    for kind, names in (
        ("engine", "engines"),
        ("backend", "backends"),
        ("symmetric memory", "memories"),
        ("planner", "planners"),
    ):
        for name, reasons in found[names].items():
            table.add_row(kind, name, "[red]no[/]" if reasons else "[green]yes[/]", "; ".join(reasons))
    console.print(table)


def examine() -> dict[str, Any]:
    """Return the machine's facts and, for everything that can be chosen, why it does not run here."""
    return {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        },
        "engines": {name: _why_no_engine(name) for name in fm3_kernels.engines.names()},
        "backends": {name: _why_unavailable(backends, name) for name in backends.names()},
        "memories": {name: _why_unavailable(memories, name) for name in memories.names()},
        "planners": {name: _why_no_planner(name) for name in planners.names()},
    }


def _why_no_engine(name: str) -> list[str]:
    """Ask the engine about the smallest call of the usual kind, on a GPU where there is one."""
    q = torch.zeros(1, 1, 1, 64, dtype=torch.bfloat16, device="cuda" if torch.cuda.is_available() else "cpu")
    reasons = fm3_kernels.why_unsupported(q, q, q, patterns.full(1), engine=name)
    return [reason.removeprefix(f"engine {name!r}: ") for reason in reasons]


def _why_unavailable(registry: Registry[Any], name: str) -> list[str]:
    try:
        reason = registry.get(name).why_unavailable()
    except UnknownNameError as broken:  # an installed package offers it, and it cannot be imported
        return [str(broken)]
    return [] if reason is None else [reason]


def _why_no_planner(name: str) -> list[str]:
    try:
        planners.get(name)
    except UnknownNameError as broken:
        return [str(broken)]
    return []
