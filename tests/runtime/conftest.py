"""Shared inputs of the runtime's tests."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fm3_core import ColumnMask
from fm3_runtime import attention
from fm3_runtime.cli import main


@dataclass(frozen=True)
class Problem:
    """Float64 inputs of one batch and what one rank makes of them."""

    mask: ColumnMask
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    dout: torch.Tensor
    dlse: torch.Tensor

    def one_rank(self) -> tuple[torch.Tensor, ...]:
        """Return out, lse, dq, dk, dv of one rank."""
        inputs = [x.clone().requires_grad_() for x in self.inputs]
        out, lse = attention(*inputs, self.mask, return_lse=True)
        torch.autograd.backward([out, lse], [self.dout, self.dlse])
        return (out.detach(), lse.detach(), *(x.grad for x in inputs))


@pytest.fixture
def make_problem() -> Callable[..., Problem]:
    """Return a function that makes a problem over a mask."""

    def make(
        mask: ColumnMask,
        *,
        batch: int = 2,
        heads: int = 4,
        kv_heads: int = 2,
        dim: int = 8,
        value_dim: int = 8,
    ) -> Problem:
        generator = torch.Generator().manual_seed(5)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        tokens = mask.num_rows
        return Problem(
            mask=mask,
            inputs=(
                normal(batch, tokens, heads, dim),
                normal(batch, tokens, kv_heads, dim),
                normal(batch, tokens, kv_heads, value_dim),
            ),
            dout=normal(batch, tokens, heads, value_dim),
            dlse=normal(batch, heads, tokens),
        )

    return make


@dataclass(frozen=True)
class Done:
    """What a run of the command left."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def fm3(capsys, monkeypatch) -> Callable[..., Done]:
    """Return a function that runs the command in this process."""

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["fm3", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        return Done(left.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def fm3_json(fm3) -> Callable[..., Any]:
    """Return a function that runs the command and reads the JSON that it prints."""

    def run(*arguments: str) -> Any:
        done = fm3(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
