"""The errors that users meet, all under one base.

A user's mistake is an `Fm3Error` and a `ValueError`, so that code which knows nothing of FM3 can catch it.
The message says which object, which index, which value and which rule, and how many more are wrong.
"""

from __future__ import annotations

from collections.abc import Iterable


class Fm3Error(Exception):
    """Base of every error that FM3 raises on purpose."""


class MaskError(Fm3Error, ValueError):
    """A mask is malformed, or has no form with two hidden spans a column."""


class PartitionError(Fm3Error, ValueError):
    """Chunks, ranks, nodes or offsets do not describe a partition of the tokens."""


class PlanError(Fm3Error, ValueError):
    """A planning problem, a planner's answer or a plan is not what the rules ask for."""


class ExchangeError(Fm3Error, ValueError):
    """An exchange does not move exactly what is needed, or its tensors do not fit it."""


class UnknownNameError(Fm3Error, ValueError):
    """A name is not registered; the message lists those that are."""


class UnsupportedError(Fm3Error, ValueError):
    """A request cannot be computed exactly here; carries every reason.

    Attributes:
        subject: what was asked for.
        reasons: one sentence for each thing that stands in the way.
    """

    def __init__(self, subject: str, reasons: Iterable[str]) -> None:
        """Join the reasons under the subject that is refused."""
        self.subject = subject
        self.reasons = tuple(reasons)
        super().__init__(f"{subject}: " + "; ".join(self.reasons))

    def __reduce__(self) -> tuple[type[UnsupportedError], tuple[str, tuple[str, ...]]]:
        """Pickle what it was made of, so that it crosses processes."""
        return type(self), (self.subject, self.reasons)
