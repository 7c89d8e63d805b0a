"""GET /v1/organization/usage/completions: query parameters to a report's arguments, and its page to OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args
from uuid import UUID

from msgspec import Struct

from billing.money import format_pico
from billing.reports import Bucket, Page, Result
from gateway.dialects.openai_answer import Cost
from gateway.failures import InvalidRequest

Width = Literal["1m", "1h", "1d"]
Group = Literal["project_id", "api_key_id", "model", "batch"]
_MICRO = 1_000_000
_LATEST = 2**40


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
    output_tokens: int
    num_model_requests: int
    cost: list[Cost]
    project_id: str | None = None
    api_key_id: str | None = None
    user_id: str | None = None
    model: str | None = None
    batch: bool | None = None
    service_tier: str | None = None


class UsageBucket(Struct, frozen=True, kw_only=True):
    object: str = "bucket"
    start_time: int
    end_time: int
    results: list[UsageResult]


class UsagePage(Struct, frozen=True, kw_only=True):
    object: str = "page"
    data: list[UsageBucket]
    has_more: bool
    next_page: str | None


def parse(parameters: Mapping[str, Sequence[str]]) -> UsageQuery:
    """The query; lists come as `name` or `name[]`, once for each item. Raises InvalidRequest naming the parameter."""
    one = {name: values[-1] for name, values in parameters.items() if values}
    if "start_time" not in one:
        raise InvalidRequest("start_time is missing.", path="start_time", code="missing_required_parameter")
    return UsageQuery(
        start_at=_whole("start_time", one["start_time"]) * _MICRO,
        end_at=_whole("end_time", one["end_time"]) * _MICRO if "end_time" in one else None,
        width=_choice("bucket_width", one.get("bucket_width", "1d"), get_args(Width)),
        project_ids=_ids(parameters, "project_ids"),
        key_ids=_ids(parameters, "api_key_ids"),
        models=_listed(parameters, "models") or None,
        group_by=[_choice("group_by", name, get_args(Group)) for name in _listed(parameters, "group_by")],
        batch=_choice("batch", one["batch"].lower(), ("true", "false")) == "true" if "batch" in one else None,
        limit=_whole("limit", one["limit"]) if "limit" in one else None,
        page=one.get("page"),
    )


def page(found: Page) -> UsagePage:
    """The report as OpenAI's page."""
    return UsagePage(
        data=[_bucket(bucket) for bucket in found.buckets],
        has_more=found.next_page is not None,
        next_page=found.next_page,
    )


def _bucket(bucket: Bucket) -> UsageBucket:
    return UsageBucket(
        start_time=bucket.start_at // _MICRO,
        end_time=bucket.end_at // _MICRO,
        results=[_result(result) for result in bucket.results],
    )


def _result(result: Result) -> UsageResult:
    usage, group = result.usage, result.group
    return UsageResult(
        input_tokens=usage.prompt,
        input_uncached_tokens=usage.uncached,
        input_cached_tokens=sum(usage.read.values()),
        input_cache_write_tokens=sum(usage.write.values()),
        output_tokens=usage.output,
        num_model_requests=result.requests,
        cost=[Cost(currency, format_pico(pico)) for currency, pico in sorted(result.costs_pico.items())],
        project_id=_text(group.get("project_id")),
        api_key_id=_text(group.get("api_key_id")),
        model=group.get("model"),
        batch=group.get("batch"),
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _listed(parameters: Mapping[str, Sequence[str]], name: str) -> list[str]:
    return [*parameters.get(name, ()), *parameters.get(f"{name}[]", ())]


def _ids(parameters: Mapping[str, Sequence[str]], name: str) -> list[UUID] | None:
    try:
        return [UUID(text) for text in _listed(parameters, name)] or None
    except ValueError as error:
        raise InvalidRequest(f"{name}: not an id.", path=name, code="invalid_value") from error


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:20]) < _LATEST):
        raise InvalidRequest(f"{name} is {text[:40]!r}, not a whole number.", path=name, code="invalid_value")
    return int(text)


def _choice(name: str, text: str, choices: tuple[str, ...]) -> Any:
    if text not in choices:
        known = ", ".join(choices)
        raise InvalidRequest(f"{name} is {text[:40]!r}, not one of {known}.", path=name, code="invalid_value")
    return text
