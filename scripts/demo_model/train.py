"""Trains a network for a given time."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from .conversations import CLASS_WEIGHTS, Windows
from .network import Llama, Shape
from .optimizer import Optimizer


class Stream(Protocol):
    """Where batches come from."""

    def endless(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches (ids, classes of weights) without end."""
        ...


@dataclass(frozen=True)
class Batches:
    """Windows of two lengths on the device. A step takes `tokens` tokens, `long_share` of the steps long windows."""

    short: tuple[Tensor, Tensor]
    long: tuple[Tensor, Tensor]
    tokens: int
    long_share: float

    def __post_init__(self) -> None:
        assert self.short[0].shape[1] <= self.tokens

    def endless(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches (ids, weights), each window once before any comes again."""
        rng = random.Random(f"batches-{seed}")
        streams = {False: self._stream(self.short, seed), True: self._stream(self.long, seed)}
        while True:
            yield next(streams[rng.random() < self.long_share])

    def _stream(self, windows: tuple[Tensor, Tensor], seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        ids, weights = windows
        rows = max(1, min(self.tokens // ids.shape[1], ids.shape[0]))
        generator = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(ids.shape[0], generator=generator).to(ids.device)
            for start in range(0, len(order) - rows + 1, rows):
                chosen = order[start : start + rows]
                yield ids[chosen].long(), weights[chosen]


def on_device(windows: Windows, device: str) -> tuple[Tensor, Tensor]:
    """Tokens and the loss weights' classes as tensors of few bytes."""
    return torch.from_numpy(windows.tokens.astype("int16")).to(device), torch.from_numpy(windows.weights).to(device)


def loss_of(hidden: Tensor, embedding: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean of the next token's negative log likelihood."""
    logits = F.linear(hidden[:, :-1], embedding).float()
    each = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    by_class = torch.tensor(CLASS_WEIGHTS, device=ids.device)
    weight = by_class[weights[:, 1:].flatten().long()]
    return (each * weight).sum() / weight.sum().clamp(min=1.0)


def rate_factor(done: float) -> float:
    """Up for a fiftieth of the time, level until two fifths, then straight down to nothing."""
    return min(1.0, done / 0.02, max(0.0, (1.0 - done) / 0.6))


def train(
    name: str,
    shape: Shape,
    batches: Stream,
    seconds: float,
    seed: int,
    device: str,
    most_steps: int | None = None,
    start_from: Llama | None = None,
    height: float = 1.0,
) -> tuple[Llama, dict[str, float]]:
    """Trains for `seconds` (not counting compilation) and returns the network and how it went. `start_from`: a network
    to go on with; `height`: a factor of the rates."""
    torch.manual_seed(seed)
    model = (start_from or Llama(shape)).to(device).train()
    cuda = device == "cuda"
    half = (lambda: torch.autocast("cuda", torch.bfloat16)) if cuda else contextlib.nullcontext
    loss_function = _compiled(model) if cuda else loss_of
    optimizer = Optimizer(model)
    stream = batches.endless(seed)

    def step(factor: float) -> tuple[Tensor, int]:
        ids, weights = next(stream)
        with half():
            loss = loss_function(model.hidden(ids), model.model.embed_tokens.weight, ids, weights)
        loss.backward()
        optimizer.step(factor)
        return loss.detach(), ids.numel()

    compiling = time.perf_counter()
    if cuda:
        _warm_up(step)
    compiling = time.perf_counter() - compiling
    start, steps, tokens, losses = time.perf_counter(), 0, 0, torch.zeros((), device=device)
    while (elapsed := time.perf_counter() - start) < seconds and (most_steps is None or steps < most_steps):
        loss, count = step(height * rate_factor(elapsed / seconds))
        losses = torch.lerp(losses, loss, 0.02 if steps else 1.0)
        steps, tokens = steps + 1, tokens + count
        if steps % 10 == 0 and cuda:
            torch.cuda.synchronize()  # keeps the clock honest
        if steps % 500 == 0 or steps == 1:
            speed = tokens / max(elapsed, 0.1) / 1e6
            told = f"step {steps}, {elapsed:.0f} of {seconds:.0f} s, loss {losses.item():.4f}, {speed:.2f} M tokens/s"
            print(f"  {name}: {told}", flush=True)
    return model, {
        "steps": steps,
        "tokens": tokens,
        "seconds": round(elapsed, 1),
        "compiling_seconds": round(compiling, 1),
        "loss": round(losses.item(), 4),
    }


def _compiled(model: Llama):
    """Compiles the layers, which share their code, and the loss. Whoever has no compiler trains slower."""
    for layer in model.model.layers:
        layer.compile(dynamic=False)
    return torch.compile(loss_of, dynamic=False)


def _warm_up(step) -> None:
    """Meets both lengths of window, at a rate of nothing: that compiles for them."""
    for _ in range(16):
        step(0.0)
    torch.cuda.synchronize()
