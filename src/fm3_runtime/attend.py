"""The main job: attention over real documents on several ranks, checked against float64 on one."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import fm3_kernels
from fm3_core import ColumnMask, Fm3Error, localize
from fm3_core.check import require_int
from fm3_planner import PlanResult
from fm3_planner.planning import DEFAULT_PLANNER
from fm3_runtime.attention import attention
from fm3_runtime.context_parallel import ContextParallel
from fm3_runtime.named_masks import named_mask
from fm3_runtime.packing import PackedDocuments
from fm3_runtime.step import Step

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
ORACLE_ROWS = 64
ALLOWED_RATIO = 2.0
"""An error of the ranks may be twice the largest error of one rank in the same dtype."""
EXACT_ERROR = 1e-12
"""What float64 itself may be off: errors below it are no difference."""
RESULTS = ("out", "dq", "dk", "dv")


class AttendError(Fm3Error, ValueError):
    """The main job was asked for something that it cannot do."""


@dataclass(frozen=True, kw_only=True)
class AttendOptions:
    """What the main job runs.

    Args:
        mask: name of the mask over the packed documents, see `named_masks`.
        heads: query heads.
        kv_heads: heads of K and V, divides `heads`.
        head_dim: elements of a head.
        dtype: a name of `DTYPES`.
        planner: a planner's name.
        chunk_size: tokens of a chunk, None for the default.
        ranks_per_node: ranks of a node, None for all.
        gradient_wire: "float32" or "bfloat16".
        seed: of the embedding of bytes.
    """

    mask: str = "causal_document"
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    dtype: str = "float32"
    planner: str = DEFAULT_PLANNER
    chunk_size: int | None = None
    ranks_per_node: int | None = None
    gradient_wire: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        """Validate what no other part does."""
        for name in ("heads", "kv_heads", "head_dim"):
            require_int(name, getattr(self, name), minimum=1, error=AttendError)
        require_int("seed", self.seed, maximum=2**64 - 1, error=AttendError)
        if self.heads % self.kv_heads:
            raise AttendError(f"heads={self.heads} must be a multiple of kv_heads={self.kv_heads}")
        if self.dtype not in DTYPES:
            raise AttendError(f"unknown dtype {self.dtype!r}; known: {', '.join(DTYPES)}")


@dataclass(frozen=True, kw_only=True)
class RankFigures:
    """What one rank did.

    Args:
        rank: the rank.
        tokens: tokens that it owns.
        gathered_tokens: keys that its rows see.
        load: its share of the plan's compute cost.
        sent_bytes: keys, values and partial gradients that it sent, forward and backward, as counted on their
            way.
        pruned_bytes: what it would have sent besides, had every rank gathered every key.
        forward_seconds: wall clock of the forward pass, exchange included.
        backward_seconds: likewise backward.
    """

    rank: int
    tokens: int
    gathered_tokens: int
    load: int
    sent_bytes: int
    pruned_bytes: int
    forward_seconds: float
    backward_seconds: float


@dataclass(frozen=True, kw_only=True)
class RunOutput:
    """What the ranks computed, in global token order.

    Args:
        plan: the plan that they followed.
        ranks: figures by rank.
        tensors: out, dq, dk, dv, each [1, tokens, heads, head_dim].
    """

    plan: PlanResult
    ranks: tuple[RankFigures, ...]
    tensors: dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class ErrorFigures:
    """Largest difference to float64 over the largest float64 value, by result.

    Where float64 is 0 but for its rounding, the difference itself.

    Args:
        ranks: of the ranks' results.
        one_rank: of one rank's results in the same dtype.
        oracle_rows: of the float64 results on sampled rows, to the dense definition (out only).
    """

    ranks: dict[str, float]
    one_rank: dict[str, float]
    oracle_rows: float

    @property
    def within_bounds(self) -> bool:
        """Whether no error is above twice the largest of one rank, and float64 meets the definition.

        The largest of the four: the error of a single result is a matter of chance, and may be 0.
        """
        allowed = max(ALLOWED_RATIO * max(self.one_rank.values()), EXACT_ERROR)
        return all(self.ranks[name] <= allowed for name in RESULTS) and self.oracle_rows < EXACT_ERROR


def run_rank(
    emit: Callable[[Any], None], documents: PackedDocuments, options: AttendOptions
) -> RunOutput | None:
    """Run this rank's share; rank 0 returns everybody's results, the others None. All ranks must call it."""
    mask = named_mask(options.mask, documents.lengths)
    with ContextParallel(
        planner=options.planner,
        chunk_size=options.chunk_size,
        gradient_wire=options.gradient_wire,
        ranks_per_node=options.ranks_per_node,
    ) as cp:
        emit("planning")
        step = cp.plan(mask, verify=True)
        inputs, dout = embed(documents.tokens, options, step.position_ids().numpy())
        tensors, figures = _attend(emit, step, inputs, dout)
        emit("gathering")
        everywhere = {name: step.gather(x) for name, x in tensors.items()}
        by_rank = [RankFigures(**json.loads(text)) for text in cp.backend.share(json.dumps(asdict(figures)))]
    if step.rank != 0:
        return None
    return RunOutput(plan=step.result, ranks=tuple(by_rank), tensors=everywhere)


def _attend(
    emit: Callable[[Any], None], step: Step, inputs: list[torch.Tensor], dout: torch.Tensor
) -> tuple[dict[str, torch.Tensor], RankFigures]:
    """Run forward and backward on this rank's tokens; return out, dq, dk, dv and the figures."""
    q, k, v = (x.requires_grad_() for x in inputs)
    step.backend.barrier()
    emit("forward")
    started = time.perf_counter()
    out = attention(q, k, v, step)
    forward_seconds = time.perf_counter() - started
    step.backend.barrier()
    emit("backward")
    started = time.perf_counter()
    gradients = torch.autograd.grad(out, (q, k, v), dout)
    backward_seconds = time.perf_counter() - started
    tensors = dict(zip(RESULTS, (out.detach(), *gradients), strict=True))
    return tensors, _figures(step, inputs, forward_seconds, backward_seconds)


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """What one rank computes, for results of several to be compared with.

    Args:
        exact: out, dq, dk, dv in float64, [1, tokens, heads, head_dim].
        plain: likewise in the dtype that the ranks ran in.
        oracle_rows: error of the float64 out on sampled rows against the dense definition.
    """

    exact: dict[str, torch.Tensor]
    plain: dict[str, torch.Tensor]
    oracle_rows: float

    def errors_of(self, results: dict[str, torch.Tensor]) -> ErrorFigures:
        """Return the errors of the ranks' out, dq, dk and dv."""
        return ErrorFigures(
            ranks={name: _relative_error(results[name], self.exact[name]) for name in RESULTS},
            one_rank={name: _relative_error(self.plain[name], self.exact[name]) for name in RESULTS},
            oracle_rows=self.oracle_rows,
        )


def make_yardstick(
    documents: PackedDocuments, options: AttendOptions, advance: Callable[[str], None] = lambda phase: None
) -> Yardstick:
    """Compute on one rank in float64 and in the ranks' dtype, and check float64 against the dense definition.

    Args:
        documents: the sequence.
        options: what the ranks run.
        advance: told the phase that begins.
    """
    mask = named_mask(options.mask, documents.lengths)
    inputs, dout = embed(documents.tokens, options, np.arange(mask.num_rows))
    advance("one rank, float64")
    exact = _one_rank([x.double() for x in inputs], dout.double(), mask)
    advance(f"one rank, {options.dtype}")
    plain = _one_rank(inputs, dout, mask)
    advance("dense definition on sampled rows")
    rows = np.unique(np.linspace(0, mask.num_rows - 1, ORACLE_ROWS).astype(np.int64))
    sampled = localize(mask, rows, np.ones_like(rows))
    q, k, v = (x.double() for x in inputs)
    oracle, _ = fm3_kernels.attention_forward(q[:, rows], k, v, sampled, engine="reference")
    return Yardstick(exact=exact, plain=plain, oracle_rows=_relative_error(exact["out"][:, rows], oracle))


def embed(
    tokens: NDArray[np.uint8], options: AttendOptions, positions: NDArray[np.int64]
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return ([q, k, v], dout) of the tokens at `positions`, each [1, positions, heads, head_dim].

    Every byte has a normal random row in a table a tensor; q and k are turned by their position as in rotary
    embeddings (https://arxiv.org/abs/2104.09864), so that equal bytes at two places differ.
    """
    generator = torch.Generator().manual_seed(options.seed)
    dtype, byte = DTYPES[options.dtype], torch.from_numpy(tokens[positions].astype(np.int64))
    made = []
    for heads in (options.heads, options.kv_heads, options.kv_heads, options.heads):
        table = torch.randn(256, heads, options.head_dim, generator=generator, dtype=torch.float64)
        made.append(table[byte])
    place = torch.from_numpy(positions)
    q, k, v, dout = _rotate(made[0], place), _rotate(made[1], place), made[2], made[3]
    return [x[None].to(dtype) for x in (q, k, v)], dout[None].to(dtype)


def _rotate(x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    frequency = torch.exp(-math.log(10_000.0) * torch.arange(half, dtype=x.dtype) / max(half, 1))
    angle = position[:, None, None] * frequency
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat(
        [first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos(), rest], dim=-1
    )


def _one_rank(inputs: list[torch.Tensor], dout: torch.Tensor, mask: ColumnMask) -> dict[str, torch.Tensor]:
    q, k, v = inputs
    out, lse = fm3_kernels.attention_forward(q, k, v, mask, engine="tiled")
    gradients = fm3_kernels.attention_backward(dout, q, k, v, out, lse, mask, engine="tiled")
    return dict(zip(RESULTS, (out, *gradients), strict=True))


def _relative_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    difference = (result.double() - exact.double()).abs().max().item()
    largest = exact.abs().max().item()
    return difference / largest if largest > EXACT_ERROR else difference


def _figures(
    step: Step, inputs: list[torch.Tensor], forward_seconds: float, backward_seconds: float
) -> RankFigures:
    """Return this rank's figures; unpruned, all other tokens would be gathered twice and reduced once."""
    own, others = step.num_local_tokens, step.partition.num_tokens - step.num_local_tokens
    _, k, v = inputs
    token_elements = k.shape[2] * (k.shape[3] + v.shape[3])
    gradient_dtype = step.wire_dtype or torch.promote_types(k.dtype, torch.float32)
    unpruned = token_elements * (
        2 * own * (step.num_ranks - 1) * k.element_size() + others * gradient_dtype.itemsize
    )
    sent = step.backend.traffic.total
    return RankFigures(
        rank=step.rank,
        tokens=own,
        gathered_tokens=int(step.exchange.gathered_lengths(step.rank).sum()),
        load=step.result.cost.loads[step.rank],
        sent_bytes=sent,
        pruned_bytes=unpruned - sent,
        forward_seconds=forward_seconds,
        backward_seconds=backward_seconds,
    )
