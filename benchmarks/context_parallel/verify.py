"""`OneRank`: the results of one rank over the whole sequence, and how far P ranks may be from them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import fm3_kernels
from context_parallel.method import PASSES, Method
from kernel.cell import Cell
from kernel.verify import Truth

NAMES = {"forward": ("out", "lse"), "backward": ("dq", "dk", "dv")}
TOKEN_DIM = {"out": 1, "lse": 2, "dq": 1, "dk": 1, "dv": 1}


class OneRank:
    """One rank's results, themselves compared with exact ones on heads and rows that `Truth` samples.

    An entry of P ranks may differ by twice what `Truth` allows an entry of that result: as much as two
    results that are both right can be apart.

    Args:
        cell: the whole sequence.
        engine: a name in `fm3_kernels.engines`.
    """

    def __init__(self, cell: Cell, engine: str) -> None:
        """Compute."""
        self.cell = cell
        out, lse = fm3_kernels.attention_forward(cell.q, cell.k, cell.v, cell.mask, engine=engine)
        gradients = fm3_kernels.attention_backward(
            cell.dout, cell.q, cell.k, cell.v, out, lse, cell.mask, engine=engine
        )
        truth = Truth(cell)
        self.error = max(truth.forward_error(out, lse), truth.gradient_error(list(gradients)))
        self.results = dict(zip(TOKEN_DIM, (out, lse, *gradients), strict=True))
        self.allowed = {name: 2 * allowed for name, allowed in truth.allowed.items()}

    def why_wrong(self, method: Method) -> str | None:
        """Return what is wrong with this rank's share of P ranks' results, all of its entries, or None."""
        if not self.error <= 1:
            return f"one rank's own error is {self.error:.3g} of what is allowed"
        found = [
            self._difference(name, mine, method)
            for which in PASSES
            for name, mine in zip(NAMES[which], method.run(which), strict=True)
        ]
        return next((wrong for wrong in found if wrong is not None), None)

    def _difference(self, name: str, mine: Tensor, method: Method) -> str | None:
        tokens = torch.from_numpy(method.step.partition.token_index(method.step.rank))
        expected = self.results[name].index_select(TOKEN_DIM[name], tokens.to(mine.device))
        if mine.shape != expected.shape:
            return f"{name} is {list(mine.shape)}, one rank's share {list(expected.shape)}"
        return difference(name, mine, expected, self.allowed[name])


def difference(name: str, mine: Tensor, expected: Tensor, allowed: float) -> str | None:
    """Return the worst place of a tensor where it is farther from another than allowed, or None.

    Args:
        name: of the tensor.
        mine: any shape.
        expected: likewise; an entry that is not finite must be the same here, and NaN is never right.
        allowed: largest difference of entries.
    """
    exact = torch.promote_types(mine.dtype, torch.float32)
    wide, right = mine.to(exact), expected.to(exact)
    gap = torch.where(wide == right, 0.0, (wide - right).abs()).nan_to_num(nan=torch.inf, posinf=torch.inf)
    if gap.numel() == 0 or float(gap.max()) <= allowed:
        return None
    place = tuple(int(i) for i in np.unravel_index(int(gap.argmax()), gap.shape))
    count = int((gap > allowed).sum())
    return (
        f"{name}{list(place)} is {float(wide[place]):.6g}, one rank's {float(right[place]):.6g}; "
        f"allowed is a difference of {allowed:.3g} ({count} of {gap.numel()} differ more)"
    )
