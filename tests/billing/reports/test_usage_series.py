"""Series of usage: cells, lines and totals add up to the events, to `turnpike usage` and to exports, to the pico."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from billing.calendar import period_bounds
from billing.exports.datasets import ExportQuery
from billing.exports.files import ExportOrder, dataset_of, export
from billing.money import parse_amount
from billing.prices import PriceCatalog
from billing.reports.usage_report import usage_by_project_and_model
from billing.reports.usage_series import (
    DAY,
    MOST_POINTS,
    Selection,
    Series,
    SeriesGroup,
    Sums,
    complete_until,
    fitting_bucket,
    starts_of,
    usage_series,
    usage_totals,
)
from billing.reservation.hold_service import HoldService
from billing.usage import UsageEvent
from storage.database.base import new_id
from storage.database.database import Database
from tests.billing.money import Tenant
from tests.billing.recorded import HOUR, NOVEMBER, record, store


def _added(events: list[UsageEvent]) -> tuple[int, int, dict[str, int]]:
    meters: defaultdict[str, int] = defaultdict(int)
    for event in events:
        for meter, tokens in event.usage.used():
            meters[meter] += tokens
    requests = sum(event.corrects is None for event in events)
    return requests, sum(event.cost_pico for event in events), dict(meters)


def _of(sums: Sums) -> tuple[int, int, dict[str, int]]:
    return sums.requests, sum(sums.cost_pico.values()), sums.tokens


def _check(series: Series, events: list[UsageEvent], size: int, by: tuple[SeriesGroup, ...], named: set[Any]) -> None:
    """Every line and cell is the sum of its events; the rest is what no line names."""
    for line in series.lines:
        mine = [
            event
            for event in events
            if (
                tuple(getattr(event, name) for name in by) == line.group
                if line.group is not None
                else tuple(getattr(event, name) for name in by) not in named
            )
        ]
        assert _of(line.total) == _added(mine)
        for start, cell in line.cells.items():
            assert _of(cell) == _added([event for event in mine if event.admitted_at // size * size == start])
        assert sum(cell.requests for cell in line.cells.values()) == line.total.requests


async def test_lines_cells_and_the_rest_add_up_to_the_events(database: Database) -> None:
    tenant, other = await Tenant.rich(database, 0), await Tenant.rich(database, 0, "big")
    past = await record(database, tenant)
    await record(database, other, seed=1)
    whole = Selection(start_at=NOVEMBER, end_at=NOVEMBER + 10 * DAY, tenants=[tenant.id])
    for by, top in (((), 5), (("project_id",), 1), (("key_id", "model"), 2), (("lane",), 10), (("tenant_id",), 3)):
        groups = {tuple(getattr(event, name) for name in by) for event in past.events}
        for bucket, size in (("hour", HOUR), ("day", DAY)):
            for measure in ("cost", "requests", "tokens"):
                series = await usage_series(database, whole, bucket=bucket, group_by=by, top=top, measure=measure)
                named = {line.group for line in series.lines if line.group is not None}
                assert _of(series.total) == _added(past.events)
                assert series.starts == list(range(NOVEMBER, NOVEMBER + 10 * DAY, size))
                assert (len(named), series.groups) == (min(top, len(groups)), len(groups))
                assert [line.group is None for line in series.lines] == sorted(
                    line.group is None for line in series.lines
                )
                _check(series, past.events, size, by, named)
        totals = await usage_totals(database, whole, by)
        assert sum((cost for sums in totals.values() for cost in sums.cost_pico.values()), 0) == past.cost_pico
    every = msgspec.structs.replace(whole, tenants=None)
    by_tenant = await usage_totals(database, every, ["tenant_id"])
    assert _of(by_tenant[tenant.id,]) == _added(past.events)
    assert set(by_tenant) == {(tenant.id,), (other.id,)}


async def test_filters_select_and_the_span_before_is_of_the_same_length(database: Database) -> None:
    tenant = await Tenant.rich(database, 0)
    past = await record(database, tenant)
    span = Selection(start_at=NOVEMBER + 5 * DAY, end_at=NOVEMBER + 10 * DAY, tenants=[tenant.id])
    wanted: dict[str, tuple[str, list[Any]]] = {
        "projects": ("project_id", past.projects[:1]),
        "keys": ("key_id", past.keys[:2]),
        "models": ("model", ["stdlib-qa"]),
        "lanes": ("lane", ["batch", "standard"]),
    }
    for name, (field, values) in wanted.items():
        for selection in (msgspec.structs.replace(span, **{name: values}), span):
            only = getattr(selection, name)
            for part in (selection, selection.earlier):
                expected = [
                    event
                    for event in past.events
                    if part.start_at <= event.admitted_at < part.end_at
                    and (only is None or getattr(event, field) in only)
                ]
                assert _of((await usage_series(database, part, bucket="day")).total) == _added(expected)
    assert (span.earlier.start_at, span.earlier.end_at) == (NOVEMBER, span.start_at)
    november = Selection(start_at=NOVEMBER, end_at=period_bounds("2026-11")[1], period="2026-11", tenants=[tenant.id])
    assert (november.earlier.period, november.earlier.end_at) == ("2026-10", NOVEMBER)
    running = msgspec.structs.replace(november, end_at=NOVEMBER + 27 * DAY)  # compared with as many days
    assert running.earlier.end_at - running.earlier.start_at == 27 * DAY
    empty = await usage_series(database, november.earlier, bucket="day", group_by=["model"])
    assert (empty.lines, empty.groups, _of(empty.total)) == ([], 0, (0, 0, {}))


async def test_a_period_is_what_is_billed_in_it(database: Database, tmp_path: Path) -> None:
    """What was admitted before its period counts there, as in `turnpike usage`, in the first bucket."""
    tenant = await Tenant.rich(database, 0)
    past = await record(database, tenant, count=40)
    late = msgspec.structs.replace(tenant.event(tenant.request(0)), admitted_at=NOVEMBER - DAY, period="2026-11")
    december = msgspec.structs.replace(tenant.event(tenant.request(0)), period="2026-12")
    await store(database, late, december)
    start_at, end_at = period_bounds("2026-11")
    period = Selection(start_at=start_at, end_at=end_at, period="2026-11", tenants=[tenant.id])
    rows = await usage_by_project_and_model(database, "2026-11", tenant.id)
    for bucket in ("hour", "day", "month"):
        series = await usage_series(database, period, bucket=bucket, group_by=["project_id", "model"], top=50)
        assert _of(series.total) == _added([*past.events, late])
        assert {
            line.group: (line.total.requests, line.total.tokens, line.total.cost_pico) for line in series.lines
        } == {(row.project_id, row.model): (row.requests, row.meters, {row.currency: row.cost_pico}) for row in rows}
        assert min(start for line in series.lines for start in line.cells) == start_at
        order = ExportOrder(dataset_of("usage"), "csv", ExportQuery(period="2026-11", tenant_id=tenant.id))
        await export(database, PriceCatalog(database), order, tmp_path / "usage.csv")
        with (tmp_path / "usage.csv").open(newline="") as file:
            exported = list(csv.DictReader(file))
        costs = [parse_amount(row["cost"]) for row in exported]
        assert (len(exported), sum(costs)) == (series.total.requests, sum(series.total.cost_pico.values()))
    # a span of hours has it where it was admitted
    hours = Selection(start_at=NOVEMBER - 2 * DAY, end_at=NOVEMBER, tenants=[tenant.id])
    assert _of((await usage_series(database, hours, bucket="month")).total) == _added([late])


async def test_months_are_those_of_the_calendar(database: Database) -> None:
    tenant = await Tenant.rich(database, 0)
    past = await record(database, tenant, start=NOVEMBER - 40 * DAY, span=80 * DAY)
    events = [msgspec.structs.replace(event) for event in past.events]
    span = Selection(start_at=NOVEMBER - 40 * DAY, end_at=NOVEMBER + 40 * DAY, tenants=[tenant.id])
    series = await usage_series(database, span, bucket="month")
    bounds = [period_bounds(name) for name in ("2026-09", "2026-10", "2026-11", "2026-12")]
    assert series.starts == [start for start, _ in bounds]
    (line,) = series.lines
    for start, end in bounds:
        inside = [event for event in events if start <= event.admitted_at < end]
        assert _of(line.cells.get(start, Sums())) == _added(inside)


async def test_it_is_complete_until_the_oldest_request_that_still_runs(database: Database) -> None:
    busy, idle = await Tenant.rich(database, 10**12), await Tenant.rich(database, 10**12, "big")
    hold = await HoldService(database).reserve(busy.request(10))
    now = await database.now()
    assert await complete_until(database, [busy.id], now) == hold.admitted_at
    assert await complete_until(database, None, now) == hold.admitted_at
    for others in ([idle.id], [new_id()], []):
        assert await complete_until(database, others, now) == now


@given(st.sampled_from(["hour", "day", "month"]), st.integers(1, 120 * 31 * 24), st.integers(1, 51))
def test_no_answer_has_more_points_than_the_most(wanted: Any, hours: int, groups: int) -> None:
    end = NOVEMBER + hours * HOUR
    bucket = fitting_bucket(wanted, NOVEMBER, end, groups)
    sizes = ["hour", "day", "month"]
    assert sizes.index(bucket) >= sizes.index(wanted)
    assert len(starts_of(bucket, NOVEMBER, end)) * groups <= MOST_POINTS
    if bucket != wanted:  # the next finer one would not fit
        finer = starts_of(sizes[sizes.index(bucket) - 1], NOVEMBER, end)  # type: ignore[arg-type]
        assert len(finer) * groups > MOST_POINTS
