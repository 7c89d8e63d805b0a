"""`--attention fast`: what it makes of a runner, before there are requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from engine.attention_backends.backend import AttentionBackend, AttentionKind
from engine.attention_backends.chooser import ChosenAttention, backends, choose_attention
from engine.errors import StartError
from engine.execution.model_runner import ModelRunner
from engine.kernels.paged_kv import PagedKv
from engine.layers.self_attention import SelfAttention

_END = object()


def fast_attention(
    runner: ModelRunner, context: int, candidates: Sequence[AttentionBackend] | None = None
) -> ChosenAttention:
    """The libraries for the runner's attention. Raises StartError where none computes any of it.

    PyTorch's own attention takes no place of our kernels, which are faster.
    """
    if candidates is None:
        candidates = backends(last_resorts=not runner.has_kernels)
    chosen = choose_attention(attention_kinds(runner), context, candidates)
    if not chosen.names:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in chosen.refused.items())
        raise StartError(f"attention: fast is not possible for this model on this device: {reasons}")
    return chosen


def attention_kinds(runner: ModelRunner) -> list[AttentionKind | None]:
    """The kind of attention of each layer group; None for latent attention."""
    kinds: list[AttentionKind | None] = []
    for index, memory in enumerate(runner.memories):
        of_group = (
            layer.attention
            for layer in runner.model.layers
            if isinstance(layer.attention, SelfAttention) and layer.attention.slot.group == index
        )
        first = next(of_group, None)
        kinds.append(
            None
            if first is None
            else AttentionKind(
                dtype=runner.model.embedding.weight.dtype,
                heads=first.heads,
                kv_heads=first.kv_heads,
                head_dim=first.dim,
                device=runner.device,
                window=memory.group.window,
                soft_cap=first.scoring.soft_cap,
                sinks=first.scoring.sinks is not None,
            )
        )
    return kinds


def warm_up_fast(runner: ModelRunner, chosen: ChosenAttention, context: int) -> Iterator[None]:
    """Make what requests would wait for, a piece at a time, in the engine's thread."""
    if runner.has_kernels:
        from engine.kernels.gathered_kv import gather_kv  # noqa: PLC0415  # Triton, which a CPU does without

        first = torch.zeros(1, dtype=torch.int32, device=runner.device)
        for memory in runner.memories:
            gather_kv(PagedKv(memory.data, 0), first, runner.model.embedding.weight)
        yield
    pieces = chosen.warm_up(context)
    while True:
        with torch.inference_mode():
            if next(pieces, _END) is _END:
                return
        yield
