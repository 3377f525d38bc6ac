"""A planner as words on a command line: a name, or a name with options, `hcc_ipo(epsilon=0.02)`."""

from __future__ import annotations

import ast
import re
from dataclasses import fields, is_dataclass
from typing import Any

from fm3_core import PlanError
from fm3_planner import Planner, planners

HELP = "Name of the load balancer, with options if you like: 'hcc_ipo(epsilon=0.02)'."


def read_planner(text: str) -> str | Planner:
    """Return a registered name as it is, and the planner that a name with options describes.

    Options are `name=value`, separated by commas; a value is a number, True, False, None or a word.

    Raises:
        UnknownNameError: no planner has that name.
        PlanError: the text is neither, or the planner takes no such options; names those that it takes.
    """
    parts = re.fullmatch(r"\s*([^()\s]+)\s*\((.*)\)\s*", text, re.DOTALL)
    if parts is None:
        planners.get(text)
        return text
    name, inside = parts.groups()
    thing: Any = planners.get(name)
    options = dict(_option(text, part) for part in inside.split(",") if part.strip())
    if not options:
        return name
    if not isinstance(thing, type):
        raise PlanError(f"planner {name!r} takes no options, got {', '.join(options)}")
    known = [field.name for field in fields(thing)] if is_dataclass(thing) else None
    unknown = [option for option in options if known is not None and option not in known]
    if unknown:
        raise PlanError(
            f"planner {name!r} has no option {unknown[0]!r}; it has {', '.join(known or []) or 'none'}"
        )
    try:
        planner: Planner = thing(**options)
    except TypeError as wrong:
        raise PlanError(f"planner {name!r} does not take these options: {wrong}") from wrong
    return planner


def _option(text: str, part: str) -> tuple[str, Any]:
    """Return an option's name and value."""
    name, sign, value = (word.strip() for word in part.partition("="))
    if not sign or not name.isidentifier() or not value:
        raise PlanError(f"planner {text!r}: an option is name=value, got {part.strip()!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
