"""`DeviceMask`: a column mask's vectors on a torch device, with what engines derive from them once.

Shapes: B mask batch, Hm mask heads, T keys, KB key blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from fm3_core import ColumnMask
from fm3_core.check import require_int
from fm3_core.errors import MaskError
from fm3_kernels.extrema import BlockExtrema

_VECTORS = ("lts", "lte", "uts", "ute")

Derived = TypeVar("Derived")


@dataclass(frozen=True, eq=False)
class DeviceMask:
    """A column mask on a device: key column k hides the rows [lts, lte) and [uts, ute).

    Made once a batch and shared by all layers and by backward. The vectors must not be written to afterwards:
    what engines derive from them is made once and kept.

    Args:
        lts: first hidden row of the lower span, int32 [batch, heads, keys], values in 0..num_rows.
        lte: row behind the lower span.
        uts: first hidden row of the upper span.
        ute: row behind the upper span.
        num_rows: rows of the mask.

    Raises:
        MaskError: the vectors are not four int32 tensors of one shape [batch, heads, keys] on one device.
        Their
            values are not read: that would wait for the device.
    """

    lts: Tensor
    lte: Tensor
    uts: Tensor
    ute: Tensor
    num_rows: int = field(kw_only=True)
    _derived: dict[object, Any] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Check types, shapes and devices."""
        object.__setattr__(self, "num_rows", require_int("num_rows", self.num_rows))
        for name in _VECTORS:
            vector = getattr(self, name)
            if not isinstance(vector, Tensor):
                raise MaskError(f"{name} must be a torch tensor, got {type(vector).__name__}")
            if vector.dtype != torch.int32 or vector.dim() != 3:
                raise MaskError(
                    f"{name} must be int32 [batch, heads, keys], got {vector.dtype} {list(vector.shape)}"
                )
            if vector.shape != self.lts.shape or vector.device != self.lts.device:
                raise MaskError(
                    f"{name} is {list(vector.shape)} on {vector.device}, lts is {list(self.lts.shape)} "
                    f"on {self.lts.device}: the four vectors must agree"
                )

    @classmethod
    def from_mask(cls, mask: ColumnMask, device: torch.device | str = "cpu") -> DeviceMask:
        """Copy a host mask's vectors to `device`.

        Raises:
            MaskError: `mask` is no ColumnMask, or this torch cannot use the device.
        """
        if not isinstance(mask, ColumnMask):
            raise MaskError(f"from_mask takes a ColumnMask, got {type(mask).__name__}")
        try:
            torch.empty(0, device=device)
        except (AssertionError, RuntimeError, TypeError, NotImplementedError) as error:
            raise MaskError(f"device {device!r} cannot be used here: {error}") from error
        lts, lte, uts, ute = (torch.from_numpy(getattr(mask, name).copy()).to(device) for name in _VECTORS)
        return cls(lts, lte, uts, ute, num_rows=mask.num_rows)

    @classmethod
    def from_startend_row_indices(
        cls, indices: Tensor, *, causal: bool, num_rows: int | None = None, validate: bool = False
    ) -> DeviceMask:
        """Read FlashMask's index tensor where it lies, without waiting for its device.

        Args:
            indices: int32 or int64 [batch, heads, keys, n]; causal n=1: LTS, n=2: LTS, LTE;
                not causal n=2: LTS, UTE, n=4: LTS, LTE, UTS, UTE.
            causal: whether the causal span (bottom-right aligned) is hidden too.
            num_rows: rows of the mask; None means as many as keys.
            validate: wait for the device, read the values and refuse wrong ones. Without it values are
                clamped to 0..num_rows and a reversed span hides nothing.

        Raises:
            MaskError: a shape, dtype or n that has no meaning; with `validate`, a value outside 0..num_rows
                or a reversed span, naming the first column.
        """
        _check_indices(indices, causal)
        num_keys = indices.shape[2]
        num_rows = num_keys if num_rows is None else require_int("num_rows", num_rows)
        lts, lte, uts, ute = _split_indices(indices, causal, num_rows)
        if validate:
            _validate_span("lower", lts, lte, num_rows)
            _validate_span("upper", uts, ute, num_rows)
        lts, lte = _clamp_span(lts, lte, num_rows)
        uts, ute = _clamp_span(uts, ute, num_rows)
        return cls(lts, lte, uts, ute, num_rows=num_rows)

    @property
    def batch(self) -> int:
        """Mask batch entries, 1 or the tensors' batch."""
        return self.lts.shape[0]

    @property
    def heads(self) -> int:
        """Mask heads; query head h uses mask head h // (query heads / mask heads)."""
        return self.lts.shape[1]

    @property
    def num_keys(self) -> int:
        """Key columns."""
        return self.lts.shape[2]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, rows, keys) of the mask that the vectors stand for."""
        return (self.batch, self.heads, self.num_rows, self.num_keys)

    @property
    def vectors(self) -> list[Tensor]:
        """LTS, LTE, UTS and UTE."""
        return [self.lts, self.lte, self.uts, self.ute]

    @property
    def device(self) -> torch.device:
        """Where the vectors are."""
        return self.lts.device

    def block_extrema(self, block_keys: int) -> BlockExtrema:
        """Return the vectors' extrema over blocks of `block_keys` keys; made at the first call, then kept."""
        return self.derived(("block_extrema", block_keys), lambda mask: _extrema_of(mask, block_keys))

    def derived(self, key: object, make: Callable[[DeviceMask], Derived]) -> Derived:
        """Return what `make` derives from this mask, made at the first call with this key, then kept.

        While torch.compile traces, or a CUDA graph is captured, what is made is not kept: its memory would
        belong to the graph. What was made before is used there.

        Args:
            key: names what is derived; an engine's own.
            make: called with this mask; returns anything but None.
        """
        found: Derived | None = self._derived.get(key)
        if found is None:
            found = make(self)
            if may_keep(self.device):
                self._derived[key] = found
        return found

    def to_mask(self) -> ColumnMask:
        """Copy the vectors to the host and return the mask that they mean (waits for the device)."""
        lts, lte, uts, ute = (getattr(self, name).cpu().numpy() for name in _VECTORS)
        return ColumnMask(lts, lte, uts, ute, num_rows=self.num_rows)


def may_keep(device: torch.device) -> bool:
    """Say whether tensors made now on `device` may be kept: no graph will own their memory."""
    if torch.compiler.is_compiling():
        return False
    return device.type != "cuda" or not torch.cuda.is_current_stream_capturing()


def _extrema_of(mask: DeviceMask, block_keys: int) -> BlockExtrema:
    return BlockExtrema.from_vectors(
        mask.lts, mask.lte, mask.uts, mask.ute, num_rows=mask.num_rows, block_keys=block_keys
    )


def _check_indices(indices: Tensor, causal: bool) -> None:
    """Raise unless the tensor's type, rank and last dimension are one of FlashMask's four forms."""
    if not isinstance(indices, Tensor):
        raise MaskError(f"startend_row_indices must be a torch tensor, got {type(indices).__name__}")
    if indices.dtype not in (torch.int32, torch.int64) or indices.dim() != 4:
        raise MaskError(
            "startend_row_indices must be int32 or int64 [batch, heads, keys, n], "
            f"got {indices.dtype} {list(indices.shape)}"
        )
    allowed = (1, 2) if causal else (2, 4)
    if indices.shape[3] not in allowed:
        raise MaskError(
            f"startend_row_indices with causal={causal} has n in {allowed}, got n={indices.shape[3]} "
            f"(shape {list(indices.shape)})"
        )


def _split_indices(indices: Tensor, causal: bool, num_rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return lts, lte, uts, ute as the indices say, unchecked, and the defaults where they are silent."""
    given = indices.unbind(dim=3)
    lts = given[0]
    if causal:
        lte = given[1] if len(given) == 2 else torch.full_like(lts, num_rows)
        num_keys = lts.shape[2]
        keys = torch.arange(num_keys, dtype=lts.dtype, device=lts.device)
        ute = (keys - (num_keys - num_rows)).clamp(0, num_rows).expand_as(lts)
        return lts, lte, torch.zeros_like(lts), ute
    if len(given) == 2:
        return lts, torch.full_like(lts, num_rows), torch.zeros_like(lts), given[1]
    return lts, given[1], given[2], given[3]


def _validate_span(name: str, start: Tensor, end: Tensor, num_rows: int) -> None:
    """Raise for the first column whose span is not 0 <= start <= end <= num_rows."""
    wrong = (start < 0) | (start > end) | (end > num_rows)
    where = wrong.nonzero()
    if len(where) == 0:
        return
    batch, head, column = where[0].tolist()
    named = (
        f"batch {batch}, head {head}, column {column}" if wrong.shape[:2] != (1, 1) else f"column {column}"
    )
    first, last = int(start[batch, head, column]), int(end[batch, head, column])
    raise MaskError(
        f"{named}: {name} span [{first}, {last}) must satisfy "
        f"0 <= start <= end <= num_rows={num_rows} ({len(where)} of {wrong.numel()} columns are wrong)"
    )


def _clamp_span(start: Tensor, end: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Clamp both ends to 0..num_rows and empty the reversed spans."""
    start, end = start.clamp(0, num_rows), end.clamp(0, num_rows)
    end = torch.maximum(start, end)
    return start.to(torch.int32).contiguous(), end.to(torch.int32).contiguous()
