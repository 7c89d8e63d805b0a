"""Usage as OpenAI shows it in a chat or text completion: totals, and details that are parts of them.

Source: https://platform.openai.com/docs/api-reference/chat/object and the types of the official client. Written tokens
are split by lifetime as the Responses API does it. `cost` and `cached_tokens_details` are ours, and so are lifetimes
beside 30 minutes and 12 hours: a lease may have been written by a client of another dialect.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from billing.money import format_pico
from billing.usage import AUTOMATIC, LEASE_CLASSES, Usage
from gateway.dialects.usage_reports import Cost, expiry_text

_FIELDS = {AUTOMATIC: "automatic_tokens"} | {name: f"ttl_{name}_tokens" for name in LEASE_CLASSES}


class WriteDetails(Struct, frozen=True):
    """Tokens written, by the lifetime of their lease. OpenAI has the first two; the others appear if they have any."""

    ttl_30m_tokens: int = 0
    ttl_12h_tokens: int = 0
    ttl_5m_tokens: int | UnsetType = UNSET
    ttl_1h_tokens: int | UnsetType = UNSET
    ttl_24h_tokens: int | UnsetType = UNSET


class ReadDetails(Struct, frozen=True):
    """Tokens read under a lease, by its lifetime, and those whose KV was there without one."""

    automatic_tokens: int = 0
    ttl_30m_tokens: int | UnsetType = UNSET
    ttl_12h_tokens: int | UnsetType = UNSET
    ttl_5m_tokens: int | UnsetType = UNSET
    ttl_1h_tokens: int | UnsetType = UNSET
    ttl_24h_tokens: int | UnsetType = UNSET


class PromptDetails(Struct, frozen=True):
    """Parts of the prompt. What was written or read under leases has details only if there is any."""

    cached_tokens: int
    cache_write_tokens: int = 0
    audio_tokens: int = 0
    cache_write_tokens_details: WriteDetails | UnsetType = UNSET
    cached_tokens_details: ReadDetails | UnsetType = UNSET


class CompletionDetails(Struct, frozen=True):
    """Parts of the output, but for rejected tokens of a prediction: these were never output and are not billed."""

    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class CompletionUsage(Struct, frozen=True):
    """The details are parts of the totals. `cost` and `cache_expires_at` (RFC 3339) are ours; the latter says when the
    lease ends on the longest part of the prompt, if there is one."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
    cost: Cost
    cache_expires_at: str | UnsetType = UNSET


def completion_usage(
    usage: Usage,
    cost_pico: int,
    currency: str,
    cached_until: int | None = None,
    *,
    reasoning: int = 0,
    predicted: tuple[int, int] = (0, 0),
) -> CompletionUsage:
    """The usage object of a chat or text completion. `cached_until`: microseconds since the Unix epoch.
    `reasoning`: tokens of the output that are the model's reasoning. `predicted`: tokens of the client's prediction
    that became output, and the others."""
    return CompletionUsage(
        prompt_tokens=usage.prompt,
        completion_tokens=usage.output,
        total_tokens=usage.prompt + usage.output,
        prompt_tokens_details=_prompt_details(usage),
        completion_tokens_details=CompletionDetails(
            reasoning_tokens=reasoning,
            accepted_prediction_tokens=predicted[0],
            rejected_prediction_tokens=predicted[1],
        ),
        cost=Cost(currency, format_pico(cost_pico)),
        cache_expires_at=UNSET if cached_until is None else expiry_text(cached_until),
    )


def usage_in(shown: CompletionUsage) -> Usage:
    """The usage that a usage object shows: the inverse of `completion_usage`."""
    details = shown.prompt_tokens_details
    cached = details.cached_tokens_details
    return Usage(
        uncached=shown.prompt_tokens - details.cached_tokens - details.cache_write_tokens,
        read=_tokens(cached) if cached is not UNSET else _tokens(ReadDetails(details.cached_tokens)),
        write={} if details.cache_write_tokens_details is UNSET else _tokens(details.cache_write_tokens_details),
        output=shown.completion_tokens,
    )


def _prompt_details(usage: Usage) -> PromptDetails:
    read, write = usage.read, usage.write
    by_lease = any(tokens and name != AUTOMATIC for name, tokens in read.items())
    written = sum(write.values())
    return PromptDetails(
        sum(read.values()),
        written,
        cache_write_tokens_details=WriteDetails(**_fields(write)) if written else UNSET,
        cached_tokens_details=ReadDetails(**_fields(read)) if by_lease else UNSET,
    )


def _fields(tokens: dict[str, int]) -> dict[str, int]:
    return {_FIELDS[name]: count for name, count in tokens.items() if count}


def _tokens(details: ReadDetails | WriteDetails) -> dict[str, int]:
    shown: dict[str, Any] = msgspec.structs.asdict(details)
    given = {name: shown.get(field, UNSET) for name, field in _FIELDS.items()}
    return {name: tokens for name, tokens in given.items() if tokens is not UNSET and tokens}
