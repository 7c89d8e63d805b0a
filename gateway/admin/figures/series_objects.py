"""Series of usage as answers have them, with names in place of ids, and as CSV."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from billing.calendar import format_instant
from billing.money import format_pico
from billing.reports.usage_series import BUCKETS, Bucket, GroupKey, Measure, Series, Sums
from billing.usage import METERS
from storage.free_text import safe_cell
from tenancy.directory import NamedKey, project_public_id, tenant_public_id

GroupName = Literal["tenant", "project", "key", "model", "lane"]


class SumsObject(Struct, frozen=True, kw_only=True):
    """Requests, tokens by meter (those that are not 0), the exact cost by currency."""

    requests: int
    tokens: dict[str, int]
    cost: dict[str, str]


class SeriesCell(SumsObject, frozen=True, kw_only=True):
    """What is in one bucket; `bucket` is its place in `starts`, from 0."""

    bucket: int


class SeriesLineObject(Struct, frozen=True, kw_only=True):
    """One group. It has the fields that the series is grouped by; the `rest` has none, and adds up all other groups.
    `key` is the key's public id, `key_name` what people call it. `previous`: the group's sums in the span before, none
    where nothing is compared."""

    rest: bool = False
    tenant_id: str | UnsetType = UNSET
    tenant: str | UnsetType | None = UNSET
    project_id: str | UnsetType = UNSET
    project: str | UnsetType | None = UNSET
    key: str | UnsetType | None = UNSET
    key_name: str | UnsetType | None = UNSET
    model: str | UnsetType = UNSET
    lane: str | UnsetType = UNSET
    total: SumsObject
    previous: SumsObject | None = None
    cells: list[SeriesCell]


Starts: TypeAlias = list[Annotated[str, Meta(examples=["2026-11-01T00:00:00Z"])]]
"""The first instants of buckets."""


class PreviousSpan(Struct, frozen=True, kw_only=True):
    """The span of the same length before, or the month before: its whole usage, in buckets from its own `starts`."""

    start: str
    end: str
    starts: Starts
    total: SumsObject
    cells: list[SeriesCell]


class UsageSeries(Struct, frozen=True, kw_only=True):
    """Usage in buckets of time, by group.

    `lines`: the groups with most of the measure, and then the rest; `groups` counts all. Where `bucket` is coarser than
    what was `asked` for, `note` says why. Usage of requests admitted before `complete_until` is in here; after that,
    some may still run: so many buckets from the first on are `complete`. `digest` stands for all figures in it: a CSV
    file that is asked for with it has the same ones, or is refused.
    """

    object: Literal["usage.series"] = "usage.series"
    bucket: Bucket
    asked: Bucket
    note: str = ""
    period: str | None
    start: str
    end: str
    starts: Starts
    group_by: list[GroupName]
    measure: Measure
    as_of: str
    complete_until: str
    complete: int
    groups: int
    total: SumsObject
    lines: list[SeriesLineObject]
    previous: PreviousSpan | None
    digest: str = ""


class Names(Struct, frozen=True):
    """The names of what usage is grouped by."""

    tenants: Mapping[UUID, str] = {}
    projects: Mapping[UUID, str] = {}
    keys: Mapping[UUID, NamedKey] = {}

    def fields(self, group_by: Sequence[GroupName], group: GroupKey) -> dict[str, Any]:
        """The fields of a group."""
        fields: dict[str, Any] = {}
        for name, value in zip(group_by, group, strict=True):
            match name:
                case "tenant":
                    fields |= {"tenant_id": tenant_public_id(value), "tenant": self.tenants.get(value)}
                case "project":
                    fields |= {"project_id": project_public_id(value), "project": self.projects.get(value)}
                case "key":
                    key = self.keys.get(value)
                    fields |= {"key": key and key.public_id, "key_name": key and key.name}
                case _:
                    fields[name] = value
        return fields


def sums_object(sums: Sums) -> SumsObject:
    """The sums, with amounts as decimal strings."""
    return SumsObject(requests=sums.requests, tokens=_in_order(sums), cost=_amounts(sums))


def line_objects(
    series: Series, group_by: Sequence[GroupName], names: Names, before: Mapping[GroupKey, Sums] | None
) -> list[SeriesLineObject]:
    """The lines of a series. `before`: the sums of its groups in the span before, None where nothing is compared."""
    places = {start: place for place, start in enumerate(series.starts)}
    lines = []
    for line in series.lines:
        earlier = None if before is None or line.group is None else sums_object(before.get(line.group, Sums()))
        fields = {"rest": True} if line.group is None else names.fields(group_by, line.group)
        lines.append(
            SeriesLineObject(
                **fields, total=sums_object(line.total), previous=earlier, cells=_cells(line.cells, places)
            )
        )
    return lines


def previous_span(series: Series, start_at: int) -> PreviousSpan:
    """The span before, from its ungrouped series."""
    places = {start: place for place, start in enumerate(series.starts)}
    return PreviousSpan(
        start=format_instant(start_at),
        end=format_instant(series.end_at),
        starts=[format_instant(start) for start in series.starts],
        total=sums_object(series.total),
        cells=[cell for line in series.lines for cell in _cells(line.cells, places)],
    )


def digest_of(series: UsageSeries) -> str:
    """What stands for the figures of a series: the same ones have the same."""
    figures = (series.bucket, series.starts, series.end, series.group_by, series.total, series.lines, series.previous)
    return hashlib.sha256(msgspec.json.encode(figures)).hexdigest()


def csv_of(series: UsageSeries) -> str:
    """The series as CSV: a row for each bucket, line and currency that has usage, in the order of the answer. No cell
    begins as a formula does. `complete` is false where requests of the bucket may still run."""
    file = io.StringIO()
    writer = csv.writer(file)
    fields = [name for group in series.group_by for name in _FIELDS[group]]
    writer.writerow(["start", "end", "complete", *fields, "rest", "requests", *METERS, "currency", "cost"])
    ends = [*series.starts[1:], series.end]
    for line in series.lines:
        named = [safe_cell(str(value)) if isinstance(value := getattr(line, name), str) else "" for name in fields]
        for cell in line.cells:
            complete = _word(cell.bucket < series.complete)
            head = [series.starts[cell.bucket], ends[cell.bucket], complete, *named, _word(line.rest)]
            counts = [cell.requests, *(cell.tokens.get(meter, 0) for meter in METERS)]
            for place, (currency, cost) in enumerate(cell.cost.items()):
                # a cell with two currencies has its counts once
                writer.writerow([*head, *(counts if place == 0 else [0] * len(counts)), currency, cost])
    return file.getvalue()


def coarser_note(asked: Bucket, bucket: Bucket) -> str:
    """Why a bucket is coarser than asked for; empty if it is not."""
    if BUCKETS.index(bucket) <= BUCKETS.index(asked):
        return ""
    return f"By {asked} this would be more than 10,000 points, so it is by {bucket}."


_FIELDS: dict[str, tuple[str, ...]] = {
    "tenant": ("tenant_id", "tenant"),
    "project": ("project_id", "project"),
    "key": ("key", "key_name"),
    "model": ("model",),
    "lane": ("lane",),
}


def _cells(cells: Mapping[int, Sums], places: Mapping[int, int]) -> list[SeriesCell]:
    return [
        SeriesCell(bucket=places[start], requests=sums.requests, tokens=_in_order(sums), cost=_amounts(sums))
        for start, sums in sorted(cells.items())
    ]


def _in_order(sums: Sums) -> dict[str, int]:
    return {meter: tokens for meter in METERS if (tokens := sums.tokens.get(meter, 0))}


def _amounts(sums: Sums) -> dict[str, str]:
    return {currency: format_pico(cost) for currency, cost in sorted(sums.cost_pico.items())}


def _word(value: bool) -> str:
    return "true" if value else "false"
