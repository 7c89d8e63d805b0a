"""Usage and cost as Anthropic shows them: the organization's usage and cost reports.

GET /v1/organizations/usage_report/messages and /v1/organizations/cost_report
(https://docs.anthropic.com/en/api/usage-cost-api). A workspace is our project. Buckets are whole: both ends of the time
range are rounded down to the beginning of a bucket.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from billing.money import format_pico, minor_digits
from billing.prices.version import RESIDENT, STORAGE
from billing.reports.cost_report import CostGroup, CostLine, CostPage
from billing.reports.usage_report import Group, Result, UsagePage
from gateway.dialects.query_parameters import Parameters
from gateway.dialects.usage_reports import Cost, CostQuery, UsageQuery, Width, costs_by_currency, id_text
from gateway.errors import InvalidField
from storage.database.base import from_instant

_COST_LIMITS = (7, 31)
"""Days on a page of the cost report: by default, and at most."""
_SECONDS = {"1m": 60, "1h": 3600, "1d": 86_400}
_SERVICE_TIERS = {"interactive": "priority", "standard": "standard", "batch": "batch"}
_CONTEXT_WINDOWS = {False: "0-200k", True: "200k-1M"}
"""Whether the long-context prices applied -> the name of the context window."""
GROUPS: dict[str, tuple[Group, ...]] = {
    "api_key_id": ("api_key_id",),
    "workspace_id": ("project_id",),
    "model": ("model",),
    "service_tier": ("lane",),
    "context_window": ("long_context",),
    "inference_geo": (),
    "speed": (),
    "account_id": (),
    "service_account_id": (),
}
"""Values of `group_by[]` -> the report's groups; none for what is not recorded and therefore null in every result."""
COST_GROUPS: dict[str, tuple[CostGroup, ...]] = {
    "workspace_id": ("project_id",),
    "description": ("model", "lane", "meter"),
}
_NOT_RECORDED = ("context_window", "inference_geos", "speeds", "account_ids", "service_account_ids")


class CacheCreation(Struct, frozen=True):
    """Tokens written to the cache, by lifetime. Anthropic has 5 minutes and 1 hour; the others are ours."""

    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int
    ephemeral_30m_input_tokens: int
    ephemeral_12h_input_tokens: int
    ephemeral_24h_input_tokens: int


class ServerToolUse(Struct, frozen=True):
    web_search_requests: int = 0


class UsageResult(Struct, frozen=True, kw_only=True):
    """The usage of one group. `requests` and `cost` are ours; the cost is exact, an entry for each currency. So are
    `drafted_tokens`, which the replicas guessed and verified, and `accepted_tokens`, those of them that became output:
    they cost nothing."""

    uncached_input_tokens: int
    cache_creation: CacheCreation
    cache_read_input_tokens: int
    output_tokens: int
    server_tool_use: ServerToolUse = ServerToolUse()
    requests: int
    drafted_tokens: int
    accepted_tokens: int
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
    """The cost of one group in one currency. `amount` is exact, in the currency's minor units (cents)."""

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


Results = TypeVar("Results", UsageResult, CostResult)


class ReportBucket(Struct, Generic[Results], frozen=True):
    starting_at: str
    ending_at: str
    results: list[Results]


class ReportPage(Struct, Generic[Results], frozen=True):
    """A page of a report, a bucket for each span of time."""

    data: list[ReportBucket[Results]]
    has_more: bool
    next_page: str | None


def parse_usage(parameters: Parameters) -> UsageQuery | None:
    """The query of a usage report, None if it covers no whole bucket. Raises InvalidRequest naming the parameter."""
    for name in _NOT_RECORDED:
        parameters.reject(name, "usage is not recorded by this")
    tiers = parameters.choices("service_tiers", list(_SERVICE_TIERS.values()))
    width: Width = parameters.choice("bucket_width", list(_SECONDS)) or "1d"
    query = UsageQuery(
        **_time_range(parameters, width),
        width=width,
        project_ids=parameters.ids("workspace_ids"),
        key_ids=parameters.ids("api_key_ids"),
        models=parameters.texts("models"),
        lanes=None if tiers is None else [lane for lane, tier in _SERVICE_TIERS.items() if tier in tiers],
        group_by=parameters.mapped("group_by", GROUPS),
    )
    return None if _is_empty(query) else query


def parse_cost(parameters: Parameters) -> CostQuery | None:
    """The query of a cost report, None if it covers no whole day. Raises InvalidRequest naming the parameter."""
    query = CostQuery(
        **_time_range(parameters, parameters.choice("bucket_width", ("1d",)) or "1d"),
        group_by=parameters.mapped("group_by", COST_GROUPS),
        limits=_COST_LIMITS,
    )
    return None if _is_empty(query) else query


def _is_empty(query: UsageQuery | CostQuery) -> bool:
    return query.end_at is not None and query.end_at <= query.start_at


def _time_range(parameters: Parameters, width: str) -> dict[str, Any]:
    parameters.required("starting_at")
    size = _SECONDS[width] * 1_000_000
    start, end = parameters.instant("starting_at"), parameters.instant("ending_at")
    assert start is not None, "it is required"
    if end is not None and end <= start:
        raise InvalidField("ending_at", "it must be after starting_at")
    return {
        "start_at": start - start % size,
        "end_at": None if end is None else end - end % size,
        "limit": parameters.integer("limit"),
        "page": parameters.text("page"),
    }


def usage_page(report: UsagePage) -> bytes:
    """A page of the usage report as JSON."""
    return _page([(b.start_at, b.end_at, [_usage(result) for result in b.results]) for b in report.buckets], report)


def cost_page(report: CostPage) -> bytes:
    """A page of the cost report as JSON."""
    return _page([(b.start_at, b.end_at, [_cost(line) for line in b.costs]) for b in report.buckets], report)


def _page(buckets: list[tuple[int, int, Any]], report: UsagePage | CostPage) -> bytes:
    data: list[ReportBucket[Any]] = [
        ReportBucket(_timestamp(start), _timestamp(end), results) for start, end, results in buckets
    ]
    return msgspec.json.encode(ReportPage(data, report.next_page is not None, report.next_page))


def _usage(result: Result) -> UsageResult:
    usage, group = result.usage, result.group
    return UsageResult(
        uncached_input_tokens=usage.uncached,
        cache_creation=CacheCreation(*(usage.write.get(name, 0) for name in ("5m", "1h", "30m", "12h", "24h"))),
        cache_read_input_tokens=sum(usage.read.values()),
        output_tokens=usage.output,
        requests=result.requests,
        drafted_tokens=result.drafted,
        accepted_tokens=result.accepted,
        cost=costs_by_currency(result.costs_pico),
        api_key_id=id_text(group.get("api_key_id")),
        workspace_id=id_text(group.get("project_id")),
        model=group.get("model"),
        service_tier=_SERVICE_TIERS[group["lane"]] if "lane" in group else None,
        context_window=_CONTEXT_WINDOWS[group["long_context"]] if "long_context" in group else None,
    )


def _cost(line: CostLine) -> CostResult:
    group = line.group
    by_item = "meter" in group
    token_type, label = _token_type(group["meter"]) if by_item else (None, "")
    return CostResult(
        currency=line.currency,
        amount=_in_minor(line.cost_pico, line.currency),
        workspace_id=id_text(group.get("project_id")),
        description=f"{group['model']} Usage - {label}" if by_item else None,
        cost_type=_HOURLY_TYPES.get(group["meter"], ("tokens",))[0] if by_item else None,
        token_type=token_type,
        model=group.get("model"),
        service_tier=_SERVICE_TIERS[group["lane"]] if by_item and group["lane"] else None,
    )


_HOURLY_TYPES = {STORAGE: ("cache_storage", "Cache Storage"), RESIDENT: ("adapter_residency", "Adapter Residency")}
"""Types and labels of the costs of what is counted by the hour."""


def _token_type(meter: str) -> tuple[str | None, str]:
    """Anthropic's token type of a meter, and its label in descriptions. Hourly meters are of no type that it has."""
    if meter in _HOURLY_TYPES:
        return None, _HOURLY_TYPES[meter][1]
    match meter.partition("_"):
        case "read", _, lifetime:
            return "cache_read_input_tokens", f"Input Tokens, Cache Read ({lifetime})"
        case "write", _, lifetime:
            return f"cache_creation.ephemeral_{lifetime}_input_tokens", f"Input Tokens, Cache Write ({lifetime})"
        case "output", _, _:
            return "output_tokens", "Output Tokens"
    return "uncached_input_tokens", "Input Tokens"


def _in_minor(pico: int, currency: str) -> str:
    """Pico-units as a decimal number of the currency's minor units (cents), exactly."""
    places = minor_digits(currency)
    text = format_pico(pico * 10**places)  # the last `places` digits are 0
    return text[: len(text) - places]


def _timestamp(instant: int) -> str:
    return from_instant(instant).strftime("%Y-%m-%dT%H:%M:%SZ")
