"""The two sets of instances: planbench, which hcc_ipo was tuned on, and held_out, which it was not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class InstanceSet:
    """Where a set and what is known of it are kept.

    Attributes:
        instances: the problems.
        best: the best values known of them.
    """

    instances: Path
    best: Path


SETS = {
    "planbench": InstanceSet(instances=FOLDER / "instances.json", best=FOLDER / "best.json"),
    "held_out": InstanceSet(instances=FOLDER / "held_out.json", best=FOLDER / "held_out_best.json"),
}
