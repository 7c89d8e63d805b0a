"""Our own explanation of what the cache did for a request, in full: the same in responses, reports and a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from msgspec import Struct

from billing.calendar import format_instant
from billing.money import format_pico
from gateway.generation.request_history import Finding
from gateway.metering.miss_prices import LongerLease, MissPrice
from gateway.request_context import public_name
from prompt_cache.history.diagnosis import Cause, Miss

ADVICE: dict[str, str] = {
    "no_read": "The request asked not to read the cache, or only what is younger.",
    "no_store": "With no-store KV stays in the device's memory: no lease is written, and nothing outlives it there.",
    "below_minimum": "What is shorter than the model's least cacheable length is not cached.",
    "model_changed": "Another model has a cache of its own: keep one model for a conversation.",
    "template_changed": "The model's chat template or tokenizer changed, so that its prompts are others.",
    "partition_changed": "Each prompt_cache_key or cache_salt has its own cache: use the same for the same prefix.",
    "lease_limit": "The project's leases were at their limit, so that none was written.",
    "not_yet_visible": "The earlier request had not begun to answer: send the others after its first token.",
    "purged": "The entry was purged on request.",
    "lease_expired": "The lease ended before this request: a longer class, or a read meanwhile, keeps it alive.",
    "unmarked": "No marker covers these tokens: put a breakpoint at the end of what stays the same.",
    "lookback_exceeded": "The entry ends too far before this request's markers: mark its end again.",
    "block_rest": "Without a lease tokens are found in whole blocks, and at least one is always computed.",
    "corrupted": "What was stored failed its check and was computed again.",
    "late": "The KV was kept in a slower tier, and computing it was quicker than waiting for it.",
    "other_replica": "The earlier request ran on another replica; a lease would have been billed as read.",
    "evicted": "The KV was evicted; a lease would have been billed as read.",
    "diverged": "The prompt differs from an earlier one here: move what changes behind what stays.",
    "cold": "No earlier request had these tokens.",
}
_UNKNOWN = "This gateway does not know the cause: a newer one found it."


class LongerLeaseObject(Struct, frozen=True):
    """The shortest class that would have hit: what writing under it costs more, and what reading would have saved."""

    ttl: str
    premium: str
    saved: str


class MissObject(Struct, frozen=True, kw_only=True):
    """The tokens [start, end) of the prompt. `path` is the JSON path of the first in the request; of `diverged`, of the
    token `differs_at`, where the prompt parts from the earlier one. `against`: the earlier request that it was compared
    with. `at`: when what `cause` says happened. `ttl`: the class that they could have been read under. `cost`: what
    they cost beyond a read, as a decimal."""

    cause: Cause
    start: int
    end: int
    tokens: int
    path: str
    differs_at: int | None
    against: str | None
    at: str | None
    ttl: str | None
    cost: str | None
    longer_ttl: LongerLeaseObject | None
    advice: str


class CacheExplanation(Struct, frozen=True, kw_only=True):
    """What became of each token of a prompt: `read_tokens` and the `misses` add up to `prompt_tokens`.

    `recomputed`: billed as read, although its KV was lost. `nearest`: the earlier request that begins alike for
    longest.
    """

    object: str = "cache.explanation"
    request_id: str
    model: str
    created_at: str
    prompt_tokens: int
    read_tokens: int
    missed_tokens: int
    currency: str | None
    missed_cost: str | None
    nearest: str | None
    common_tokens: int
    misses: list[MissObject]
    recomputed: list[MissObject]


def explanation_of(finding: Finding) -> CacheExplanation:
    """A finding as JSON."""
    diagnosis, record = finding.diagnosis, finding.record
    prices: Sequence[MissPrice | None] = finding.prices or [None] * len(diagnosis.misses)
    priced = sum(price.cost_pico for price in finding.prices)
    return CacheExplanation(
        request_id=public_name(record.id),
        model=record.model,
        created_at=format_instant(record.at),
        prompt_tokens=diagnosis.tokens,
        read_tokens=diagnosis.read,
        missed_tokens=diagnosis.tokens - diagnosis.read,
        currency=finding.currency or None,
        missed_cost=format_pico(priced) if finding.currency else None,
        nearest=None if diagnosis.nearest is None else public_name(diagnosis.nearest),
        common_tokens=diagnosis.common,
        misses=[_miss(miss, price) for miss, price in zip(diagnosis.misses, prices, strict=True)],
        recomputed=[_miss(miss, None) for miss in diagnosis.recomputed],
    )


def _miss(miss: Miss, price: MissPrice | None) -> MissObject:
    return MissObject(
        cause=cast(Cause, miss.cause),  # a newer gateway's document lists its own
        start=miss.start,
        end=miss.end,
        tokens=miss.tokens,
        path=miss.path,
        differs_at=miss.differs_at,
        against=None if miss.against is None else public_name(miss.against),
        at=None if miss.at is None else format_instant(miss.at),
        ttl=miss.lease or None,
        cost=None if price is None else format_pico(price.cost_pico),
        longer_ttl=None if price is None or price.longer is None else _longer(price.longer),
        advice=ADVICE.get(miss.cause, _UNKNOWN),
    )


def _longer(longer: LongerLease) -> LongerLeaseObject:
    return LongerLeaseObject(longer.lease, format_pico(longer.premium_pico), format_pico(longer.saved_pico))


class CauseSum(Struct, frozen=True, kw_only=True):
    """Missed tokens of one cause; the cause `read` has the tokens that were read. `cost`: beyond a read, a decimal."""

    cause: str
    requests: int
    tokens: int
    cost: str


class CacheDay(Struct, frozen=True, kw_only=True):
    """A project's day (UTC) with one model: `read_tokens` and the causes' tokens add up to `prompt_tokens`."""

    date: str
    project_id: str
    model: str
    currency: str | None
    prompt_tokens: int
    read_tokens: int
    missed_cost: str
    causes: list[CauseSum]


class CacheDays(Struct, frozen=True, kw_only=True):
    """Of the requests that the history has seen: those with markers, and those long enough to be cached."""

    object: str = "list"
    data: list[CacheDay]


def cache_days(rows: Iterable[Any]) -> CacheDays:
    """The rows of `History.days`, the causes that cost most first."""
    groups: dict[tuple[str, str, str, str], list[Any]] = {}
    for row in rows:
        groups.setdefault((row.day, str(row.project_id), row.model, row.currency), []).append(row)
    return CacheDays(data=[_day(place, group) for place, group in groups.items()])


def _day(place: tuple[str, str, str, str], rows: Sequence[Any]) -> CacheDay:
    missed = sorted((row for row in rows if row.cause != "read"), key=lambda row: (-row.cost_pico, -row.tokens))
    day, project, model, currency = place
    return CacheDay(
        date=day,
        project_id=project,
        model=model,
        currency=currency or None,
        prompt_tokens=sum(row.tokens for row in rows),
        read_tokens=sum(row.tokens for row in rows if row.cause == "read"),
        missed_cost=format_pico(sum(row.cost_pico for row in missed)),
        causes=[
            CauseSum(cause=row.cause, requests=row.requests, tokens=row.tokens, cost=format_pico(row.cost_pico))
            for row in missed
        ],
    )
