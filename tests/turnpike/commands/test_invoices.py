"""`turnpike invoices …` from an empty data folder to a paid invoice, opened down to its requests."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import select, update

from audit_log.record import record_change
from audit_log.recorded_rows import digest_row
from billing.accounts.balances import Balances
from billing.integrity.canonical_json import canonical
from billing.integrity.recorded_tables import BUYERS
from billing.invoices.parties.store import Parties
from billing.periods.periods import Periods
from billing.prices import PriceCatalog
from billing.tables.invoices import billing_profile
from billing.tables.money import balance
from billing.usage import Usage
from storage.database.database import Database
from tenancy.tables import Project
from tests.billing.invoices.customers import Customer, set_clock
from tests.billing.money import PRICES, Tenant
from turnpike import logs
from turnpike.cli import main

BUYER = ["--name", "Client SAS", "--address", "1 rue de la Paix", "--city", "Paris", "--country", "FR"]
SELLER = ["--name", "Acme GmbH", "--address", "Weg 1", "--city", "Bonn", "--country", "DE", "--vat-id", "DE136695976"]


class Terminal:
    """Runs commands on one data folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(logs, "configure", lambda *_: None)  # of this process, which is the tests'
        self._flags = ["--data-dir", str(folder)]
        self._capsys = capsys
        self.said = ""
        self.run("migrate")

    def run(self, *words: str, status: int = 0) -> str:
        assert main([*words, *self._flags]) == status
        captured = self._capsys.readouterr()
        self.said = captured.err
        return captured.out if status == 0 else captured.out + captured.err


async def _use(url: str, price_versions: int = 1) -> None:
    """A month of usage at so many price versions, closed."""
    database = await Database.open(url)
    async with database.reading() as session:
        project: Project = (await session.scalars(select(Project))).one()
        owner: tuple[UUID, UUID] = (project.tenant_id, project.id)
    await Balances(database).grant(owner[0], 16 * 10**11, "USD")
    tenant = msgspec.structs.replace(await Tenant.rich(database, 0), id=owner[0], project_id=owner[1])
    customer = Customer(tenant, None)  # type: ignore[arg-type]
    await customer.use("2026-10-09T08:15", Usage(output=500_000), Usage(output=500_000))
    for _ in range(price_versions - 1):
        customer.tenant.version = await PriceCatalog(database).set("stdlib-qa", "USD", PRICES)
        await customer.use("2026-10-20T08:15", Usage(output=500_000))
    set_clock(database, "2026-11-02")
    await Periods(database).close("2026-10")
    await database.close()


async def _set_vat_id(url: str, vat_id: str) -> None:
    """Give every buyer a VAT id that no check has seen."""
    database = await Database.open(url)
    for tenant_id, buyer in (await Parties(database).buyers()).items():
        profile = canonical(msgspec.structs.replace(buyer, vat_id=vat_id))
        async with database.transaction() as session:
            here = billing_profile.c.tenant_id == tenant_id
            await session.execute(update(billing_profile).where(here).values(profile=profile))
            await record_change(session, "billing_profile.set", target="billing_profile", target_id=tenant_id,
                                tenant_id=tenant_id, after={"vat_id": vat_id},
                                row_sha256=await digest_row(session, BUYERS, tenant_id))  # fmt: skip
    await database.close()


async def _alter(url: str) -> None:
    """Change what no program of ours would."""
    database = await Database.open(url)
    async with database.transaction() as session:
        await session.execute(update(balance).values(overdraft=1))
    await database.close()


@pytest.mark.slow
def test_lines_of_two_price_versions_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    turnpike = Terminal(tmp_path, capsys, monkeypatch)
    turnpike.run("tenants", "create", "client")
    asyncio.run(_use(f"sqlite:///{tmp_path}/turnpike.db", price_versions=2))
    turnpike.run("invoices", "seller", "set", "acme", *SELLER, "--rate", "DE=19", "--rate", "FR=20")
    turnpike.run("invoices", "buyer", "set", "client", *BUYER)
    turnpike.run("invoices", "draft", "--tenant", "client", "--period", "2026-10")
    shown = turnpike.run("invoices", "show", "--tenant", "client", "--period", "2026-10")
    assert re.findall(r"output tokens, price version (\d+) ", shown) == ["1", "2"], shown


def test_from_an_empty_folder_to_a_paid_invoice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    turnpike = Terminal(tmp_path, capsys, monkeypatch)
    month, one = ("--period", "2026-10"), "INV-2026-000001"
    turnpike.run("tenants", "create", "client")
    asyncio.run(_use(f"sqlite:///{tmp_path}/turnpike.db"))
    assert "client: there is no billing profile" in turnpike.run("invoices", "draft", "--all", *month, status=1)
    assert "client: there is no billing" in turnpike.run("invoices", "draft", "--tenant", "client", *month, status=2)
    assert "--seller" in turnpike.run("invoices", "buyer", "set", "client", *BUYER, status=2)
    assert "city" in turnpike.run("invoices", "seller", "set", "acme", "--name", "A", "--address", "b", status=2)
    assert "DE 19 %" in turnpike.run("invoices", "seller", "set", "acme", *SELLER, "--rate", "DE=19", "--rate", "FR=20")
    assert "needs a reason" in turnpike.run("invoices", "seller", "set", "acme", "--rate", "AT=20", status=2)
    why = ("--reason", "registered there")
    assert "DE 19 %" in turnpike.run("invoices", "seller", "set", "acme", "--rate", "AT=20", *why)
    assert "there is no rate for IT" in turnpike.run(
        "invoices", "seller", "set", "acme", "--remove-rate", "IT", status=2
    )
    both = turnpike.run("invoices", "seller", "set", "acme", "--rate", "AT=21", "--remove-rate", "AT", status=2)
    assert "--rate" in both
    assert "--remove-rate" in both
    twice = turnpike.run("invoices", "seller", "set", "acme", "--rate", "AT=21", "--rate", "AT=22", status=2)
    assert "--rate gives AT 2 times" in twice
    assert "AT 20 %" in turnpike.run("invoices", "seller", "show", "acme")
    removed = turnpike.run("invoices", "seller", "set", "acme", "--remove-rate", "AT", "--from", "2998-01-01", *why)
    today, _, then = removed.partition("from 2998-01-01")
    assert "AT 20 %" in today
    assert "AT 20 %" not in then
    for vat_id in ("FRHELLO", "XX9999"):
        said = turnpike.run("invoices", "buyer", "set", "client", *BUYER, "--vat-id", vat_id, status=2)
        assert "vat_id" in said
        assert vat_id in said
    turnpike.run("invoices", "buyer", "set", "client", *BUYER)
    turnpike.run("tenants", "create", "idle")
    turnpike.run("invoices", "buyer", "set", "idle", *BUYER)
    turnpike.run("invoices", "buyer", "set", "client", "--payment-days", "14")
    asyncio.run(_set_vat_id(f"sqlite:///{tmp_path}/turnpike.db", "FRHELLO"))
    turnpike.run("invoices", "buyer", "set", "client", "--purchase-order", "PO-1")
    assert "FRHELLO does not have the format" in turnpike.said
    asyncio.run(_set_vat_id(f"sqlite:///{tmp_path}/turnpike.db", ""))
    shown = turnpike.run("invoices", "buyer", "show", "client")
    assert "Client SAS" in shown
    assert "14" in shown
    draft = "client, 2026-10: 1 line, net 1.60 USD, VAT 0.32 USD, paid in advance 1.60 USD, to pay 0.32 USD"
    nothing = "idle, 2026-10: nothing to bill"
    assert turnpike.run("invoices", "draft", "--all", *month, "--dry-run") == (
        f"{draft} (dry run, nothing written)\n{nothing}\n"
    )
    assert "2026-10: 1 tenant would be done, 1 with nothing to bill, 0 refused" in turnpike.said
    last_month = (datetime.now(UTC).replace(day=1) - timedelta(days=1)).strftime("%Y-%m")
    turnpike.run("invoices", "draft", "--all", "--dry-run")
    assert f"{last_month}: 2 tenants" in turnpike.said
    assert turnpike.run("invoices", "list") == "no invoices\n"
    turnpike.run("invoices", "finalize", "--all", *month, "--dry-run", status=1)
    assert "client: there is usage and no draft" in turnpike.said
    assert "2026-10: 0 tenants would be done, 1 with no draft, 1 refused" in turnpike.said
    assert turnpike.run("invoices", "draft", "--tenant", "client", *month) == f"{draft}\n"
    final = ("invoices", "finalize", "--all", *month, "--issued", "2026-11-02")
    dry = turnpike.run(*final, "--dry-run")
    assert "client, 2026-10: the draft of 2026-10: finalized, total 1.92 USD, left to pay 0.32 USD (dry run" in dry
    assert "its number is given at finalizing" in dry
    assert "INV-" not in dry  # which tenant gets which, the real run decides
    for _ in range(2):
        assert turnpike.run(*final).splitlines() == [
            f"client, 2026-10: {one}: finalized, total 1.92 USD, left to pay 0.32 USD",
            "idle, 2026-10: no draft",
        ]
    assert (
        turnpike.run("invoices", "draft", "--all", *month)
        == f"client, 2026-10: {one}: finalized, total 1.92 USD, left to pay 0.32 USD\n{nothing}\n"
    )
    assert one in turnpike.run(*final, "--dry-run")  # finalized before: it has its number
    (*_, last) = json.loads(turnpike.run("tenants", "statement", "client", "--format", "json"))
    assert (last["balance"], last["invoiced"]) == ("-0.320000000000", "0.320000000000")
    statement = turnpike.run("tenants", "statement", "client")
    assert "0.320000000000 that invoices ask for beyond usage" in statement
    assert turnpike.run("tenants", "list").splitlines()[1].split()[2] == "0.000000000000"
    assert "credit note" in turnpike.run("invoices", "draft", "--tenant", "client", *month, status=2)
    assert json.loads(turnpike.run("invoices", "show", one, "--format", "json"))["due"] == "2026-11-16"
    line = ("invoices", "show", one, "--line", "1")
    for level in ([], ["--day", "2026-10-09"], ["--day", "2026-10-09", "--hour", "8"]):
        out = turnpike.run(*line, *level)
        assert "1.600000000000" in out
    assert out.count("0.800000000000") == 2
    assert "not a day" in turnpike.run(*line, "--day", "friday", status=2)
    pdf = tmp_path / "out.pdf"
    turnpike.run("invoices", "pdf", one, "-o", str(pdf))
    assert pdf.read_bytes().startswith(b"%PDF")
    turnpike.run("invoices", "pdf", "--all", *month, "-o", str(tmp_path / "all"))
    assert (tmp_path / "all" / f"{one}.pdf").read_bytes() == pdf.read_bytes()
    xml = turnpike.run("invoices", "xml", one, "--syntax", "cii", "-o", str(tmp_path)).strip()
    assert xml == str(tmp_path / f"{one}.cii.xml")
    turnpike.run("invoices", "xml", "--all", *month, "-o", str(tmp_path / "all"))
    assert f"<cbc:ID>{one}</cbc:ID>" in (tmp_path / "all" / f"{one}.ubl.xml").read_text()
    batch = turnpike.run("export", "datev", "--period", "2026-11", "--datev", "consultant=1001,client=1", status=2)
    assert "is in USD, the books in EUR" in batch
    assert "no seller nobody" in turnpike.run("export", "general-ledger", "--seller", "nobody", status=2)
    assert "is left" in turnpike.run("invoices", "pay", one, "--reference", "b", "--amount", "0.33", status=2)
    assert "decimal places" in turnpike.run("invoices", "pay", one, "--reference", "b", "--amount", "0.001", status=2)
    note = ("invoices", "credit-note", one, "--reason", "A gesture", "--request", "t1", "--line", "1=0.10")
    for _ in range(2):
        assert "left to pay 0.20 USD" in turnpike.run(*note)
    assert "left to pay 0.00 USD" in turnpike.run("invoices", "pay", one, "--reference", "b", "--dry-run")
    assert turnpike.run("invoices", "pay", one, "--reference", "b").startswith(f"{one}: paid")
    assert f"{one} is paid already" in turnpike.run("invoices", "pay", one, "--reference", "c", status=2)
    assert "cannot become" in turnpike.run("invoices", "uncollectible", one, *why, status=2)
    assert "credit note instead" in turnpike.run("invoices", "void", one, *why, status=2)
    total = turnpike.run("invoices", "list").splitlines()[-1].split()
    assert total == ["total", "2", "documents", "USD", "1.50", "0.30", "1.80", "1.60", "0.20", "0.12", "0.00"]
    turnpike.run("audit", "money")
    asyncio.run(_alter(f"sqlite:///{tmp_path}/turnpike.db"))
    said = turnpike.run("audit", "money", status=1)
    assert "a balance's overdraft is wrong" in said
    assert "1 finding" in said
