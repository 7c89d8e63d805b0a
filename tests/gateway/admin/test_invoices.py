"""Invoices by /admin/v1: each level of a line adds up to its parent, files are what was sealed, changes are the
platform's."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import zipfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pypdf import PdfReader

from billing.accounts.adjustments import adjust
from billing.invoices.electronic.reading import read_statement
from billing.invoices.parties.store import Parties
from billing.money import format_pico
from billing.prices import PriceCatalog
from billing.usage import Usage
from billing.verification.audit import audit_money
from storage.database.database import Database
from storage.database.public_ids import public_id
from tenancy.tables import ApiKey, Project, Tenant
from tests.billing.invoices.customers import USD, Customer, set_clock
from tests.gateway.admin.desk import Desk, Desks
from tests.gateway.stack import Stack

pytestmark = pytest.mark.slow

C = "/tenants/customer"
_WHY = {"reason": "insolvent"}


@pytest.fixture
async def customer(stack: Stack, stocked_sqlite_url: str) -> AsyncIterator[Customer]:
    """A tenant with a billing profile whose months are past, on a clock of its own."""
    database = await Database.open(stocked_sqlite_url)
    made = await Customer.make(database)
    now = datetime(2026, 9, 15, tzinfo=UTC)
    async with database.transaction() as session:
        session.add(Tenant(id=made.id, name="customer", created_at=now))
        await session.flush()
        session.add(Project(id=made.tenant.project_id, tenant_id=made.id, name="main", created_at=now))
        await session.flush()
        session.add(
            ApiKey(
                id=made.tenant.key_id, public_id="tp_live_customer", tenant_id=made.id, name="",
                project_id=made.tenant.project_id, kind="project", mac=b"", pepper_version=1, created_at=now,
            )
        )  # fmt: skip
    set_clock(stack.database, "2026-11-10")
    yield made
    await database.close()


async def _drill(desk: Desk, at: str) -> tuple[Any, list[Any]]:
    """A level with all its pages."""
    rows: list[Any] = []
    after = ""
    while True:
        page = await desk.get(f"{at}{after}")
        rows += page["data"]
        if not page["has_more"]:
            return page, rows
        after = f"&after={page['next']}"


async def _adds_up(desk: Desk, invoice: str) -> int:
    """Open every line down to its requests; how many requests there are in all."""
    seen = 0
    for line in (await desk.get(f"{C}/invoices/{invoice}/lines?limit=100"))["data"]:
        if not line["opens"]:
            await desk.get(f"{C}/invoices/{invoice}/lines/{line['n']}/drill", 400)
            continue
        at = f"{C}/invoices/{invoice}/lines/{line['n']}/drill"
        page, days = await _drill(desk, f"{at}?by=day")
        assert page["total"] == {"units": line["units"], "exact": line["exact"]}
        _check(page["total"], days)
        for day in days:
            page, hours = await _drill(desk, f"{at}?by=hour&day={day['start'][:10]}")
            assert page["total"] == {"units": day["units"], "exact": day["exact"]}
            _check(page["total"], hours)
            for hour in hours:
                where = f"day={hour['start'][:10]}&hour={int(hour['start'][11:13])}"
                page, requests = await _drill(desk, f"{at}?by=request&{where}&limit=2")
                assert page["total"] == {"units": hour["units"], "exact": hour["exact"]}
                _check(page["total"], requests)
                assert len(requests) == hour["requests"] + hour["adjustments"]
                assert {each["key"] for each in requests} == {"tp_live_customer"}
                seen += len(requests)
    return seen


def _check(total: Any, parts: list[Any]) -> None:
    assert sum(part["units"] for part in parts) == total["units"]
    assert sum(Decimal(part["exact"]) for part in parts) == Decimal(total["exact"])


async def test_a_number_with_a_slash_names_its_invoice(desks: Desks, customer: Customer) -> None:
    """The `/` is written `%2F`, which is encoded once more as any `%` of a path is."""
    seller = msgspec.structs.replace(USD, number_format="{series}/{year}/{n}")
    await Parties(customer.database).set_seller(seller, reason="as our books have it")
    await customer.use("2026-10-01", Usage(uncached=10_000_000))
    record = await customer.invoice("2026-10")
    assert record.number is not None
    assert record.number.count("/") == 2
    name, owner = quote(quote(record.number, safe=""), safe=""), desks.role("owner", customer.id)
    assert "%252F" in name
    for path in ("", "/lines", "/verification"):
        by_number = await owner.get(f"{C}/invoices/{name}{path}")
        assert by_number == await owner.get(f"{C}/invoices/{public_id('invoice', record.id)}{path}")


async def test_an_invoice_is_drafted_finalized_opened_and_paid(stack: Stack, desks: Desks, customer: Customer) -> None:
    finance, owner = desks.operator("finance"), desks.role("owner", customer.id)
    for day in (1, 31):
        for moment in ("00:00:00", "13:30:00", "23:59:59"):
            usages = [Usage(uncached=day * n + 1_000_000, output=n) for n in range(3)]
            events = await customer.use(f"2026-10-{day:02d}T{moment}", *usages)
    await adjust(
        customer.database, PriceCatalog(customer.database), customer.id, events[1].id, {"output": -1}, reason="why"
    )
    assert (await finance.post(f"{C}/invoices", {"period": "2026-13"}, 400))["error"]["code"] == "invalid_period"
    would = await finance.post(f"{C}/invoices", {"period": "2026-10", "dry_run": True})
    draft = await finance.post(f"{C}/invoices", {"period": "2026-10"}, 201)
    assert (draft["state"], draft["number"], draft["gross"]) == ("draft", None, would["gross"])
    assert (await owner.get(f"{C}/invoices"))["data"] == []  # drafts are the platform's
    await owner.get(f"{C}/invoices/{draft['id']}", 404)
    assert (await finance.get(f"{C}/invoices/{draft['id']}/ubl", 409))["error"]["code"] == "not_expressible"
    refused = await finance.post(f"{C}/invoices/{draft['id']}/finalize", status=409)
    assert refused["error"]["code"] == "period_open"
    await customer.close("2026-10")
    assert (await finance.post(f"{C}/invoices/{draft['id']}/finalize", {"dry_run": True}))["number"]
    sent = await finance.post(f"{C}/invoices/{draft['id']}/finalize", {"issued": "2026-11-03"})
    assert (sent["state"], sent["issued"]) == ("finalized", "2026-11-03")
    number = sent["number"]
    (listed,) = (await owner.get(f"{C}/invoices?state=finalized"))["data"]
    assert listed == sent
    details = await owner.get(f"{C}/invoices/{number}")
    assert {name: details[name] for name in sent} == sent
    lines = (await owner.get(f"{C}/invoices/{number}/lines"))["data"]
    assert (len(lines), details["line_count"]) == (2, 2)
    assert sum(Decimal(line["net"]) for line in lines) == Decimal(sent["net"])
    exact = sum(Decimal(line["exact"]) for line in lines)
    usage = await owner.get("/usage?period=2026-10")  # as `turnpike usage` prints it
    assert exact == Decimal(usage["data"][0]["results"][0]["cost"]["USD"])
    assert await _adds_up(owner, number) == 18 + 12 + 1  # of the uncached line, of the output line, and the adjustment

    wanted = await _files(stack, owner, number)
    assert hashlib.sha256(wanted["json"]).hexdigest() == sent["sha256"]
    assert json.loads(wanted["json"])["number"] == number
    rows = list(csv.DictReader(io.StringIO(wanted["csv"].decode())))
    assert [row["exact"] for row in rows] == [line["exact"] for line in lines]
    assert wanted["pdf"].startswith(b"%PDF-")
    (embedded,) = PdfReader(io.BytesIO(wanted["pdf"])).attachments["factur-x.xml"]
    assert embedded == wanted["cii"]
    for syntax in ("ubl", "cii"):
        stated = read_statement(wanted[syntax].decode(), syntax)  # type: ignore[arg-type]
        assert (stated.number, stated.gross, stated.payable) == (number, sent["gross"], sent["payable"])
        assert stated.lines == [line["net"] for line in lines]
    archive = zipfile.ZipFile(io.BytesIO(wanted["bundle"]))
    manifest = json.loads(archive.read("manifest.json"))
    assert manifest["sha256"] == sent["sha256"]
    assert archive.read(f"{number}.ubl.xml") == wanted["ubl"]
    for file in manifest["files"]:
        assert hashlib.sha256(archive.read(file["name"])).hexdigest() == file["sha256"]
    assert sorted(archive.namelist()) == sorted([*(file["name"] for file in manifest["files"]), "manifest.json"])

    verified = await owner.get(f"{C}/invoices/{number}/verification")
    assert (verified["number"], verified["previous"]) == (number, None)
    assert {check["difference"] for check in verified["checks"]} == {None}

    paid = {"reference": "transfer 7", "amount": "1.00"}
    assert (await finance.post(f"{C}/invoices/{number}/payments", {**paid, "dry_run": True}))["paid"] == "1.00"
    for _ in range(2):
        done = await finance.post(f"{C}/invoices/{number}/payments", paid)
        assert (done["paid"], done["state"]) == ("1.00", "partially_paid")
    await finance.post(f"{C}/invoices/{number}/payments", {**paid, "amount": "0.001"}, 400)
    await finance.post(f"{C}/invoices/{number}/payments", {**paid, "amount": "2.00"}, 409)
    assert (await finance.post(f"{C}/invoices/{number}/void", _WHY, 409))["error"]["code"] == "wrong_state"
    note = {"reason": "an outage", "request": "ticket 7", "lines": [{"line": 1, "amount": "0.50"}]}
    composed = await finance.post(f"{C}/invoices/{number}/credit-notes", {**note, "dry_run": True}, 200)
    assert composed["net"] == "0.50"
    made = [await finance.post(f"{C}/invoices/{number}/credit-notes", note, 201) for _ in range(2)]
    assert made[0] == made[1]
    assert (made[0]["kind"], made[0]["corrects"], made[0]["net"]) == ("credit_note", sent["id"], "0.50")
    details = await owner.get(f"{C}/invoices/{number}")
    assert [payment["reference"] for payment in details["payments"]] == ["transfer 7"]
    assert [credited["id"] for credited in details["credit_notes"]] == [made[0]["id"]]
    written_off = await finance.post(f"{C}/invoices/{number}/uncollectible", _WHY)
    assert written_off["state"] == "uncollectible"
    assert (await finance.post(f"{C}/invoices/{number}/uncollectible", {}, 400))["error"]["param"] == "reason"
    assert (await finance.post(f"{C}/invoices/{number}/vat-relief", _WHY, 409))["error"]["code"] == "wrong_state"
    page = await finance.get("/invoices?limit=1")
    rest = await finance.get(f"/invoices?after={page['data'][0]['id']}")
    assert {each["id"] for each in (*page["data"], *rest["data"])} == {made[0]["id"], sent["id"]}
    assert [each["id"] for each in (await finance.get("/invoices?kind=invoice"))["data"]] == [sent["id"]]
    assert await audit_money(customer.database) == []


async def _files(stack: Stack, desk: Desk, number: str) -> dict[str, bytes]:
    kinds = {"pdf": "application/pdf", "json": "application/json", "csv": "text/csv", "bundle": "application/zip"}
    kinds |= {"ubl": "application/xml", "cii": "application/xml"}
    found = {}
    for form, media_type in kinds.items():
        answer = await desk.call("GET", f"{C}/invoices/{number}/{form}")
        assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, media_type)
        assert "attachment" in answer.headers["content-disposition"]
        found[form] = answer.content
    return found


async def test_invoices_are_their_tenants_and_changed_by_the_platforms_finance(
    stack: Stack, desks: Desks, customer: Customer
) -> None:
    await customer.use("2026-10-05", Usage(uncached=1_000_000))
    record = await customer.invoice("2026-10")
    assert record.number is not None
    at = f"{C}/invoices/{record.number}"
    reads = ("", "/lines", "/lines/1/drill", "/json", "/csv", "/ubl", "/cii", "/verification")
    for role, status in (("owner", 200), ("finance", 200), ("viewer", 200), ("developer", 403)):
        desk = desks.role(role, customer.id)  # type: ignore[arg-type]
        for path in reads:
            assert (await desk.call("GET", f"{at}{path}")).status_code == status
        await desk.get("/invoices", status)
        for change in ("finalize", "void", "uncollectible", "vat-relief", "payments", "credit-notes"):
            await desk.post(f"{at}/{change}", {}, 403)
        await desk.post(f"{C}/invoices", {"period": "2026-10"}, 403)
    for outsider in (desks.own(), desks.own("finance")):
        for path in reads:
            await outsider.get(f"{at}{path}", 404)
            await outsider.get(f"/tenants/demo/invoices/{record.number}{path}", 404)
            await outsider.get(f"/tenants/demo/invoices/invoice_{record.id.hex}{path}", 404)
        assert (await outsider.get("/invoices"))["data"] == []
    for change in ("finalize", "void", "payments"):
        await desks.operator("admin").post(f"{at}/{change}", {}, 403)
    finance = desks.operator("finance")
    for wrong in ("lines/9/drill", "lines/0/drill"):
        await finance.get(f"{at}/{wrong}", 404)
    for wrong in ("by=hour", "by=hour&day=x", "by=request&day=2026-10-05", "by=request&day=2026-10-05&hour=24",
                  "by=week", "by=request&day=2026-10-05&hour=0&after=x",
                  "day=2026-10-05", "by=hour&day=2026-10-05&hour=1"):  # fmt: skip
        await finance.get(f"{at}/lines/1/drill?{wrong}", 400)
    for wrong in ("limit=0", "limit=101", "after=x"):
        await finance.get(f"{at}/lines?{wrong}", 400)
    empty = await finance.get(f"{at}/lines/1/drill?by=hour&day=2026-10-06")
    assert (empty["data"], empty["total"]) == ([], {"units": 0, "exact": format_pico(0)})
    assert (await finance.post(f"{at}/void", _WHY))["state"] == "void"
    assert (await finance.post(f"{at}/void", _WHY, 409))["error"]["code"] == "wrong_state"


async def test_who_sets_how_einvoices_are_sent(desks: Desks, customer: Customer) -> None:
    """A tenant says where its documents go; the profile that they must have is the platform's."""
    finance, owner = desks.operator("finance"), desks.role("owner", customer.id)
    own = {"endpoint": "04011000-1234512345-35", "endpoint_scheme": "0204", "buyer_reference": "04011000-1234512345-35"}
    changed = await owner.call("PATCH", f"{C}/buyer", own)
    assert {name: changed.json()[name] for name in (*own, "einvoice")} == own | {"einvoice": ""}
    profile = {"einvoice": "xrechnung"}
    assert (await owner.call("PATCH", f"{C}/buyer", profile)).status_code == 403
    assert (await finance.call("PATCH", f"{C}/buyer", profile)).json()["einvoice"] == "xrechnung"
    refused = await owner.call("PATCH", f"{C}/buyer", {"buyer_reference": ""})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "buyer_reference")
    await customer.use("2026-10-05", Usage(uncached=1_000_000))
    await customer.close("2026-10")
    draft = await finance.post(f"{C}/invoices", {"period": "2026-10"}, 201)
    stopped = await finance.post(f"{C}/invoices/{draft['id']}/finalize", status=409)
    assert (stopped["error"]["code"], "seller.contact" in stopped["error"]["message"]) == ("not_expressible", True)
    seller = {
        "contact": "Petra Muster",
        "phone": "+49 89 1234567",
        "reason": "new",
        "iban": "de89 3704 0044 0532 0130 00",
    }
    changed = await desks.operator("finance").call("PATCH", f"/sellers/{draft['seller']}", seller)
    assert (changed.status_code, changed.json()["iban"]) == (200, "DE89370400440532013000")
    draft = await finance.post(f"{C}/invoices", {"period": "2026-10"}, 201)
    sent = await finance.post(f"{C}/invoices/{draft['id']}/finalize")
    ubl = (await owner.call("GET", f"{C}/invoices/{sent['number']}/ubl")).text
    assert "xrechnung_3.0<" in ubl
    assert "<cbc:BuyerReference>04011000-1234512345-35<" in ubl


_MOMENTS = st.tuples(st.integers(1, 31), st.integers(0, 23), st.integers(0, 59))
_USES = st.lists(st.tuples(_MOMENTS, st.integers(0, 10**9), st.integers(0, 10**6)), min_size=1, max_size=6)


@pytest.mark.slow
async def test_every_level_is_a_partition_of_the_one_above(stack: Stack, desks: Desks, customer: Customer) -> None:
    finance = desks.operator("finance")
    database = customer.database

    @settings(max_examples=8, suppress_health_check=list(HealthCheck), deadline=None)
    @given(_USES)
    def collect(uses: list[Any]) -> None:
        drawn.append(uses)

    drawn: list[Any] = []
    collect()
    used = sorted({(moment, uncached, output) for uses in drawn for moment, uncached, output in uses})[:40]
    for (day, hour, minute), uncached, output in used:
        await customer.use(f"2026-10-{day:02d}T{hour:02d}:{minute:02d}", Usage(uncached=uncached, output=output))
    set_clock(database, "2026-10-31T23:59:59")
    record = await customer.invoice("2026-10")
    assert record.number is not None
    billed = sum(1 for _, uncached, _ in used if uncached) + sum(1 for *_, output in used if output)
    assert await _adds_up(finance, record.number) == billed


async def test_a_document_shows_the_one_before_it_to_who_may_see_that(
    stack: Stack, desks: Desks, customer: Customer
) -> None:
    neighbour = await Customer.make(customer.database)
    for one in (neighbour, customer):
        await one.use("2026-09-20", Usage(uncached=1_000_000))
    hidden, first = await neighbour.invoice("2026-09"), await customer.invoice("2026-09")
    at = f"{C}/invoices/{first.number}/verification"
    previous = (await desks.role("viewer", customer.id).get(at))["previous"]
    assert previous == {"id": None, "tenant_id": None, "number": None, "sha256": hidden.sha256}
    previous = (await desks.operator("finance").get(at))["previous"]
    assert (previous["number"], previous["sha256"]) == (hidden.number, hidden.sha256)
    await customer.use("2026-10-05", Usage(uncached=1_000_000))
    second = await customer.invoice("2026-10")
    found = await desks.role("viewer", customer.id).get(f"{C}/invoices/{second.number}/verification")
    assert (found["previous"]["number"], found["previous"]["sha256"]) == (first.number, first.sha256)
    assert [check for check in found["checks"] if check["difference"] is not None] == []
