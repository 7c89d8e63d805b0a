"""FlashAttention 2, 3 and 4 (Dao 2023, Shah et al. 2024), by the packages of their authors where they are installed.

`pip install turnpike[flash]` installs FlashAttention 4, which compiles its kernels itself. 2 is built from source for
hours; 3 is built from its repository. None is imported before it is asked for.

A chunk is one sequence of the library's batch, with exactly its keys: kernels read whole tiles, and 0 · NaN is NaN, so
that what lies behind a sequence's keys could reach it. Its causal mask ends at the last key ("bottom right"), as all
three have had it since 2.1.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any, ClassVar

import torch

from engine.attention_backends.backend import (
    AttentionKind,
    DecodeKv,
    unsupported_option,
    unsupported_shape,
)
from engine.kernels.paged_kv import Scores


class FlashAttention:
    """What the three have in common. `module`: what is imported; `packages`: names it may be installed by.

    `generations`: GPUs by the first number of their compute capability. `capability_text`: them in words. `paging`:
    those on which decodes read pages of 64 tokens where they lie; the others gather them first.
    """

    name: ClassVar[str]
    module: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    generations: ClassVar[frozenset[int]]
    generations_text: ClassVar[str]
    paging: ClassVar[frozenset[int]] = frozenset()
    row_multiple: ClassVar[int] = 1

    @cached_property
    def _imported(self) -> ModuleType | str:
        try:
            return importlib.import_module(self.module)
        except Exception as error:  # what a broken installation raises is of any kind
            return f"{type(error).__name__}: {error}".partition("\n")[0]

    @property
    def _library(self) -> Any:
        assert isinstance(self._imported, ModuleType)
        return self._imported

    @property
    def version(self) -> str:
        """The version that is installed."""
        for package in self.packages:
            try:
                return version(package)
            except PackageNotFoundError:
                continue
        return str(getattr(self._library, "__version__", "unknown"))

    def unsupported(self, kind: AttentionKind) -> str | None:
        """See `AttentionBackend`. An option is supported if the functions of this version take it."""
        if isinstance(self._imported, str):
            return f"not installed ({self._imported})"
        if kind.capability[0] not in self.generations:
            return f"needs a GPU of {self.generations_text}"
        takes = [self._parameters(name) for name in ("flash_attn_func", self._decoding)]
        can = {name: all(name in names for names in takes) for name in ("window_size", "softcap", "learnable_sink")}
        return unsupported_shape(kind, self._most_dim(kind)) or unsupported_option(
            kind, window=can["window_size"], soft_cap=can["softcap"], sinks=can["learnable_sink"]
        )

    def _most_dim(self, kind: AttentionKind) -> int:
        """Elements of a head, at most."""
        return 256

    _decoding: ClassVar[str] = "flash_attn_with_kvcache"

    def _parameters(self, function: str) -> Mapping[str, object]:
        found: Callable[..., object] | None = getattr(self._library, function, None)
        return {} if found is None else inspect.signature(found).parameters

    def prefill(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scores: Scores, output: torch.Tensor
    ) -> None:
        """See `AttentionBackend`."""
        found = self._library.flash_attn_func(
            query[None], keys[None], values[None], causal=True, softmax_scale=scores.scale, **self._options(scores)
        )
        output.copy_(_output(found)[0])

    def warm_up(self, kind: AttentionKind, context: int) -> Iterator[None]:
        """See `AttentionBackend`. Kernels are compiled for any lengths, which the trial does."""
        yield from ()

    def decode(self, query: torch.Tensor, kv: DecodeKv, scores: Scores) -> torch.Tensor:
        """See `AttentionBackend`."""
        if self._reads_pages(query.device, kv):
            keys, values = _pages(kv)
            return self._decode(query, keys, values, kv, scores, paged=True)
        keys, values = kv.gather()
        return self._decode(query, keys, values, kv, scores, paged=False)

    def _reads_pages(self, device: torch.device, kv: DecodeKv) -> bool:
        if kv.pages.in_fp8:
            return False
        major = torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0
        return major in self.paging

    def _decode(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        kv: DecodeKv,
        scores: Scores,
        *,
        paged: bool,
    ) -> torch.Tensor:
        pages = {self._page_table: kv.tables} if paged else {}
        found = self._library.flash_attn_with_kvcache(
            query[:, None],
            keys,
            values,
            cache_seqlens=kv.lengths,
            causal=True,
            softmax_scale=scores.scale,
            **pages,
            **self._options(scores),
        )
        return _output(found)[:, 0]

    _page_table: ClassVar[str] = "page_table"

    def _options(self, scores: Scores) -> dict[str, Any]:
        """The options that differ from the defaults, by the names that the functions have for them."""
        options: dict[str, Any] = {}
        if scores.window:
            options["window_size"] = (scores.window - 1, 0)
        if scores.soft_cap is not None:
            options["softcap"] = scores.soft_cap
        if scores.sinks is not None:
            options["learnable_sink"] = scores.sinks
        return options


def _output(found: Any) -> torch.Tensor:
    """Some versions return the log-sum-exp as well."""
    output: torch.Tensor = found[0] if isinstance(found, tuple) else found
    return output


def _pages(kv: DecodeKv) -> tuple[torch.Tensor, torch.Tensor]:
    """All pages of the layer, [blocks, 64, KV heads, head dim] each, where they lie."""
    layer = kv.pages.data[:, kv.pages.layer]
    return layer[:, 0].transpose(1, 2), layer[:, 1].transpose(1, 2)


class FlashAttention2(FlashAttention):
    """From Ampere on. Its pages have multiples of 256 tokens, so that ours are gathered."""

    name = "flash-attention-2"
    module = "flash_attn"
    packages = ("flash-attn", "flash_attn")
    generations = frozenset((8, 9, 10, 12))
    generations_text = "Ampere or later"


class FlashAttention3(FlashAttention):
    """For Hopper."""

    name = "flash-attention-3"
    module = "flash_attn_interface"
    packages = ("flash-attn-3", "flash_attn_3")
    generations = frozenset((9,))
    generations_text = "Hopper"
    paging = frozenset((9,))


class FlashAttention4(FlashAttention):
    """From Ampere on. It reads no pages on Ampere, Ada, and small Blackwells."""

    name = "flash-attention-4"
    module = "flash_attn.cute"
    packages = ("flash-attn-4", "flash_attn_4")
    generations = frozenset((8, 9, 10, 11, 12))
    generations_text = "Ampere or later"
    paging = frozenset((9, 10, 11))
    _decoding = "flash_attn_varlen_func"

    def _most_dim(self, kind: AttentionKind) -> int:
        return 256 if kind.capability[0] == 9 or kind.head_dim == 256 else 128

    def _decode(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        kv: DecodeKv,
        scores: Scores,
        *,
        paged: bool,
    ) -> torch.Tensor:
        pages = {self._page_table: kv.tables} if paged else {}
        found = self._library.flash_attn_varlen_func(
            query[:, None],
            keys,
            values,
            seqused_k=kv.lengths,
            causal=True,
            softmax_scale=scores.scale,
            **pages,
            **self._options(scores),
        )
        return _output(found)[:, 0]
