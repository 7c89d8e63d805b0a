"""Usage and cost as OpenAI shows them: the organization's usage and cost reports.

GET /v1/organization/usage/completions and /v1/organization/costs
(https://platform.openai.com/docs/api-reference/usage). A report's amount comes twice: as a JSON number with all its
digits, which OpenAI's clients read, and as a string, which no client rounds.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from billing.money import format_pico
from billing.prices.version import RESIDENT, STORAGE
from billing.reports.cost_report import CostGroup, CostLine, CostPage, LineItem
from billing.reports.usage_report import Group, Result, UsagePage
from billing.usage import METERS
from gateway.dialects.openai.common_request import SERVICE_TIER_OF
from gateway.dialects.query_parameters import Parameters
from gateway.dialects.usage_reports import Cost, CostQuery, UsageQuery, costs_by_currency, id_text
from gateway.errors import InvalidField

_MICRO = 1_000_000
GROUPS: dict[str, tuple[Group, ...]] = {
    "project_id": ("project_id",),
    "api_key_id": ("api_key_id",),
    "model": ("model",),
    "batch": ("batch",),
    "service_tier": ("lane",),
    "user_id": (),
    "api_source": (),
}
"""Values of `group_by` -> the report's groups; none for what is not recorded and therefore null in every result."""
COST_GROUPS: dict[str, tuple[CostGroup, ...]] = {
    "project_id": ("project_id",),
    "api_key_id": ("api_key_id",),
    "line_item": ("model", "lane", "meter"),
    "user_id": (),
    "api_source": (),
}
_NO_USERS = "usage is not recorded by user"

# ---------------------------------------------------------------- the usage report


class UsageResult(Struct, frozen=True, kw_only=True):
    """The usage of one group. `cost` is ours: exact, an entry for each currency. So are the writes of classes that
    OpenAI does not have, which are left out where there are none: with them the writes add up. `drafted_tokens` were
    guessed and verified by the replicas, and `accepted_tokens` of them became output: they cost nothing."""

    object: str = "organization.usage.completions.result"
    input_tokens: int
    input_uncached_tokens: int
    input_cached_tokens: int
    input_cache_write_tokens: int
    input_cache_write_30m_tokens: int
    input_cache_write_12h_tokens: int
    input_cache_write_5m_tokens: int | UnsetType = UNSET
    input_cache_write_1h_tokens: int | UnsetType = UNSET
    input_cache_write_24h_tokens: int | UnsetType = UNSET
    input_text_tokens: int
    input_cached_text_tokens: int
    output_tokens: int
    output_text_tokens: int
    input_audio_tokens: int = 0
    input_cached_audio_tokens: int = 0
    input_image_tokens: int = 0
    input_cached_image_tokens: int = 0
    output_audio_tokens: int = 0
    output_image_tokens: int = 0
    num_model_requests: int
    drafted_tokens: int
    accepted_tokens: int
    cost: list[Cost]
    project_id: str | None = None
    api_key_id: str | None = None
    user_id: str | None = None
    model: str | None = None
    batch: bool | None = None
    service_tier: str | None = None
    api_source: str | None = None


def parse_usage(parameters: Parameters) -> UsageQuery:
    """The query of a usage report. Raises InvalidRequest naming the parameter."""
    parameters.reject("user_ids", _NO_USERS)
    return UsageQuery(
        start_at=_start(parameters),
        end_at=parameters.seconds("end_time"),
        width=parameters.choice("bucket_width", ("1m", "1h", "1d")) or "1d",
        project_ids=parameters.ids("project_ids"),
        key_ids=parameters.ids("api_key_ids"),
        models=parameters.texts("models"),
        group_by=parameters.mapped("group_by", GROUPS),
        batch=parameters.boolean("batch"),
        limit=parameters.integer("limit"),
        page=parameters.text("page"),
    )


def usage_page(report: UsagePage) -> bytes:
    """A page of the usage report as JSON."""
    return _page([(b.start_at, b.end_at, [_usage(result) for result in b.results]) for b in report.buckets], report)


def _usage(result: Result) -> UsageResult:
    usage, group = result.usage, result.group
    cached, written = sum(usage.read.values()), sum(usage.write.values())
    return UsageResult(
        input_tokens=usage.prompt,
        input_uncached_tokens=usage.uncached,
        input_cached_tokens=cached,
        input_cache_write_tokens=written,
        input_cache_write_30m_tokens=usage.write.get("30m", 0),
        input_cache_write_12h_tokens=usage.write.get("12h", 0),
        input_cache_write_5m_tokens=usage.write.get("5m") or UNSET,
        input_cache_write_1h_tokens=usage.write.get("1h") or UNSET,
        input_cache_write_24h_tokens=usage.write.get("24h") or UNSET,
        input_text_tokens=usage.uncached,
        input_cached_text_tokens=cached,
        output_tokens=usage.output,
        output_text_tokens=usage.output,
        num_model_requests=result.requests,
        drafted_tokens=result.drafted,
        accepted_tokens=result.accepted,
        cost=costs_by_currency(result.costs_pico),
        project_id=id_text(group.get("project_id")),
        api_key_id=id_text(group.get("api_key_id")),
        model=group.get("model"),
        batch=group.get("batch"),
        service_tier=SERVICE_TIER_OF[group["lane"]] if "lane" in group else None,
    )


# ---------------------------------------------------------------- the cost report


class Amount(Struct, frozen=True):
    """`value` is a JSON number with all its digits. `exact` is ours: the same digits as a string."""

    value: Annotated[Raw, Meta(extra_json_schema={"type": "number"}, examples=[0.000412])]
    currency: str
    exact: str


class CostResult(Struct, frozen=True, kw_only=True):
    """The cost of one group in one currency."""

    object: str = "organization.costs.result"
    amount: Amount
    line_item: str | None = None
    quantity: int | None = None
    quantity_unit: str | None = None
    project_id: str | None = None
    api_key_id: str | None = None
    user_id: str | None = None
    api_source: str | None = None


def parse_costs(parameters: Parameters) -> CostQuery:
    """The query of a cost report. Raises InvalidRequest naming the parameter."""
    parameters.choice("bucket_width", ("1d",))
    names = parameters.texts("line_items")
    return CostQuery(
        start_at=_start(parameters),
        end_at=parameters.seconds("end_time"),
        project_ids=parameters.ids("project_ids"),
        key_ids=parameters.ids("api_key_ids"),
        line_items=None if names is None else {_line_item(name) for name in names},
        group_by=parameters.mapped("group_by", COST_GROUPS),
        limit=parameters.integer("limit"),
        page=parameters.text("page"),
    )


def costs_page(report: CostPage) -> bytes:
    """A page of the cost report as JSON."""
    return _page([(b.start_at, b.end_at, [_cost(line) for line in b.costs]) for b in report.buckets], report)


def _cost(line: CostLine) -> CostResult:
    group, exact = line.group, format_pico(line.cost_pico)
    by_item = "meter" in group
    return CostResult(
        amount=Amount(Raw(exact.encode()), line.currency.lower(), exact),
        line_item=line_item_name(group["model"], group["lane"], group["meter"]) if by_item else None,
        quantity=line.units if by_item else None,
        quantity_unit=_QUANTITY_UNITS.get(group["meter"], "tokens") if by_item else None,
        project_id=id_text(group.get("project_id")),
        api_key_id=id_text(group.get("api_key_id")),
    )


def _item(meter: str) -> str:
    """The line item of a meter, without model and tier."""
    match meter.partition("_"):
        case "read", _, "automatic":
            return "cached_input_tokens"
        case "read", _, lifetime:
            return f"cached_{lifetime}_input_tokens"
        case "write", _, lifetime:
            return f"cache_write_{lifetime}_input_tokens"
    return {"uncached": "input_tokens", "output": "output_tokens"}[meter]


_METERS = {_item(meter): meter for meter in METERS}
_HOURLY_ITEMS = {STORAGE: "cache_storage", RESIDENT: "adapter_residency"}
_HOURLY_METERS = {item: meter for meter, item in _HOURLY_ITEMS.items()}
_QUANTITY_UNITS = {STORAGE: "token_seconds", RESIDENT: "millihours"}


def line_item_name(model: str, lane: str | None, meter: str) -> str:
    """A line item's name, such as `tiny, input_tokens`. The service tier comes last, unless it is the default."""
    if lane is None:
        return f"{model}, {_HOURLY_ITEMS[meter]}"
    return ", ".join([model, _item(meter), *([] if lane == "standard" else [SERVICE_TIER_OF[lane]])])


def _line_item(name: str) -> LineItem:
    """The inverse of `line_item_name`. Raises InvalidRequest."""
    head, _, last = name.rpartition(", ")
    if head and last in _HOURLY_METERS:
        return head, "", _HOURLY_METERS[last]
    lane = next((lane for lane, tier in SERVICE_TIER_OF.items() if tier == last and lane != "standard"), None)
    model, _, item = head.rpartition(", ") if lane else (head, "", last)
    if not model or item not in _METERS:
        raise InvalidField("line_items", f"there is no line item {name[:80]!r}")
    return model, lane or "standard", _METERS[item]


# ---------------------------------------------------------------- both reports

Results = TypeVar("Results", UsageResult, CostResult)


class Bucket(Struct, Generic[Results], frozen=True, kw_only=True):
    object: str = "bucket"
    start_time: int
    end_time: int
    results: list[Results]


class BucketPage(Struct, Generic[Results], frozen=True, kw_only=True):
    """A page of a report, a bucket for each span of time."""

    object: str = "page"
    data: list[Bucket[Results]]
    has_more: bool
    next_page: str | None


def _page(buckets: list[tuple[int, int, Any]], report: UsagePage | CostPage) -> bytes:
    data: list[Bucket[Any]] = [
        Bucket(start_time=start // _MICRO, end_time=end // _MICRO, results=results) for start, end, results in buckets
    ]
    return msgspec.json.encode(BucketPage(data=data, has_more=report.next_page is not None, next_page=report.next_page))


def _start(parameters: Parameters) -> int:
    parameters.required("start_time")
    return parameters.seconds("start_time") or 0
