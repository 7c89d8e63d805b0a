"""GET /v1/organization/usage/completions and /v1/organization/costs: queries to reports' arguments, pages to OpenAI's.

Costs carry the exact amount twice: as the JSON number that OpenAI's clients read, with all its digits, and as a string,
which no client rounds.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import msgspec
from msgspec import Struct

from billing.money import format_pico
from billing.reports.cost_report import CostGroup, CostLine, CostPage, LineItem
from billing.reports.usage_report import Group, Result, UsagePage
from billing.usage import METERS
from gateway.dialects.openai.chat_response import Cost
from gateway.dialects.openai.common_fields import TIER_OF
from gateway.dialects.query_parameters import Parameters
from gateway.errors import InvalidRequest

Width = Literal["1m", "1h", "1d"]
_MICRO = 1_000_000
_GROUPS: dict[str, Group | None] = {
    "project_id": "project_id",
    "api_key_id": "api_key_id",
    "model": "model",
    "batch": "batch",
    "service_tier": "lane",
    "user_id": None,
    "api_source": None,
}
"""What may be grouped by, and as what; None: nothing is known of it here, so it is null everywhere."""
_COST_GROUPS: dict[str, tuple[CostGroup, ...]] = {
    "project_id": ("project_id",),
    "api_key_id": ("api_key_id",),
    "line_item": ("model", "lane", "meter"),
    "user_id": (),
    "api_source": (),
}
_NO_USERS = "usage is not recorded by user here"

# ---------------------------------------------------------------- usage


class UsageQuery(Struct, frozen=True, kw_only=True):
    """What was asked for; instants in microseconds since the Unix epoch."""

    start_at: int
    end_at: int | None
    width: Width
    project_ids: list[UUID] | None
    key_ids: list[UUID] | None
    models: list[str] | None
    group_by: list[Group]
    batch: bool | None
    limit: int | None
    page: str | None


class UsageResult(Struct, frozen=True, kw_only=True):
    """One group's usage. `cost` is not OpenAI's: exact, one entry for each currency."""

    object: str = "organization.usage.completions.result"
    input_tokens: int
    input_uncached_tokens: int
    input_cached_tokens: int
    input_cache_write_tokens: int
    input_cache_write_30m_tokens: int
    input_cache_write_12h_tokens: int
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
    cost: list[Cost]
    project_id: str | None = None
    api_key_id: str | None = None
    user_id: str | None = None
    model: str | None = None
    batch: bool | None = None
    service_tier: str | None = None
    api_source: str | None = None


class Bucket(Struct, frozen=True, kw_only=True):
    object: str = "bucket"
    start_time: int
    end_time: int
    results: list[UsageResult] | list[CostResult]


class BucketPage(Struct, frozen=True, kw_only=True):
    object: str = "page"
    data: list[Bucket]
    has_more: bool
    next_page: str | None


def parse_usage(given: Parameters) -> UsageQuery:
    """The query. Raises InvalidRequest naming the parameter."""
    given.refuse("user_ids", _NO_USERS)
    return UsageQuery(
        start_at=_start(given),
        end_at=_instant(given, "end_time"),
        width=given.choice("bucket_width", ("1m", "1h", "1d")) or "1d",
        project_ids=given.ids("project_ids"),
        key_ids=given.ids("api_key_ids"),
        models=given.many("models"),
        group_by=[group for name in given.choices("group_by", list(_GROUPS)) or () if (group := _GROUPS[name])],
        batch=given.truth("batch"),
        limit=given.whole("limit"),
        page=given.one("page"),
    )


def usage_page(found: UsagePage) -> bytes:
    """The report as OpenAI's page, in JSON."""
    buckets = [
        (bucket.start_at, bucket.end_at, [_usage(result) for result in bucket.results]) for bucket in found.buckets
    ]
    return _page(buckets, found.next_page)


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
        input_text_tokens=usage.uncached,
        input_cached_text_tokens=cached,
        output_tokens=usage.output,
        output_text_tokens=usage.output,
        num_model_requests=result.requests,
        cost=[Cost(currency, format_pico(pico)) for currency, pico in sorted(result.costs_pico.items())],
        project_id=_text(group.get("project_id")),
        api_key_id=_text(group.get("api_key_id")),
        model=group.get("model"),
        batch=group.get("batch"),
        service_tier=TIER_OF[group["lane"]] if "lane" in group else None,
    )


# ---------------------------------------------------------------- costs


class CostsQuery(Struct, frozen=True, kw_only=True):
    """What was asked for; instants in microseconds since the Unix epoch."""

    start_at: int
    end_at: int | None
    project_ids: list[UUID] | None
    key_ids: list[UUID] | None
    line_items: set[LineItem] | None
    group_by: list[CostGroup]
    limit: int | None
    page: str | None


class Amount(Struct, frozen=True):
    """`value` is a JSON number with all its digits. `exact` is not OpenAI's: the same as a string."""

    value: Decimal
    currency: str
    exact: str


class CostResult(Struct, frozen=True, kw_only=True):
    """One group's cost in one currency."""

    object: str = "organization.costs.result"
    amount: Amount
    line_item: str | None = None
    quantity: int | None = None
    quantity_unit: str | None = None
    project_id: str | None = None
    api_key_id: str | None = None
    user_id: str | None = None
    api_source: str | None = None


def parse_costs(given: Parameters) -> CostsQuery:
    """The query. Raises InvalidRequest naming the parameter."""
    given.choice("bucket_width", ("1d",))
    names = given.many("line_items")
    return CostsQuery(
        start_at=_start(given),
        end_at=_instant(given, "end_time"),
        project_ids=given.ids("project_ids"),
        key_ids=given.ids("api_key_ids"),
        line_items=None if names is None else {_line_item(name) for name in names},
        group_by=[part for name in given.choices("group_by", list(_COST_GROUPS)) or () for part in _COST_GROUPS[name]],
        limit=given.whole("limit"),
        page=given.one("page"),
    )


def costs_page(found: CostPage) -> bytes:
    """The report as OpenAI's page, in JSON."""
    return _page([(b.start_at, b.end_at, [_cost(line) for line in b.costs]) for b in found.buckets], found.next_page)


def _cost(line: CostLine) -> CostResult:
    group, exact = line.group, format_pico(line.cost_pico)
    by_item = "meter" in group
    return CostResult(
        amount=Amount(Decimal(exact), line.currency.lower(), exact),
        line_item=line_item_name(group["model"], group["lane"], group["meter"]) if by_item else None,
        quantity=line.units if by_item else None,
        quantity_unit="tokens" if by_item else None,
        project_id=_text(group.get("project_id")),
        api_key_id=_text(group.get("api_key_id")),
    )


def _item(meter: str) -> str:
    """What OpenAI's line items call a meter."""
    if meter in ("uncached", "output"):
        return {"uncached": "input_tokens", "output": "output_tokens"}[meter]
    kind, _, of = meter.partition("_")
    if kind == "read":
        return "cached_input_tokens" if of == "automatic" else f"cached_{of}_input_tokens"
    return f"cache_write_{of}_input_tokens"


_METERS = {_item(meter): meter for meter in METERS}


def line_item_name(model: str, lane: str, meter: str) -> str:
    """A line item's name: `tiny, input_tokens`; lanes other than the standard one are named at the end."""
    return ", ".join([model, _item(meter), *([] if lane == "standard" else [TIER_OF[lane]])])


def _line_item(name: str) -> LineItem:
    """The inverse of `line_item_name`. Raises InvalidRequest."""
    head, _, last = name.rpartition(", ")
    lane = next((lane for lane, tier in TIER_OF.items() if tier == last and lane != "standard"), None)
    model, _, item = head.rpartition(", ") if lane else (head, "", last)
    if not model or item not in _METERS:
        raise InvalidRequest(f"line_items: there is no {name[:80]!r}.", path="line_items", code="invalid_value")
    return model, lane or "standard", _METERS[item]


# ---------------------------------------------------------------- both

_ENCODER = msgspec.json.Encoder(decimal_format="number")


def _page(buckets: list[tuple[int, int, Any]], next_page: str | None) -> bytes:
    data = [
        Bucket(start_time=start // _MICRO, end_time=end // _MICRO, results=results) for start, end, results in buckets
    ]
    return _ENCODER.encode(BucketPage(data=data, has_more=next_page is not None, next_page=next_page))


def _start(given: Parameters) -> int:
    given.required("start_time")
    return _instant(given, "start_time") or 0


def _instant(given: Parameters, name: str) -> int | None:
    seconds = given.whole(name)
    return None if seconds is None else seconds * _MICRO


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
