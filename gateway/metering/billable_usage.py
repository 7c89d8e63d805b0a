"""Makes billable usage of the engine's counts: the one place where what was done meets what was promised."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from billing.holds.records import Hold
from billing.prices import PriceMissing, PriceVersion, UnknownPriceVersion
from billing.usage import AUTOMATIC, Counts, DeliveryCertainty, RecordedBy, Status, Usage, UsageEvent
from gateway.generation_request import Dialect
from prompt_cache.promise.lease_decisions import LeasePart, split_prompt
from protocol.requests import Counts as EngineCounts
from storage.database import clock

Fault = Literal["none", "client", "ours_before", "ours_after"]
"""Whose fault the end of a request was. `client`: it left. `ours_before`, `ours_after`: the service failed, before or
after the first token reached the client; before it nothing is billed."""


class MeteringTerms(Struct, frozen=True, omit_defaults=True):
    """What was promised at admission, kept in the hold so that a journal's counts suffice to bill the request.

    `read_min`: KV found for fewer tokens is not counted as read. `prompt_tokens`: length of the whole rendered prompt.
    `leases`: the parts of the prompt that leases cover, from its beginning.
    """

    surface: Dialect
    read_min: int
    prompt_tokens: int
    leases: tuple[LeasePart, ...] = ()


def usage_of(counts: EngineCounts, terms: MeteringTerms, delivered: int, fault: Fault) -> Usage:
    """What is billed for `counts` under `terms`, when `delivered` output tokens reached the client.

    The parts of the prompt add up to `counts.prompt`, or to 0 when nothing is billed. What leases cover is billed as
    they promised, wherever its KV was. Beyond them, KV that was found counts as read in OpenAI's dialect, whose
    caching is automatic; in Anthropic's only a lease makes a read.
    """
    if fault == "ours_before":
        return Usage()
    output = min(delivered, counts.output)
    found = counts.prompt - counts.computed
    read, write, covered = split_prompt(terms.leases, counts.prompt)
    automatic = found - covered if terms.surface == "openai" and found >= terms.read_min else 0
    if automatic > 0:
        read[AUTOMATIC] = automatic
        covered += automatic
    return Usage(uncached=counts.prompt - covered, read=read, write=write, output=output)


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


NONSENSE = (ValueError, msgspec.MsgspecError, PriceMissing, UnknownPriceVersion)
"""Raised where no event can be made of what a replica says: impossible counts, unreadable terms, an unknown price."""


class FinishedRequest(Struct, frozen=True, kw_only=True):
    """What is known of a finished request beside its hold, terms, price and counts."""

    status: Status
    reason: str
    fault: Fault
    delivered: int
    delivery: DeliveryCertainty
    source: RecordedBy
    replica: str
    model_digest: str
    sequence: int
    attempt: int


def event_of(
    hold: Hold, terms: MeteringTerms, price: PriceVersion, counts: EngineCounts, record: FinishedRequest
) -> UsageEvent:
    """The usage event of a request. Raises InvalidUsage if its identities do not hold."""
    usage = usage_of(counts, terms, record.delivered, record.fault)
    return UsageEvent(
        id=hold.request_id,
        tenant_id=hold.tenant_id,
        project_id=hold.project_id,
        key_id=hold.key_id,
        model=hold.model,
        model_digest=record.model_digest,
        lane=hold.lane,
        price_version=hold.price_version,
        admitted_at=hold.admitted_at,
        finished_at=max(hold.admitted_at, clock.instant()),
        period=hold.period,
        status=record.status,
        reason=record.reason,
        delivery=record.delivery,
        source=record.source,
        replica=record.replica,
        sequence=record.sequence,
        attempt=record.attempt,
        counts=to_billing_counts(counts),
        usage=usage,
        cost_pico=price.cost(usage, hold.lane),
        context_from=price.context_from(usage.prompt, hold.lane),
        hold_batch=hold.batch,
        allowance=hold.allowance,
    )
