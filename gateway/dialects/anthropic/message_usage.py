"""Usage as Anthropic shows it in a message: disjoint parts of the prompt, which add up to it.

Source: https://docs.anthropic.com/en/api/messages. `cache_read` and the lifetimes beside 5 minutes and 1 hour are ours:
a lease may have been written by a client of another dialect.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from billing.money import format_pico
from billing.usage import AUTOMATIC, LEASE_CLASSES, Usage
from gateway.dialects.usage_reports import Cost, expiry_text
from protocol.requests import Lane

SERVICE_TIER_OF: dict[Lane, str] = {"interactive": "priority", "standard": "standard", "batch": "batch"}
"""Lane -> `service_tier` in a message's usage."""
_FIELDS = {name: f"ephemeral_{name}_input_tokens" for name in LEASE_CLASSES}


class CacheLifetimes(Struct, frozen=True):
    """Tokens by the lifetime of their lease. Anthropic has the first two; the others appear only if they have any."""

    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0
    ephemeral_30m_input_tokens: int | UnsetType = UNSET
    ephemeral_12h_input_tokens: int | UnsetType = UNSET
    ephemeral_24h_input_tokens: int | UnsetType = UNSET


class OutputDetails(Struct, frozen=True):
    """Tokens of reasoning, with the markers around it; part of the output."""

    thinking_tokens: int = 0


class MessageUsage(Struct, frozen=True, kw_only=True):
    """`input_tokens` is only what was neither read nor written. `cost` and `cache_expires_at` (RFC 3339, when the lease
    ends on the longest part of the prompt) are ours, and stand where they are known."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    cache_creation: CacheLifetimes
    cache_read: CacheLifetimes | UnsetType = UNSET
    output_tokens: int
    output_tokens_details: OutputDetails = OutputDetails()
    service_tier: str
    cost: Cost | UnsetType = UNSET
    cache_expires_at: str | UnsetType = UNSET


def message_usage(
    usage: Usage,
    *,
    lane: Lane,
    cost_pico: int | None = None,
    currency: str = "",
    cached_until: int | None = None,
    reasoning: int = 0,
) -> MessageUsage:
    """The usage object of a message. `cost_pico`: what it cost, if known. `cached_until`: when the lease ends, in
    microseconds since the Unix epoch."""
    reads = {name: tokens for name, tokens in usage.read.items() if name != AUTOMATIC and tokens}
    return MessageUsage(
        input_tokens=usage.uncached,
        cache_creation_input_tokens=sum(usage.write.values()),
        cache_read_input_tokens=sum(usage.read.values()),
        cache_creation=_lifetimes(usage.write),
        cache_read=_lifetimes(reads) if reads else UNSET,
        output_tokens=usage.output,
        output_tokens_details=OutputDetails(reasoning),
        service_tier=SERVICE_TIER_OF[lane],
        cost=UNSET if cost_pico is None else Cost(currency, format_pico(cost_pico)),
        cache_expires_at=UNSET if cached_until is None else expiry_text(cached_until),
    )


def usage_in(shown: MessageUsage) -> Usage:
    """The usage that a usage object shows: the inverse of `message_usage`."""
    read = {} if shown.cache_read is UNSET else _tokens(shown.cache_read)
    automatic = shown.cache_read_input_tokens - sum(read.values())
    return Usage(
        uncached=shown.input_tokens,
        read=read | ({AUTOMATIC: automatic} if automatic else {}),
        write=_tokens(shown.cache_creation),
        output=shown.output_tokens,
    )


def _lifetimes(tokens: dict[str, int]) -> CacheLifetimes:
    return CacheLifetimes(**{_FIELDS[name]: count for name, count in tokens.items() if count})


def _tokens(lifetimes: CacheLifetimes) -> dict[str, int]:
    shown: dict[str, Any] = msgspec.structs.asdict(lifetimes)
    return {name: shown[field] for name, field in _FIELDS.items() if shown[field] is not UNSET and shown[field]}
