"""The engines by name, and which of them can serve a call."""

from __future__ import annotations

from torch import Tensor

from fm3_core import ColumnMask
from fm3_core.errors import UnknownNameError, UnsupportedError
from fm3_core.registry import Registry
from fm3_kernels.checks import call_reasons, describe
from fm3_kernels.device_mask import DeviceMask
from fm3_kernels.engine import Engine
from fm3_kernels.hopper import HopperEngine
from fm3_kernels.reference import ReferenceEngine
from fm3_kernels.tiled import TiledEngine

AUTO_ORDER = ("tiled",)
"""Engines that "auto" tries, the fastest first; "hopper" joins once its tests have passed on a GPU."""

engines: Registry[Engine] = Registry("engine", "fm3.engines")
"""Every attention engine by name; "auto" chooses among AUTO_ORDER, the others are asked for by name."""

engines.register("hopper", HopperEngine())
engines.register("tiled", TiledEngine())
engines.register("reference", ReferenceEngine())


def why_unsupported(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: ColumnMask | DeviceMask,
    *,
    softmax_scale: float | None = None,
    deterministic: bool = False,
    engine: str | Engine = "auto",
) -> list[str]:
    """Return every reason why `attention` would refuse these arguments; empty if it would serve them.

    Args:
        q: floating [batch, rows, query heads, dim].
        k: [batch, keys, kv heads, dim].
        v: [batch, keys, kv heads, value dim].
        mask: the mask.
        softmax_scale: factor of the scores, None for 1 / sqrt(dim).
        deterministic: whether gradients must be the same bits every time.
        engine: a registered name, "auto" or an engine.

    Raises:
        UnknownNameError: no engine has that name.
    """
    candidates = _candidates(engine)
    reasons = call_reasons(q, k, v, mask, softmax_scale)
    if reasons:
        return reasons
    found = _first_able(candidates, q, k, v, on_device(mask, q), deterministic)
    return found if isinstance(found, list) else []


def choose_engine(
    operation: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: ColumnMask | DeviceMask,
    *,
    softmax_scale: float | None,
    deterministic: bool,
    engine: str | Engine,
) -> tuple[Engine, DeviceMask, float]:
    """Return the engine that serves the call, the mask on q's device and the scale, or raise.

    Raises:
        UnsupportedError: names the operation, the shapes and all reasons.
        UnknownNameError: no engine has that name.
    """
    candidates = _candidates(engine)
    found: Engine | list[str] = call_reasons(q, k, v, mask, softmax_scale)
    if not found:
        mask = on_device(mask, q)
        found = _first_able(candidates, q, k, v, mask, deterministic)
    if isinstance(found, list):
        raise UnsupportedError(f"{operation}({describe(q=q, k=k, v=v, mask=mask)})", found)
    assert isinstance(mask, DeviceMask)
    return found, mask, q.shape[3] ** -0.5 if softmax_scale is None else float(softmax_scale)


def on_device(mask: ColumnMask | DeviceMask, like: Tensor) -> DeviceMask:
    """Return a mask that is ready for tensors like `like`: a host mask is copied to their device."""
    return mask if isinstance(mask, DeviceMask) else DeviceMask.from_mask(mask, like.device)


def _candidates(engine: str | Engine) -> dict[str, Engine]:
    """Return the engines to try, by the name that messages use."""
    if not isinstance(engine, str):
        if not callable(getattr(engine, "forward", None)):
            raise UnknownNameError(
                f"engine must be a name or an Engine, got {engine!r}; known: {engines.names()}"
            )
        return {type(engine).__name__: engine}
    return {name: engines.get(name) for name in (AUTO_ORDER if engine == "auto" else (engine,))}


def _first_able(
    candidates: dict[str, Engine], q: Tensor, k: Tensor, v: Tensor, mask: DeviceMask, deterministic: bool
) -> Engine | list[str]:
    """Return the first engine that has no reason against the call, or everybody's reasons."""
    reasons: list[str] = []
    for name, engine in candidates.items():
        against = engine.why_unsupported(q, k, v, mask, deterministic=deterministic)
        if not against:
            return engine
        reasons += [f"engine {name!r}: {reason}" for reason in against]
    return reasons
