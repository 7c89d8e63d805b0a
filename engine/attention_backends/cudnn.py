"""cuDNN's attention, as PyTorch has it: in every installation for GPUs, for Hopper and later.

PyTorch asks it for a causal mask that begins at the first key ("top left"), and makes it anew for each shape, which
takes a moment. So a chunk behind a prefix is computed in parts: its own keys, causal, and the prefix in pieces of few
sizes, without a mask; the parts are joined by their log-sum-exps.
"""

from __future__ import annotations

import torch

from engine.attention_backends.backend import AttentionKind, DecodeKv, unsupported_option, unsupported_shape
from engine.attention_backends.torch_attention import TorchAttention
from engine.kernels.paged_kv import Scores


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
