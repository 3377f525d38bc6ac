"""A small model trained by one rank and by P: their losses agree step by step.

Legend: S tokens at hand, H query heads, G key-value heads, D head dim.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from context_parallel.job import Job
from fm3_core import ColumnMask, documents, patterns
from fm3_runtime import ContextParallel, attention
from fm3_runtime.step import Step

VOCABULARY, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 32, 2, 4, 2, 64
LEARNING_RATE, MOMENTUM = 0.2, 0.9


class Layer(nn.Module):
    """Attention alone, with a residual."""

    def __init__(self) -> None:
        """Make the projections."""
        super().__init__()
        self.q = nn.Linear(WIDTH, HEADS * HEAD_DIM)
        self.kv = nn.Linear(WIDTH, 2 * KV_HEADS * HEAD_DIM)
        self.out = nn.Linear(HEADS * HEAD_DIM, WIDTH)

    def forward(self, x: Tensor, attend: Callable[..., Tensor]) -> Tensor:
        """Return x [1, S, width] with what its tokens see."""
        q = self.q(x).unflatten(-1, (HEADS, HEAD_DIM))
        k, v = self.kv(x).unflatten(-1, (2, KV_HEADS, HEAD_DIM)).unbind(2)
        return x + self.out(attend(q, k, v).to(x.dtype).flatten(2))


class Model(nn.Module):
    """Tokens and positions to logits."""

    def __init__(self, longest: int) -> None:
        """Make parameters for sequences up to `longest` tokens."""
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(longest, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Callable[..., Tensor]) -> Tensor:
        """Return logits [1, S, vocabulary]."""
        x = self.token(tokens) + self.place(positions)
        for layer in self.layers:
            x = layer(x, attend)
        return self.head(x)


@dataclass(frozen=True)
class Batch:
    """One step's documents: mask; tokens, labels (-100 for none) and positions, int64 [1, tokens]."""

    mask: ColumnMask
    tokens: Tensor
    labels: Tensor
    positions: Tensor

    @classmethod
    def draw(cls, step: int, num_tokens: int) -> Batch:
        """Draw documents whose next token is that before it times 5 plus 7, but for one in eight."""
        random = np.random.default_rng(step)
        cuts = np.sort(random.choice(np.arange(1, num_tokens), size=min(5, num_tokens - 1), replace=False))
        lengths = np.diff([0, *cuts, num_tokens]).tolist()
        tokens = np.empty(num_tokens, dtype=np.int64)
        start = 0
        for length in lengths:
            token = random.integers(VOCABULARY)
            for place in range(start, start + length):
                tokens[place] = token
                token = (
                    random.integers(VOCABULARY) if random.random() < 1 / 8 else (5 * token + 7) % VOCABULARY
                )
            start += length
        labels = np.roll(tokens, -1)
        labels[documents.cumulative_lengths(lengths)[1:] - 1] = -100
        return cls(
            patterns.causal_document(lengths),
            *(torch.from_numpy(x)[None] for x in (tokens, labels, documents.position_ids(lengths))),
        )

    def local(self, step: Step | None, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, labels and positions of a step's rank, or all, on a device."""
        whole = (self.tokens, self.labels, self.positions)
        mine = whole if step is None else tuple(step.scatter(x) for x in whole)
        tokens, labels, positions = (x.to(device) for x in mine)
        return tokens, labels, positions


def train(
    job: Job,
    model: Model,
    batches: list[Batch],
    *,
    context: ContextParallel | None,
    engine: str,
    dtype: torch.dtype,
) -> list[float]:
    """Train a copy of a model; return the loss before each step.

    Args:
        job: the ranks.
        model: where it starts, the same on every rank.
        batches: one a step.
        context: of P ranks, or None for one that does all by itself.
        engine: of attention.
        dtype: of attention's inputs.
    """
    model = copy.deepcopy(model).to(job.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    losses = []
    for batch in batches:
        step = None if context is None else context.plan(batch.mask)
        tokens, labels, positions = batch.local(step, job.device)

        def attend(*qkv: Tensor, where: Step | ColumnMask = batch.mask if step is None else step) -> Tensor:
            return attention(*(x.to(dtype) for x in qkv), where, engine=engine)

        logits = model(tokens, positions, attend)
        summed = nn.functional.cross_entropy(logits.double().flatten(0, 1), labels.flatten(), reduction="sum")
        loss = summed / int((batch.labels != -100).sum())
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach().clone()
        if context is not None:
            dist.all_reduce(total, group=job.data)
            for parameter in model.parameters():
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad, group=job.data)
        losses.append(float(total))
        optimizer.step()
    return losses


def compare_training(
    job: Job, backends: list[str], *, steps: int, tokens_per_rank: int, engine: str, dtype: torch.dtype
) -> dict[str, Any]:
    """Train by one rank in float64, by one rank, and by P ranks over each backend; compare the losses.

    P ranks agree with one when no loss of theirs is farther from float64's than twice the farthest of one
    rank's, or the last bits of a loss in float32.

    Args:
        job: the ranks.
        backends: names.
        steps: of training.
        tokens_per_rank: of each batch.
        engine: of attention; float64 takes "tiled".
        dtype: of attention's inputs; parameters are float32.
    """
    num_tokens = tokens_per_rank * job.num_ranks
    batches = [Batch.draw(step, num_tokens) for step in range(steps)]
    torch.manual_seed(0)
    model = Model(num_tokens)
    exact = train(
        job, copy.deepcopy(model).double(), batches, context=None, engine="tiled", dtype=torch.float64
    )
    one = train(job, model, batches, context=None, engine=engine, dtype=dtype)
    many = {}
    for backend in backends:
        context = ContextParallel(backend=job.handle(backend))
        many[backend] = train(job, model, batches, context=context, engine=engine, dtype=dtype)
    allowed = 2 * _farthest(one, exact) + torch.finfo(torch.float32).eps * max(exact)
    farthest = {backend: _farthest(losses, exact) for backend, losses in many.items()}
    return {
        "ranks": job.num_ranks,
        "tokens": num_tokens,
        "steps": steps,
        "dtype": str(dtype).removeprefix("torch."),
        "engine": engine,
        "losses": {"float64": exact, "one rank": one, **many},
        "farthest_allowed": allowed,
        "farthest": farthest,
        "agree": {backend: distance <= allowed for backend, distance in farthest.items()},
        "learnt": exact[-1] < exact[0],
    }


def _farthest(losses: list[float], exact: list[float]) -> float:
    """Return the largest distance; infinite where a loss is NaN."""
    gaps = np.abs(np.subtract(losses, exact))
    return float("inf") if np.isnan(gaps).any() else float(gaps.max())
