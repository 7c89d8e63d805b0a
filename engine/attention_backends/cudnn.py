"""cuDNN's attention, as PyTorch has it: in every installation for GPUs.

PyTorch asks it for a causal mask that begins at the first key ("top left"), and has it make a plan for each shape,
which takes 50 ms (H200, cuDNN 9.19). So a chunk is computed in pieces of few sizes: of its rows, each with its own keys
under a causal mask, and of the keys before them, without a mask. They are joined by their log-sum-exps. What remains of
rows and keys is computed by PyTorch's FlashAttention, which needs no plan. Its form for sequences of several lengths,
which would be one call, takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from engine.attention_backends.backend import AttentionKind, unsupported_option, unsupported_shape
from engine.attention_backends.torch_attention import TorchAttention
from engine.kernels.paged_kv import Scores

LEAST = 512
_MOST_ROWS, _MOST_KEYS = 8_192, 131_072
"""Pieces are powers of two between these."""


class Part(NamedTuple):
    """Attention over some of the keys: outputs [rows, heads, head dim], log-sum-exps fp32 [heads, rows]."""

    output: torch.Tensor
    lse: torch.Tensor


class CudnnAttention(TorchAttention):
    """See the module. Decodes as PyTorch does."""

    name = "cudnn"

    @property
    def version(self) -> str:  # type: ignore[override]
        """Of cuDNN, and of PyTorch, which says how it is called."""
        return f"{torch.backends.cudnn.version()}-torch-{torch.__version__}"  # type: ignore[no-untyped-call]

    def unsupported(self, kind: AttentionKind) -> str | None:
        """See `AttentionBackend`."""
        if kind.capability < (9, 0):
            return "needs a GPU from Hopper on"
        return unsupported_shape(kind, 128) or unsupported_option(kind, window=False, soft_cap=False, sinks=False)

    def prefill(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scores: Scores, output: torch.Tensor
    ) -> None:
        """See `AttentionBackend`."""
        # Strides are part of a shape: here they are those of any number of tokens.
        keys, values = keys.contiguous(), values.contiguous()
        prefix, at = len(keys) - len(query), 0
        for rows in pieces(len(query), _MOST_ROWS):
            end = prefix + at + rows
            _rows(query[at : at + rows], keys[:end], values[:end], scores.scale, output[at : at + rows])
            at += rows

    def warm_up(self, query: torch.Tensor, kv_heads: int, context: int) -> None:
        """Make the plans of chunks of `_MOST_ROWS` at any place. `query`: as many rows of any queries."""
        before = max(0, min(2 * _MOST_KEYS, context) - len(query)) // LEAST
        tokens = len(query) + ((1 << before.bit_length()) - 1) * LEAST
        keys = torch.zeros(tokens, kv_heads, query.shape[2], dtype=query.dtype, device=query.device)
        self.prefill(query, keys, keys, Scores(1.0), torch.empty_like(query))


def pieces(size: int, most: int) -> Iterator[int]:
    """The sizes of the pieces of so many rows or keys, the largest first; the last may be less than `LEAST`."""
    piece = most
    while size >= LEAST:
        while piece > size:
            piece //= 2
        yield piece
        size -= piece
    if size:
        yield size


def _rows(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, output: torch.Tensor
) -> None:
    """The attention of a piece of rows, the last of which stands at the last key."""
    rows, prefix = len(query), len(keys) - len(query)
    if rows < LEAST:  # with all its keys at once
        output.copy_(_flash(query, keys, values, scale, causal=True).output)
        return
    found, at = _cudnn(query, keys[prefix:], values[prefix:], scale, causal=True), 0
    for size in pieces(prefix, _MOST_KEYS):
        part = slice(at, at + size)
        compute = _flash if size < LEAST else _cudnn
        before = compute(query, keys[part], values[part], scale, causal=False)
        at += size
        found = _joined(found, before, output if at == prefix else None)
    if found.output is not output:
        output.copy_(found.output)


def _cudnn(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, *, causal: bool) -> Part:
    heads_first = [part.transpose(0, 1)[None] for part in (query, keys, values)]
    output, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        *heads_first, None, True, 0.0, causal, False, scale=scale
    )
    return Part(output[0].transpose(0, 1), lse.view(query.shape[1], len(query)))


def _flash(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, *, causal: bool) -> Part:
    rows, tokens = len(query), len(keys)
    output, lse, *_ = torch.ops.aten._flash_attention_forward(
        query[None], keys[None], values[None], None, None, rows, tokens, 0.0, causal, False, scale=scale
    )
    return Part(output[0], lse[0])


def _joined(first: Part, second: Part, output: torch.Tensor | None) -> Part:
    """Both parts as one, in fp32 unless they are written to `output`."""
    from engine.kernels.gathered_kv import join_attention  # noqa: PLC0415  # Triton, which a CPU does without

    if output is None:
        output = torch.empty(first.output.shape, dtype=torch.float32, device=first.output.device)
    lse = torch.empty_like(first.lse)
    join_attention(*first, *second, output, lse)
    return Part(output, lse)
