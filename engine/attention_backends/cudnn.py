"""cuDNN's attention, as PyTorch has it: in every installation for GPUs.

PyTorch asks it for a causal mask that begins at the first key ("top left"), and has it make a plan for each shape,
which takes 50 ms (H200, cuDNN 9.19). So rows are computed `ROWS` at a time: with their own keys under a causal mask,
and with the keys before them in pieces of few sizes, without a mask. They are joined by their log-sum-exps. What
remains of rows and keys is computed by PyTorch's FlashAttention, which needs no plan. Its form for sequences of several
lengths, which would be one call, takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from engine.attention_backends.backend import AttentionKind, unsupported_option, unsupported_shape
from engine.attention_backends.torch_attention import TorchAttention
from engine.kernels.paged_kv import Scores

ROWS = 2_048
SIZES = (
    *(131_072 - 16_384 * step for step in range(8)),
    *(14_336 - 2_048 * step for step in range(7)),
    *(1_536, 1_024, 512),
)
"""Of pieces of keys: so any number of keys up to 131,072 is three pieces, and less than 512 keys."""


class Part(NamedTuple):
    """Attention over some of the keys: outputs [rows, heads, head dim], log-sum-exps fp32 [heads, rows]."""

    output: torch.Tensor
    lse: torch.Tensor


class CudnnAttention(TorchAttention):
    """See the module. Decodes as PyTorch does."""

    name = "cudnn"
    row_multiple = ROWS

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
        prefix = len(keys) - len(query)
        for at in range(0, len(query), ROWS):
            part = slice(at, min(at + ROWS, len(query)))
            end = prefix + part.stop
            _rows(query[part], keys[:end], values[:end], scores.scale, output[part])

    def warm_up(self, kind: AttentionKind, context: int) -> Iterator[None]:
        """See `AttentionBackend`. Makes the plan of each shape: PyTorch keeps plans by thread."""
        query = torch.zeros(ROWS, kind.heads, kind.head_dim, dtype=kind.dtype, device=kind.device)
        keys = query.new_zeros(min(SIZES[0], context), kind.kv_heads, kind.head_dim)
        for size in reversed(SIZES):
            if ROWS + size <= len(keys):
                held = keys[: ROWS + size]
                self.prefill(query, held, held, Scores(1.0), torch.empty_like(query))
                yield


def pieces(size: int) -> Iterator[int]:
    """The sizes of the pieces of so many keys, the largest first; the last may be less than all of `SIZES`."""
    for piece in SIZES:
        while size >= piece:
            yield piece
            size -= piece
    if size:
        yield size


def _rows(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, output: torch.Tensor) -> None:
    """The attention of at most `ROWS` rows, the last of which stands at the last key."""
    prefix = len(keys) - len(query)
    if len(query) < ROWS:  # with all their keys at once
        output.copy_(_flash(query, keys, values, scale, causal=True).output)
        return
    found, at = _cudnn(query, keys[prefix:], values[prefix:], scale, causal=True), 0
    for size in pieces(prefix):
        part = slice(at, at + size)
        compute = _flash if size < SIZES[-1] else _cudnn
        at += size
        found = _joined(found, compute(query, keys[part], values[part], scale, causal=False), output)
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


def _joined(first: Part, second: Part, output: torch.Tensor) -> Part:
    """Both parts as one, written to `output`, which may be one of them."""
    from engine.kernels.gathered_kv import join_attention  # noqa: PLC0415  # Triton, which a CPU does without

    lse = torch.empty_like(first.lse)
    join_attention(*first, *second, output, lse)
    return Part(output, lse)
