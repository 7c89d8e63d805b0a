"""The packages flash_attn, flash_attn_interface and flash_attn.cute as far as they are called: the parameters that
their published versions have, checked as these check them, and numbers by the definition of attention.
"""

from __future__ import annotations

import importlib.machinery
from types import ModuleType
from typing import Any

import torch

HALVES = (torch.bfloat16, torch.float16)


def attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    length: int,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """[rows, heads, dim] queries, the last of which stands at the last of `length` keys, in float64."""
    rows, heads, _ = query.shape
    keys, values = (part[:length].double().repeat_interleave(heads // part.shape[1], 1) for part in (keys, values))
    raw = torch.einsum("qhd,khd->hqk", query.double(), keys) * scale
    if soft_cap:
        raw = soft_cap * torch.tanh(raw / soft_cap)
    key, place = torch.arange(length), torch.arange(length - rows, length)[:, None]
    hidden = key > place
    if window:
        hidden |= key <= place - window
    raw = raw.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        raw = torch.cat([raw, sinks.double()[:, None, None].expand(heads, rows, 1)], -1)
    return torch.einsum("hqk,khd->qhd", raw.softmax(-1)[..., :length], values)


class Calls:
    """What the functions were called with, by name."""

    def __init__(self) -> None:
        self.made: list[tuple[str, dict[str, Any]]] = []

    def note(self, name: str, **arguments: Any) -> None:
        """One call."""
        self.made.append((name, arguments))


def _checked(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        assert tensor.dtype in HALVES
        assert tensor.stride(-1) == 1


def _whole(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float | None, causal: bool, **options: Any
) -> torch.Tensor:
    _checked(query, keys, values)
    assert causal
    assert scale is not None
    assert query.shape[0] == keys.shape[0] == values.shape[0]
    found = [attention(*one, len(one[1]), scale=scale, **options) for one in zip(query, keys, values, strict=True)]
    return torch.stack(found).to(query.dtype)


def _decoded(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    lengths: torch.Tensor,
    table: torch.Tensor | None,
    scale: float | None,
    causal: bool,
    **options: Any,
) -> torch.Tensor:
    _checked(query, keys, values)
    assert causal
    assert scale is not None
    assert query.shape[1] == 1
    assert lengths.dtype == torch.int32
    outputs = []
    for row, length in enumerate(lengths.tolist()):
        if table is None:
            held = keys[row], values[row]
        else:
            assert table.dtype == torch.int32
            pages = table[row].long()
            held = keys[pages].flatten(0, 1), values[pages].flatten(0, 1)
        outputs.append(attention(query[row], *held, length, scale=scale, **options))
    return torch.stack(outputs).to(query.dtype)


def _window(size: tuple[int | None, int | None]) -> int:
    left, right = size
    if left in (None, -1):
        return 0
    assert right == 0
    return int(left) + 1  # type: ignore[arg-type]


def _module(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    return module


def flash_attn(calls: Calls, *, soft_caps: bool = True) -> ModuleType:
    """FlashAttention 2.8; without `soft_caps` as it was before 2.6."""
    module = _module("flash_attn")
    module.__version__ = "2.8.3"

    def flash_attn_func(
        q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
        alibi_slopes=None, deterministic=False, return_attn_probs=False,
    ):  # fmt: skip
        calls.note("flash_attn_func", window_size=window_size, softcap=softcap, q=q, k=k)
        return _whole(q, k, v, softmax_scale, causal, window=_window(window_size), soft_cap=softcap)

    def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
        cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False,
        window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0,
        return_softmax_lse=False,
    ):  # fmt: skip
        assert block_table is None or k_cache.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
        calls.note("flash_attn_with_kvcache", window_size=window_size, softcap=softcap, paged=block_table is not None)
        return _decoded(
            q, k_cache, v_cache, cache_seqlens, block_table, softmax_scale, causal,
            window=_window(window_size), soft_cap=softcap,
        )  # fmt: skip

    if not soft_caps:

        def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1)):
            raise AssertionError("not to be called")

    module.flash_attn_func, module.flash_attn_with_kvcache = flash_attn_func, flash_attn_with_kvcache
    return module


def flash_attn_interface(calls: Calls) -> ModuleType:
    """FlashAttention 3, in a version whose functions return the log-sum-exp as well."""
    module = _module("flash_attn_interface")
    module.__version__ = "3.0.0"

    def flash_attn_func(
        q, k, v, softmax_scale=None, causal=False, qv=None, q_descale=None, k_descale=None, v_descale=None,
        window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False,
        sm_margin=0,
    ):  # fmt: skip
        calls.note("flash_attn_func", window_size=window_size, softcap=softcap, q=q, k=k)
        found = _whole(q, k, v, softmax_scale, causal, window=_window(window_size), soft_cap=softcap)
        return found, torch.zeros(q.shape[0], q.shape[2], q.shape[1])

    def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
        cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None,
        max_seqlen_q=None, rotary_seqlens=None, q_descale=None, k_descale=None, v_descale=None, softmax_scale=None,
        causal=False, window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True,
        scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False,
    ):  # fmt: skip
        calls.note("flash_attn_with_kvcache", window_size=window_size, softcap=softcap, paged=page_table is not None)
        return _decoded(
            q, k_cache, v_cache, cache_seqlens, page_table, softmax_scale, causal,
            window=_window(window_size), soft_cap=softcap,
        )  # fmt: skip

    module.flash_attn_func, module.flash_attn_with_kvcache = flash_attn_func, flash_attn_with_kvcache
    return module


def flash_attn_cute(calls: Calls) -> ModuleType:
    """FlashAttention 4, which always returns two values."""
    module = _module("flash_attn.cute")
    module.__version__ = "4.0.0"

    def flash_attn_func(
        q, k, v, qv=None, gather_kv_indices=None, softmax_scale=None, causal=False, window_size=(None, None),
        learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, return_lse=False,
    ):  # fmt: skip
        calls.note("flash_attn_func", window_size=window_size, softcap=softcap, learnable_sink=learnable_sink, q=q, k=k)
        found = _whole(
            q, k, v, softmax_scale, causal, window=_window(window_size), soft_cap=softcap, sinks=learnable_sink
        )
        return found, None

    def flash_attn_varlen_func(
        q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None,
        min_seqlen_k=None, seqused_q=None, seqused_k=None, gather_kv_indices=None, page_table=None, softmax_scale=None,
        causal=False, window_size=(None, None), learnable_sink=None, softcap=0.0, num_splits=1, pack_gqa=None,
        deterministic=False, return_lse=False,
    ):  # fmt: skip
        assert page_table is None or cu_seqlens_k is None, "page_table is not supported with cu_seqlens_k"
        calls.note("flash_attn_varlen_func", window_size=window_size, softcap=softcap, paged=page_table is not None)
        found = _decoded(
            q, k, v, seqused_k, page_table, softmax_scale, causal,
            window=_window(window_size), soft_cap=softcap, sinks=learnable_sink,
        )  # fmt: skip
        return found, None

    module.flash_attn_func, module.flash_attn_varlen_func = flash_attn_func, flash_attn_varlen_func
    return module
