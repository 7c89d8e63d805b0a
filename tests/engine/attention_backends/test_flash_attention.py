"""What FlashAttention 2, 3 and 4 are called with, and what is refused; the packages are fakes of their signatures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from engine.attention_backends.backend import AttentionBackend, AttentionKind, DecodeKv
from engine.attention_backends.chooser import choose_attention
from engine.attention_backends.flash_attention import (
    FlashAttention,
    FlashAttention2,
    FlashAttention3,
    FlashAttention4,
)
from engine.attention_backends.torch_attention import TorchAttention
from engine.kernels.paged_kv import PagedKv, Scores
from tests.engine.attention_backends import fake_flash_attention as fake

BF16, CPU = torch.bfloat16, torch.device("cpu")
HEADS, KV_HEADS, DIM = 4, 2, 16
FAKES: dict[type[FlashAttention], Callable[[fake.Calls], ModuleType]] = {
    FlashAttention2: fake.flash_attn,
    FlashAttention3: fake.flash_attn_interface,
    FlashAttention4: fake.flash_attn_cute,
}
ALL = list(FAKES)


class OnGpu(AttentionKind):
    """A kind on a GPU that is not there."""

    of: tuple[int, int] = (9, 0)

    @property
    def capability(self) -> tuple[int, int]:
        return self.of


def kind(capability: tuple[int, int] = (9, 0), **options: Any) -> AttentionKind:
    base = {"dtype": BF16, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DIM, "device": CPU}
    made = OnGpu(**{**base, **options})
    object.__setattr__(made, "of", capability)
    return made


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> fake.Calls:
    """All three are installed."""
    calls = fake.Calls()
    for library, make in FAKES.items():
        monkeypatch.setitem(sys.modules, library.module, make(calls))
    return calls


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(BF16)


def sinks_of(library: type[FlashAttention]) -> torch.Tensor | None:
    return torch.linspace(-1, 2, HEADS) if library is FlashAttention4 else None


def near(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((found.double() - expected).abs().max() < 2e-2)


def decode_kv(lengths: list[int]) -> DecodeKv:
    """Pages of a second layer among others, in any order; what no row sees is 100."""
    widest = -(-max(lengths) // 64)
    pool = torch.full((len(lengths) * widest + 2, 2, 2, KV_HEADS, 64, DIM), 100.0, dtype=BF16)
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(1))[: len(lengths) * widest]
    tables = order.view(len(lengths), widest).to(torch.int32)
    for row, length in enumerate(lengths):
        for at in range(length):
            pool[tables[row, at // 64], 1, :, :, at % 64] = random(2, KV_HEADS, DIM) + at % 7

    def gather() -> tuple[torch.Tensor, torch.Tensor]:
        held = pool[tables.long(), 1]  # [rows, blocks, parts, KV heads, 64, dim]
        keys, values = (held[:, :, part].transpose(2, 3).flatten(1, 2) for part in range(2))
        return keys, values

    return DecodeKv(PagedKv(pool, 1), tables, torch.tensor(lengths, dtype=torch.int32), gather)


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("soft_cap", [None, 5.0])
@pytest.mark.parametrize("library", ALL)
def test_a_chunk_behind_a_prefix(
    library: type[FlashAttention], soft_cap: float | None, window: int, calls: fake.Calls
) -> None:
    query, keys, values = random(9, HEADS, DIM), random(70, KV_HEADS, DIM), random(70, KV_HEADS, DIM) + 1
    sinks, output = sinks_of(library), torch.empty(9, HEADS, DIM, dtype=BF16)
    library().prefill(query, keys, values, Scores(0.3, window, soft_cap, sinks), output)
    expected = fake.attention(query, keys, values, 70, scale=0.3, window=window, soft_cap=soft_cap or 0.0, sinks=sinks)
    assert near(output, expected)
    ((name, given),) = calls.made
    assert name == "flash_attn_func"
    none = (None, None) if library is FlashAttention4 else (-1, -1)
    assert given["window_size"] == ((window - 1, 0) if window else none)
    assert given["softcap"] == (soft_cap or 0.0)
    assert given["q"].shape == (1, 9, HEADS, DIM)
    assert given["k"].shape == (1, 70, KV_HEADS, DIM)  # no key that the chunk does not see


@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("library", ALL)
def test_decodes_of_several_lengths(
    library: type[FlashAttention], window: int, paged: bool, calls: fake.Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "paging", frozenset((0,)) if paged and library.paging else frozenset())
    kv, query = decode_kv([1, 64, 130]), random(3, HEADS, DIM)
    sinks = sinks_of(library)
    found = library().decode(query, kv, Scores(0.3, window, 5.0, sinks))
    keys, values = kv.gather()
    for row, length in enumerate(kv.lengths.tolist()):
        expected = fake.attention(
            query[row][None], keys[row], values[row], length, scale=0.3, window=window, soft_cap=5.0, sinks=sinks
        )
        assert near(found[row][None], expected)
    ((_, given),) = calls.made
    assert given["paged"] == (paged and library is not FlashAttention2)


def test_pages_are_read_only_where_a_library_reads_ours() -> None:
    assert FlashAttention2.paging == frozenset()  # of multiples of 256 tokens
    assert FlashAttention3.paging == {9}
    assert FlashAttention4.paging == {9, 10, 11}  # it asserts that there are none on 8.x and 12.x


@pytest.mark.parametrize(
    ("library", "given", "reason"),
    [
        (FlashAttention2, kind((7, 5)), "needs a GPU of Ampere or later"),
        (FlashAttention3, kind((8, 0)), "needs a GPU of Hopper"),
        (FlashAttention2, kind((8, 0), sinks=True), "no attention sinks"),
        (FlashAttention3, kind(sinks=True), "no attention sinks"),
        (FlashAttention2, kind(head_dim=288), "no heads of 288 elements"),
        (FlashAttention4, kind((10, 0), head_dim=160), "no heads of 160 elements"),
        (FlashAttention4, kind((9, 0), head_dim=20), "no heads of 20 elements"),
        (FlashAttention4, kind(dtype=torch.float32), "not in float32"),
        (FlashAttention4, kind((10, 0), head_dim=256), None),
        (FlashAttention4, kind((12, 0), sinks=True, window=9, soft_cap=1.0), None),
        (FlashAttention2, kind((8, 9), window=9, soft_cap=1.0), None),
        (FlashAttention3, kind(window=9, soft_cap=1.0), None),
    ],
)
@pytest.mark.usefixtures("calls")
def test_what_a_library_lacks_is_refused_by_name(
    library: type[FlashAttention], given: AttentionKind, reason: str | None
) -> None:
    assert library().unsupported(given) == reason


def test_an_option_that_an_older_version_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", fake.flash_attn(fake.Calls(), soft_caps=False))
    assert FlashAttention2().unsupported(kind(soft_cap=1.0)) == "no soft cap"
    assert FlashAttention2().unsupported(kind(window=3)) is None


@pytest.mark.parametrize("library", ALL)
def test_a_package_that_is_missing_or_broken_is_a_reason(
    library: type[FlashAttention], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library.module, None)
    reason = library().unsupported(kind())
    assert reason is not None
    assert reason.startswith("not installed (")


class Timed(TorchAttention):
    """Attention that takes a time of its own, by a clock that it turns on."""

    def __init__(self, name: str, seconds: float, clock: list[float], error: str = "") -> None:
        self.name = name
        self._seconds, self._clock, self._error = seconds, clock, error

    def prefill(self, *given: Any) -> None:
        self._clock[0] += self._seconds
        if self._error:
            raise RuntimeError(self._error)
        super().prefill(*given)


@pytest.mark.parametrize(
    ("took", "chosen"),
    [
        ({"first": 1.0, "second": 0.5, "third": 2.0}, "second"),
        ({"first": 1.0, "second": 0.97}, "first"),  # not clearly slower: another start would choose the other
        ({"broken": 0.1, "second": 3.0}, "second"),
    ],
)
def test_the_fastest_is_chosen(took: dict[str, float], chosen: str) -> None:
    clock = [0.0]
    candidates: list[AttentionBackend] = [
        Timed(name, seconds, clock, "no kernel image" if name == "broken" else "") for name, seconds in took.items()
    ]
    base = AttentionKind(torch.float32, HEADS, KV_HEADS, DIM, CPU)
    found = choose_attention([base, replace(base, window=9)], 512, candidates, lambda: clock[0])
    assert [backend and backend.name for backend in found.backends] == [chosen, chosen]
    assert found.names == (chosen,)
    assert found.refused == ({"broken": "failed: RuntimeError: no kernel image"} if "broken" in took else {})
    assert found.numerics == f"fast:{chosen}-{torch.__version__}/{chosen}-{torch.__version__}"
