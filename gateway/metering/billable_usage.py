"""Usage of counts: the one place where what the engine did meets what the client was promised."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from billing.usage import AUTOMATIC, Counts, Usage
from gateway.generation_request import Surface

Fault = Literal["none", "client", "ours_before", "ours_after"]
"""Whose fault the end was. `client`: it left. `ours_before`, `ours_after`: we failed, before or after the first token
reached the client; before it nothing is billed."""


class MeteringTerms(Struct, frozen=True):
    """What was promised at admission; kept in the hold, so that a bill can be made of a journal's counts alone.

    `read_min`: KV found for fewer tokens is not counted as read. `prompt_tokens`: the whole rendered prompt.
    """

    surface: Surface
    read_min: int
    prompt_tokens: int


class EngineCounts(Protocol):
    """Counts, the protocol's or billing's: the fields have the same names."""

    @property
    def prompt(self) -> int: ...
    @property
    def computed(self) -> int: ...
    @property
    def read_hbm(self) -> int: ...
    @property
    def read_dram(self) -> int: ...
    @property
    def read_nvme(self) -> int: ...
    @property
    def output(self) -> int: ...
    @property
    def recomputed(self) -> int: ...
    @property
    def drafted(self) -> int: ...
    @property
    def accepted(self) -> int: ...


def usage_of(counts: EngineCounts, terms: MeteringTerms, delivered: int, fault: Fault) -> Usage:
    """What is billed for `counts` under `terms`, when `delivered` output tokens reached the client.

    The parts of the prompt add up to `counts.prompt`, or to 0 when nothing is billed. On the OpenAI surface KV that was
    there counts as read, since its rule is automatic; on the Anthropic surface only a lease makes a read.
    """
    if fault == "ours_before":
        return Usage()
    output = min(delivered, counts.output)
    found = counts.prompt - counts.computed
    automatic = found if terms.surface == "openai" and found >= terms.read_min else 0
    read = {AUTOMATIC: automatic} if automatic else {}
    return Usage(uncached=counts.prompt - automatic, read=read, output=output)


def to_billing_counts(counts: EngineCounts) -> Counts:
    """The engine's counts as billing records them."""
    return Counts(**{name: getattr(counts, name) for name in Counts.__struct_fields__})


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(MeteringTerms)


def pack(terms: MeteringTerms) -> bytes:
    """Terms as a hold keeps them."""
    return _encoder.encode(terms)


def unpack(data: bytes) -> MeteringTerms:
    """The inverse of `pack`. Raises msgspec.MsgspecError."""
    return _decoder.decode(data)
