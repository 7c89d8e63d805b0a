"""PyTorch's own attention: on any device, with all options; and its FlashAttention 2, on GPUs without a package.

The last resort of `--attention fast`, where neither our kernels nor a library compute a model's attention.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.attention_backends.backend import (
    AttentionKind,
    DecodeKv,
    unsupported_option,
    unsupported_shape,
)
from engine.kernels.paged_kv import Scores

_SCORES = 1 << 26
"""Scores that are in memory at a time, at most, where all of them are."""
_AMPERE = (8, 0)


class TorchAttention:
    """`scaled_dot_product_attention` with masks; plain products where scores are capped or there are sinks."""

    name = "torch"
    version = torch.__version__
    row_multiple = 1

    def unsupported(self, kind: AttentionKind) -> str | None:
        """Never a reason."""
        return None

    def prefill(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scores: Scores, output: torch.Tensor
    ) -> None:
        """See `AttentionBackend`."""
        rows, heads, _ = query.shape
        tokens, step = len(keys), max(1, _SCORES // (heads * len(keys)))
        held = keys.transpose(0, 1)[None], values.transpose(0, 1)[None]
        key = torch.arange(tokens, device=query.device)
        for at in range(0, rows, step):
            part = query[at : at + step]
            place = torch.arange(tokens - rows + at, tokens - rows + at + len(part), device=query.device)[:, None]
            seen = key <= place
            if scores.window:
                seen &= key > place - scores.window
            output[at : at + step] = _masked(part.transpose(0, 1)[None], *held, seen, scores)[0].transpose(0, 1)

    def warm_up(self, kind: AttentionKind, context: int) -> Iterator[None]:
        """See `AttentionBackend`. There is nothing to make."""
        yield from ()

    def decode(self, query: torch.Tensor, kv: DecodeKv, scores: Scores) -> torch.Tensor:
        """See `AttentionBackend`."""
        keys, values = (part.transpose(1, 2) for part in kv.gather())
        key, lengths = torch.arange(keys.shape[2], device=query.device), kv.lengths[:, None]
        seen = key < lengths
        if scores.window:
            seen &= key >= lengths - scores.window
        return _masked(query[:, :, None], keys, values, seen[:, None, None], scores)[:, :, 0]


def _masked(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: torch.Tensor, scores: Scores
) -> torch.Tensor:
    """[batch, heads, rows, head dim] queries over keys [batch, KV heads, tokens, head dim], as far as they are seen."""
    if scores.soft_cap is None and scores.sinks is None:
        return scaled_dot_product_attention(query, keys, values, seen, scale=scores.scale, enable_gqa=True)
    group = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    raw = (query.float() @ keys.float().transpose(2, 3)) * scores.scale
    if scores.soft_cap is not None:
        raw = torch.tanh(raw / scores.soft_cap) * scores.soft_cap
    raw = raw.masked_fill(~seen, -torch.inf)
    if scores.sinks is not None:
        raw = torch.cat([raw, scores.sinks.view(1, -1, 1, 1).expand(*raw.shape[:3], 1)], -1)
    weights = raw.softmax(-1)[..., : keys.shape[2]]
    return (weights @ values.float()).to(query.dtype)


class TorchFlashAttention(TorchAttention):
    """The FlashAttention 2 in PyTorch, from Ampere on. Decodes as `TorchAttention` does."""

    name = "torch-flash"

    def unsupported(self, kind: AttentionKind) -> str | None:
        """See `AttentionBackend`."""
        if kind.capability < _AMPERE:
            return "needs a GPU from Ampere on"
        return unsupported_shape(kind, 256) or unsupported_option(kind, window=True, soft_cap=False, sinks=False)

    def prefill(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scores: Scores, output: torch.Tensor
    ) -> None:
        """See `AttentionBackend`."""
        rows, tokens = len(query), len(keys)
        ends = torch.tensor([[0, rows], [0, tokens]], dtype=torch.int32, device=query.device)
        window = {"window_size_left": scores.window - 1, "window_size_right": 0} if scores.window else {}
        found = torch.ops.aten._flash_attention_forward(
            query, keys, values, ends[0], ends[1], rows, tokens, 0.0, True, False, scale=scores.scale, **window
        )
        output.copy_(found[0])
