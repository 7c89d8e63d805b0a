"""GET /v1/organizations/usage_report/messages and /v1/organizations/cost_report, in Anthropic's shapes.

Our projects are its workspaces. Buckets are whole: the start is snapped down to a bucket's, and so is the end.
"""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

import msgspec
from msgspec import Struct

from billing.money import format_pico, minor_digits
from billing.reports.cost_report import CostGroup, CostLine, CostPage
from billing.reports.usage_report import Group, Result, UsagePage
from gateway.dialects.openai.chat_response import Cost
from gateway.dialects.query_parameters import Parameters
from gateway.errors import InvalidRequest
from storage.database.base import from_instant

Width = Literal["1m", "1h", "1d"]
COST_LIMITS = (7, 31)
_SECONDS = {"1m": 60, "1h": 3600, "1d": 86_400}
_SERVICE_TIERS = {"interactive": "priority", "standard": "standard", "batch": "batch"}
_CONTEXT_WINDOWS = {False: "0-200k", True: "200k-1M"}
"""By the context tier that priced the request."""
_GROUPS: dict[str, Group | None] = {
    "api_key_id": "api_key_id",
    "workspace_id": "project_id",
    "model": "model",
    "service_tier": "lane",
    "context_window": "long_context",
    "inference_geo": None,
    "speed": None,
    "account_id": None,
    "service_account_id": None,
}
"""What may be grouped by, and as what; None: nothing is known of it here, so it is null everywhere."""
_COST_GROUPS: dict[str, tuple[CostGroup, ...]] = {
    "workspace_id": ("project_id",),
    "description": ("model", "lane", "meter"),
}
_UNKNOWN = ("context_window", "inference_geos", "speeds", "account_ids", "service_account_ids")


class Query(Struct, frozen=True, kw_only=True):
    """What was asked for; instants in microseconds since the Unix epoch. `empty`: no whole bucket was asked for."""

    start_at: int
    end_at: int | None
    width: Width
    limit: int | None
    page: str | None

    @property
    def empty(self) -> bool:
        """Whether the end, snapped, is not after the start."""
        return self.end_at is not None and self.end_at <= self.start_at


class UsageQuery(Query, frozen=True, kw_only=True):
    """What the usage report was asked for."""

    project_ids: list[UUID] | None
    key_ids: list[UUID] | None
    models: list[str] | None
    lanes: list[str] | None
    group_by: list[Group]


class CostQuery(Query, frozen=True, kw_only=True):
    """What the cost report was asked for."""

    group_by: list[CostGroup]


class CacheCreation(Struct, frozen=True):
    """Tokens written, by class of life. Anthropic has the two of 5 minutes and 1 hour; the others are ours."""

    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int
    ephemeral_30m_input_tokens: int
    ephemeral_12h_input_tokens: int
    ephemeral_24h_input_tokens: int


class ServerToolUse(Struct, frozen=True):
    web_search_requests: int = 0


class UsageResult(Struct, frozen=True, kw_only=True):
    """One group's usage. `requests` and `cost` are not Anthropic's; the cost is exact, one entry for each currency."""

    uncached_input_tokens: int
    cache_creation: CacheCreation
    cache_read_input_tokens: int
    output_tokens: int
    server_tool_use: ServerToolUse = ServerToolUse()
    requests: int
    cost: list[Cost]
    api_key_id: str | None = None
    workspace_id: str | None = None
    model: str | None = None
    service_tier: str | None = None
    context_window: str | None = None
    inference_geo: str | None = None
    speed: str | None = None
    account_id: str | None = None
    service_account_id: str | None = None


class CostResult(Struct, frozen=True, kw_only=True):
    """One group's cost in one currency. `amount` is exact, in the currency's minor units (cents)."""

    currency: str
    amount: str
    workspace_id: str | None = None
    description: str | None = None
    cost_type: str | None = None
    token_type: str | None = None
    model: str | None = None
    service_tier: str | None = None
    context_window: str | None = None
    inference_geo: str | None = None


class Bucket(Struct, frozen=True):
    starting_at: str
    ending_at: str
    results: list[UsageResult] | list[CostResult]


class BucketPage(Struct, frozen=True):
    data: list[Bucket]
    has_more: bool
    next_page: str | None


def parse_usage(given: Parameters) -> UsageQuery:
    """The query. Raises InvalidRequest naming the parameter."""
    for name in _UNKNOWN:
        given.refuse(name, "usage is not recorded by this here")
    tiers = given.choices("service_tiers", list(_SERVICE_TIERS.values()))
    return UsageQuery(
        **_times(given, given.choice("bucket_width", list(_SECONDS)) or "1d"),
        project_ids=given.ids("workspace_ids"),
        key_ids=given.ids("api_key_ids"),
        models=given.many("models"),
        lanes=None if tiers is None else [lane for lane, tier in _SERVICE_TIERS.items() if tier in tiers],
        group_by=[group for name in given.choices("group_by", list(_GROUPS)) or () if (group := _GROUPS[name])],
    )


def parse_cost(given: Parameters) -> CostQuery:
    """The query. Raises InvalidRequest naming the parameter."""
    return CostQuery(
        **_times(given, given.choice("bucket_width", ("1d",)) or "1d"),
        group_by=[part for name in given.choices("group_by", list(_COST_GROUPS)) or () for part in _COST_GROUPS[name]],
    )


def _times(given: Parameters, width: str) -> dict[str, Any]:
    given.required("starting_at")
    size = _SECONDS[width] * 1_000_000
    start, end = given.instant("starting_at"), given.instant("ending_at")
    if start is None or start < 0:
        raise InvalidRequest("starting_at: it is before 1970.", path="starting_at", code="invalid_value")
    if end is not None and end <= start:
        raise InvalidRequest("ending_at: it is not after the start.", path="ending_at", code="invalid_value")
    return {
        "start_at": start - start % size,
        "end_at": None if end is None else end - end % size,
        "width": width,
        "limit": given.whole("limit"),
        "page": given.one("page"),
    }


def usage_page(found: UsagePage) -> bytes:
    """The report as Anthropic's page, in JSON."""
    return _page(
        [(b.start_at, b.end_at, [_usage(result) for result in b.results]) for b in found.buckets], found.next_page
    )


def cost_page(found: CostPage) -> bytes:
    """The report as Anthropic's page, in JSON."""
    return _page([(b.start_at, b.end_at, [_cost(line) for line in b.costs]) for b in found.buckets], found.next_page)


def no_page() -> bytes:
    """A page without buckets, in JSON."""
    return _page([], None)


def _page(buckets: list[tuple[int, int, Any]], next_page: str | None) -> bytes:
    data = [Bucket(_timestamp(start), _timestamp(end), results) for start, end, results in buckets]
    return msgspec.json.encode(BucketPage(data, next_page is not None, next_page))


def _usage(result: Result) -> UsageResult:
    usage, group = result.usage, result.group
    return UsageResult(
        uncached_input_tokens=usage.uncached,
        cache_creation=CacheCreation(*(usage.write.get(name, 0) for name in ("5m", "1h", "30m", "12h", "24h"))),
        cache_read_input_tokens=sum(usage.read.values()),
        output_tokens=usage.output,
        requests=result.requests,
        cost=[Cost(currency, format_pico(pico)) for currency, pico in sorted(result.costs_pico.items())],
        api_key_id=_text(group.get("api_key_id")),
        workspace_id=_text(group.get("project_id")),
        model=group.get("model"),
        service_tier=_SERVICE_TIERS[group["lane"]] if "lane" in group else None,
        context_window=_CONTEXT_WINDOWS[group["long_context"]] if "long_context" in group else None,
    )


def _cost(line: CostLine) -> CostResult:
    group = line.group
    by_item = "meter" in group
    token_type, words = _described(group["meter"]) if by_item else (None, "")
    return CostResult(
        currency=line.currency,
        amount=_in_minor(line.cost_pico, line.currency),
        workspace_id=_text(group.get("project_id")),
        description=f"{group['model']} Usage - {words}" if by_item else None,
        cost_type="tokens" if by_item else None,
        token_type=token_type,
        model=group.get("model"),
        service_tier=_SERVICE_TIERS[group["lane"]] if by_item else None,
    )


def _described(meter: str) -> tuple[str, str]:
    """Anthropic's token type of a meter, and the words for it."""
    if meter in ("uncached", "output"):
        return {"uncached": ("uncached_input_tokens", "Input Tokens"), "output": ("output_tokens", "Output Tokens")}[
            meter
        ]
    kind, _, of = meter.partition("_")
    if kind == "read":
        return "cache_read_input_tokens", f"Input Tokens, Cache Read ({of})"
    return f"cache_creation.ephemeral_{of}_input_tokens", f"Input Tokens, Cache Write ({of})"


def _in_minor(pico: int, currency: str) -> str:
    """Pico-units as a decimal number of the currency's minor units (cents), exactly."""
    places = minor_digits(currency)
    text = format_pico(pico * 10**places)  # its last places are 0 now
    return text[: len(text) - places]


def _timestamp(instant: int) -> str:
    return from_instant(instant).strftime("%Y-%m-%dT%H:%M:%SZ")


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
