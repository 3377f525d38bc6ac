"""Named things that a user may add to: planners, backends, engines."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from fm3_core.errors import UnknownNameError

T = TypeVar("T")


class Registry(Generic[T]):
    """A mapping from names to things, filled by `register` and by entry points.

    A thing that was registered stands before an entry point of the same name.

    Args:
        kind: what the things are, in the singular; used in messages.
        entry_point_group: group whose entry points are names too, loaded when first asked for.
    """

    def __init__(self, kind: str, entry_point_group: str | None = None) -> None:
        """Start empty."""
        self.kind = kind
        self._group = entry_point_group
        self._things: dict[str, T] = {}

    def register(self, name: str, thing: T) -> T:
        """Add `thing` under `name` and return it; a name that is taken is refused."""
        if not isinstance(name, str) or not name:
            raise UnknownNameError(f"a {self.kind}'s name must be a non-empty string, got {name!r}")
        if name in self._things:
            raise UnknownNameError(f"{self.kind} {name!r} is registered already; unregister it first")
        self._things[name] = thing
        return thing

    def unregister(self, name: str) -> T:
        """Take the thing registered under `name` out and return it."""
        if name not in self._things:
            raise UnknownNameError(self._unknown(name))
        return self._things.pop(name)

    def names(self) -> list[str]:
        """Return every known name, sorted."""
        return sorted(set(self._things) | set(self._entry_points()))

    def get(self, name: str) -> T:
        """Return the thing called `name`; an unknown name is an error that lists the known ones."""
        if isinstance(name, str) and name in self._things:
            return self._things[name]
        points = self._entry_points().get(name) if isinstance(name, str) else None
        if points is None:
            raise UnknownNameError(self._unknown(name))
        offers = sorted({point.value for point in points})
        if len(offers) > 1:
            raise UnknownNameError(f"{self.kind} {name!r} is offered more than once: {' and '.join(offers)}")
        try:
            thing: T = points[0].load()
        except Exception as failure:
            raise UnknownNameError(
                f"{self.kind} {name!r} cannot be loaded from its entry point {offers[0]}: "
                f"{type(failure).__name__}: {failure}"
            ) from failure
        self._things[name] = thing
        return thing

    def __repr__(self) -> str:
        """List the names."""
        return f"Registry of {self.kind}s: {', '.join(self.names())}"

    def __contains__(self, name: object) -> bool:
        """Say whether `name` is known."""
        return isinstance(name, str) and (name in self._things or name in self._entry_points())

    def _entry_points(self) -> dict[str, list[EntryPoint]]:
        found: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=self._group) if self._group is not None else ():
            found.setdefault(point.name, []).append(point)
        return found

    def _unknown(self, name: object) -> str:
        known = ", ".join(self.names()) or "none"
        return f"unknown {self.kind} {name!r}; known: {known}"
