"""A demonstration: every page's data is there, and the books are right."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import func, select

from audit_log.actors import Actor, acting_as
from billing.invoices.store import Invoices
from billing.money import PICO
from billing.reports.usage_report import usage_by_project_and_model
from billing.tables.money import usage_event
from billing.tables.payments import (
    auto_top_up,
    cash_receipt,
    payment_dispute,
    payment_reminder,
    pushed_document,
    top_up,
)
from billing.verification.audit import audit_money
from storage.database.database import Database
from turnpike.admin_services import open_admin_services
from turnpike.commands.prices.cells import folder_prices
from turnpike.demonstration.making import Months, make
from turnpike.demonstration.office import OwnPrices
from turnpike.demonstration.past import DAY, HOUR
from turnpike.demonstration.people import sign_in_links
from turnpike.demonstration.traffic import asked_in
from turnpike.settings.settings import Settings
from waterfall.bars import Waterfall, waterfall
from waterfall.record import unpack
from waterfall.tables import refused_request, request_waterfall

NOON = 1_795_003_200_000_000 // DAY * DAY + 12 * HOUR  # 18 November 2026
MONTHS = Months.until(NOON, 2)


def _made(folder: Path) -> dict[str, object]:
    """Make a day of each month, and say what is in it that does not depend on chance."""
    settings = Settings(data_dir=str(folder))
    shown: list[int] = []
    done, key = asyncio.run(
        make(settings, 7, MONTHS, _prices(settings), lambda requests, _, __: shown.append(requests))
    )
    assert key.startswith("tp_live_")
    assert done.ran > 50
    assert shown == sorted(shown)
    return asyncio.run(_facts(settings))


def _prices(settings: Settings) -> OwnPrices:
    prices = folder_prices(settings.model_folders[0])
    assert prices is not None
    return prices


async def _facts(settings: Settings) -> dict[str, object]:
    async with open_admin_services(settings) as admin:
        with acting_as(Actor("command", "tests", "tests")):
            assert await audit_money(admin.database) == []
        usage = [
            (line.model, line.requests, line.meters, line.currency, line.cost_pico)
            for period in ("2026-10", "2026-11")
            for line in await usage_by_project_and_model(admin.database, period)
        ]
        records = await Invoices(admin.database).list()
        return {
            "usage": usage,
            "documents": sorted((one.number or "", one.kind, one.currency, one.state, one.gross) for one in records),
            "ids": await _ids(admin.database),
            "waterfalls": await _waterfalls(admin.database),
            "refused": await _refused(admin.database),
            "payments": await _payments(admin.database),
            "links": (await sign_in_links(admin, "http://demo")).splitlines(),
            "tenants": [tenant.name for tenant in await admin.tenancy.list_tenants()],
            "budgets": [
                (window.scope, window.limit_pico // PICO, window.spent)
                for tenant in await admin.tenancy.list_tenants()
                for window in await admin.budgets.list(tenant.id)
            ],
        }


async def _ids(database: Database) -> tuple[int, object, object]:
    # all tenants: the whole demonstration
    query = select(func.count(), func.min(usage_event.c.admitted_at), func.max(usage_event.c.admitted_at))
    async with database.reading() as session:
        return tuple((await session.execute(query)).one())  # type: ignore[return-value]


async def _payments(database: Database) -> dict[str, list[str]]:
    """The states of what was paid."""
    tables = {"top-ups": top_up, "pushed": pushed_document, "disputes": payment_dispute, "money": cash_receipt}
    tables |= {"automatic": auto_top_up, "reminders": payment_reminder}
    async with database.reading() as session:
        # all tenants: the whole demonstration
        return {name: sorted(await session.scalars(select(table.c.state))) for name, table in tables.items()}


async def _refused(database: Database) -> list[tuple[str, int, str]]:
    # all tenants: the whole demonstration
    query = select(refused_request.c.route, refused_request.c.status, refused_request.c.code)
    async with database.reading() as session:
        return [tuple(row) for row in await session.execute(query)]  # type: ignore[misc]


async def _waterfalls(database: Database) -> dict[UUID, tuple[int, Waterfall]]:
    """The waterfalls by their requests, with how long the books say that each took."""
    # all tenants: the whole demonstration
    took = (usage_event.c.finished_at - usage_event.c.admitted_at).label("took")
    query = select(request_waterfall.c.request_id, took, request_waterfall.c.record)
    query = query.join(usage_event, usage_event.c.id == request_waterfall.c.request_id)
    async with database.reading() as session:
        rows = (await session.execute(query)).all()
        wanted = select(func.count()).where(
            usage_event.c.admitted_at >= NOON - 7 * DAY, usage_event.c.corrects.is_(None)
        )
        assert len(rows) == await session.scalar(wanted)
    return {row.request_id: (row.took, waterfall(unpack(row.record))) for row in rows}


@pytest.mark.slow
def test_a_demonstration_has_something_for_every_page_and_its_books_are_right(tmp_path: Path) -> None:
    made = _made(tmp_path / "demo")
    documents = made["documents"]
    assert isinstance(documents, list)
    numbers = [number for number, *_ in documents if number]
    assert numbers
    assert all(number.startswith("DEMO-") for number in numbers)
    assert {kind for _, kind, *_ in documents} == {"invoice", "credit_note"}
    assert {currency for _, _, currency, *_ in documents} == {"EUR", "USD"}
    count, first, last = made["ids"]  # type: ignore[misc]
    assert count > 50
    assert MONTHS.this - 2 * DAY <= first
    assert NOON - 2 * HOUR < last < NOON
    waterfalls = made["waterfalls"]
    assert isinstance(waterfalls, dict)
    assert len(waterfalls) > 20
    for took, shown in waterfalls.values():
        assert sum(bar.duration for bar in shown.bars) == shown.wall >= took
        assert all(bar.duration >= 0 for bar in shown.bars)
        stages = {bar.stage for bar in shown.bars}
        assert {"auth", "render", "hold", "spool", "settle"} <= stages
        assert ({"queue", "prefill", "decode"} <= stages) != ("lost" in stages)
    assert ("POST /v1/messages", 404, "model_not_found") in made["refused"]  # type: ignore[operator]
    payments = made["payments"]
    assert isinstance(payments, dict)
    assert payments["top-ups"] == ["declined", "granted", "granted"]
    assert "pushed" in payments["pushed"]
    assert (payments["disputes"], payments["automatic"]) == (["withdrawn"], ["on", "paused"])
    assert "unapplied" in payments["money"]
    assert (tmp_path / "demo" / "fake-stripe.json").stat().st_mode & 0o777 == 0o600
    links = made["links"]
    assert isinstance(links, list)
    assert len({line.rpartition("http://demo")[2] for line in links}) == len(links) == 11
    assert "Ben Ortiz, finance of platform: http://demo/" in "\n".join(links)


def test_a_days_requests_do_not_depend_on_which_days_are_asked_for() -> None:
    start = NOON // DAY * DAY
    alone = list(asked_in(7, start, start + DAY))
    among = [ask for ask in asked_in(7, start - 2 * DAY, start + 2 * DAY) if start <= ask.at < start + DAY]
    assert alone
    assert alone == among
    assert alone != list(asked_in(8, start, start + DAY))


def test_months_are_the_last_whole_one_and_this_one() -> None:
    assert MONTHS.billed == "2026-10"
    (first, first_end), (second, second_end) = MONTHS.spans()
    assert (first_end - first, second_end - second) == (2 * DAY, 2 * DAY)
    assert (first_end, second_end) == (MONTHS.this, NOON)
    assert Months.until(NOON, 62).spans()[0][0] == MONTHS.first
