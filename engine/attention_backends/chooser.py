"""Chooses the library that computes a model's attention fastest on this device, by measuring them at start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import structlog
import torch

from engine.attention_backends.backend import AttentionBackend, AttentionKind, identity
from engine.attention_backends.cudnn import CudnnAttention
from engine.attention_backends.flash_attention import FlashAttention2, FlashAttention3, FlashAttention4
from engine.attention_backends.torch_attention import TorchAttention, TorchFlashAttention
from engine.kernels.paged_kv import Scores

logger = structlog.get_logger("engine.attention")

NAMES = (
    *("flash-attention-4", "flash-attention-3", "cudnn", "flash-attention-2"),
    *("torch-flash", "torch"),
)
"""All libraries, the preferred first."""
_LAST_RESORTS = 2
_CLEARLY = 0.95
"""One that is preferred gives way to another that takes at most this share of its time: were two alike, another start
would choose another, and find no block of this one's."""
_TRIAL = {"cuda": (8_192, 16_384), "cpu": (32, 128)}
"""Rows and keys of the prompt that is measured."""
_ROUNDS = 3


def backends(*, last_resorts: bool) -> Sequence[AttentionBackend]:
    """One of each library, the preferred first. `last_resorts`: PyTorch's own as well."""
    own: Sequence[AttentionBackend] = (TorchFlashAttention(), TorchAttention()) if last_resorts else ()
    return (FlashAttention4(), FlashAttention3(), CudnnAttention(), FlashAttention2(), *own)


@dataclass(frozen=True)
class ChosenAttention:
    """What computes each layer group's attention; None for our own. `refused`: why others do not, by name."""

    backends: tuple[AttentionBackend | None, ...]
    refused: Mapping[str, str]
    kinds: tuple[AttentionKind | None, ...] = ()
    """What is computed."""

    @property
    def names(self) -> tuple[str, ...]:
        """The libraries that are used, each once."""
        return tuple(dict.fromkeys(backend.name for backend in self.backends if backend is not None))

    def warm_up(self, context: int) -> Iterator[None]:
        """Make what the libraries make once; see `AttentionBackend`."""
        for kind, backend in dict.fromkeys(zip(self.kinds, self.backends, strict=True)):
            if kind is not None and backend is not None:
                yield from backend.warm_up(kind, context)

    @property
    def numerics(self) -> str:
        """The part of the numerics id: what computes each group."""
        parts = ["exact" if backend is None else identity(backend) for backend in self.backends]
        return f"fast:{'/'.join(parts)}"


def choose_attention(
    kinds: Sequence[AttentionKind | None],
    context: int,
    candidates: Sequence[AttentionBackend],
    clock: Callable[[], float] = time.perf_counter,
) -> ChosenAttention:
    """The fastest of the candidates for each layer group's kind of attention; None where none computes it.

    A kind of None has keys and values in one vector, which no library reads. `context`: the longest sequence.
    """
    refused: dict[str, str] = {}
    trials: dict[AttentionKind, AttentionBackend | None] = {}
    took_ms: dict[str, float] = {}
    for kind in kinds:
        if kind is not None and kind not in trials:
            times = _times(kind, context, candidates, clock, refused)
            took_ms |= {backend.name: round(took * 1e3, 3) for backend, took in times}
            trials[kind] = _clearly_fastest(times)
    if None in kinds:
        refused |= {backend.name: "keys and values are one latent vector" for backend in candidates}
    backends_of = tuple(None if kind is None else trials[kind] for kind in kinds)
    chosen = ChosenAttention(backends_of, refused, tuple(kinds))
    logger.info(
        "attention is fast: its bits depend on chunks and batches",
        groups=["exact" if backend is None else identity(backend) for backend in chosen.backends],
        trial_ms=took_ms,
        refused=refused,
    )
    return chosen


def _times(
    kind: AttentionKind,
    context: int,
    candidates: Sequence[AttentionBackend],
    clock: Callable[[], float],
    refused: dict[str, str],
) -> list[tuple[AttentionBackend, float]]:
    """The candidates that compute this kind, with the seconds that a chunk takes them; `refused` gets the others."""
    times = []
    for backend in candidates:
        reason = backend.unsupported(kind)
        if reason is None:
            try:
                times.append((backend, _time(backend, kind, context, clock)))
            except Exception as error:  # a kernel that is not there for this device is said in any way
                reason = f"failed: {type(error).__name__}: {error}".partition("\n")[0]
        if reason is not None:
            refused[backend.name] = reason
    return times


def _clearly_fastest(times: Sequence[tuple[AttentionBackend, float]]) -> AttentionBackend | None:
    best: AttentionBackend | None = None
    least = 0.0
    for backend, took in times:
        if best is None or took < least * _CLEARLY:
            best, least = backend, took
    return best


def _time(backend: AttentionBackend, kind: AttentionKind, context: int, clock: Callable[[], float]) -> float:
    """Seconds of a chunk of a prompt, the least of some."""
    rows, tokens = (min(size, context) for size in _TRIAL["cuda" if kind.device.type == "cuda" else "cpu"])
    generator = torch.Generator(kind.device).manual_seed(1)

    def random(count: int, heads: int) -> torch.Tensor:
        values = torch.randn(count, heads, kind.head_dim, generator=generator, device=kind.device)
        return values.to(kind.dtype)

    query, keys, values = random(rows, kind.heads), random(tokens, kind.kv_heads), random(tokens, kind.kv_heads)
    sinks = torch.zeros(kind.heads, device=kind.device) if kind.sinks else None
    scores = Scores(kind.head_dim**-0.5, kind.window, kind.soft_cap, sinks)
    output, took = torch.empty_like(query), []
    with torch.inference_mode():
        for _ in range(1 + _ROUNDS):  # the first compiles
            began = clock()
            backend.prefill(query, keys, values, scores, output)
            output[-1, -1, -1].item()
            took.append(clock() - began)
    return min(took[1:])
