"""The query parameters of usage and cost reports, as both vendors name them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

from msgspec import Meta

from gateway.dialects.anthropic import usage as anthropic_usage
from gateway.dialects.openai import usage as openai_usage
from gateway.dialects.usage_reports import Width
from gateway.http.operations import QueryParameter, query

_Number: TypeAlias = Annotated[int, Meta(ge=0, lt=2**40)]
_Instant: TypeAlias = Annotated[str, Meta(examples=["2026-11-22T00:00:00Z"])]
_ID = "01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12"


def _only(name: str, kind: Any, description: str, example: Any = _ID) -> QueryParameter:
    return query(name, kind, description, repeated=True, example=example)


def _grouped(name: str, groups: Iterable[str]) -> QueryParameter:
    return query(name, Literal[tuple(groups)], "What to report apart; fields of others are null.", repeated=True)


_PAGING = (
    query("limit", Annotated[int, Meta(ge=1, lt=2**40)], "How many buckets to list, up to a bound.", example=7),
    query("page", str, "The `next_page` of the page before.", example="eyJhdCI6MH0"),
)
_OPENAI = (
    query("start_time", _Number, "The beginning, in seconds since the Unix epoch.", required=True, example=1763769600),
    query("end_time", _Number, "The end, which is not reported; now without it.", example=1763856000),
    _only("project_ids", UUID, "Only these projects."),
    _only("api_key_ids", UUID, "Only these keys."),
    *_PAGING,
)
_ANTHROPIC = (
    query("starting_at", _Instant, "The beginning (RFC 3339), rounded down to a bucket's.", required=True),
    query("ending_at", _Instant, "The end, which is not reported; now without it.", example="2026-11-23T00:00:00Z"),
    *_PAGING,
)

OPENAI_USAGE = (
    *_OPENAI,
    query("bucket_width", Width, "The length of a bucket; a day without it.", example="1d"),
    query("batch", bool, "Only requests of the batch lane, or only others."),
    _only("models", str, "Only these models.", "tiny"),
    _grouped("group_by", openai_usage.GROUPS),
)
OPENAI_COSTS = (
    *_OPENAI,
    query("bucket_width", Literal["1d"], "The length of a bucket."),
    _only("line_items", str, "Only these line items.", "tiny, input_tokens"),
    _grouped("group_by", openai_usage.COST_GROUPS),
)
ANTHROPIC_USAGE = (
    *_ANTHROPIC,
    query("bucket_width", Width, "The length of a bucket; a day without it.", example="1d"),
    _only("workspace_ids", UUID, "Only these projects."),
    _only("api_key_ids", UUID, "Only these keys."),
    _only("models", str, "Only these models.", "tiny"),
    _only("service_tiers", Literal["priority", "standard", "batch"], "Only these lanes.", "standard"),
    _grouped("group_by", anthropic_usage.GROUPS),
)
ANTHROPIC_COSTS = (
    *_ANTHROPIC,
    query("bucket_width", Literal["1d"], "The length of a bucket."),
    _grouped("group_by", anthropic_usage.COST_GROUPS),
)
