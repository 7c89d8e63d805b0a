"""The migrations lead to what the tables say, on both databases."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Integer, MetaData, Numeric, Text, inspect, select, text

import billing.tables.books
import billing.tables.invoices
import billing.tables.money
import billing.tables.payments
import billing.tables.prices
import prompt_cache.tables
import storage.database.outbox
import storage.database.test_clock
import tenancy.tables
import webhooks.tables
from billing.reports import usage_report
from billing.reservation.hold_service import HoldService
from billing.verification import audit
from storage.database import migrate
from storage.database.base import Base, new_id
from storage.database.database import LONG_STATEMENT_S, STATEMENT_S, Database, DatabaseUnavailable

ROOMS = (
    billing.tables.books,
    billing.tables.invoices,
    billing.tables.invoices,
    billing.tables.books,
    billing.tables.books,
    billing.tables.prices,
    billing.tables.prices,
    billing.tables.books,
    billing.tables.money,
    billing.tables.payments,
    prompt_cache.tables,
    storage.database.outbox,
    storage.database.test_clock,
    webhooks.tables,
    tenancy.tables,
)


def _differences(connection: Connection) -> list[object]:
    def ours(name: str | None, kind: str, _parents: object) -> bool:
        return not (kind == "table" and re.fullmatch(r"usage_fact_\d{4}_\d{2}", name or ""))  # a partition

    options = {"compare_type": True, "compare_server_default": True, "include_name": ours}
    context = MigrationContext.configure(connection, opts=options)
    return list(compare_metadata(context, Base.metadata))


def _checks(connection: Connection) -> dict[str, set[str | None]]:
    inspector = inspect(connection)
    return {t: {c["name"] for c in inspector.get_check_constraints(t)} for t in Base.metadata.tables}


@pytest.mark.both_databases
async def test_migrations_make_the_tables_of_the_metadata(database: Database) -> None:
    async with database.reading() as session:
        connection = await session.connection()
        assert await connection.run_sync(_differences) == []
        found = await connection.run_sync(_checks)
    for name, table in Base.metadata.tables.items():
        wanted = {str(c.name) for c in table.constraints if type(c).__name__ == "CheckConstraint"}
        assert found[name] == wanted


@pytest.mark.slow
async def test_an_empty_database_is_told_from_a_migrated_one(tmp_path: Path, empty_postgres_url: str) -> None:
    for url in (f"sqlite:///{tmp_path}/new.sqlite", empty_postgres_url):
        assert await migrate.current(url) is None
        with pytest.raises(migrate.SchemaMismatch, match="empty"):
            await migrate.check(url)
        await migrate.upgrade(url)
        await migrate.upgrade(url)
        assert await migrate.current(url) == migrate.head()
        await migrate.check(url)


def test_the_revisions_are_those_that_alembic_reads() -> None:
    script = ScriptDirectory.from_config(migrate.configuration())
    assert list(migrate.revisions()) == _revisions()
    assert migrate.head() == script.get_current_head()


def test_a_process_whose_database_is_up_to_date_imports_no_alembic(fresh_sqlite_url: str) -> None:
    program = (
        "import asyncio, sys\n"
        "from storage.database import migrate\n"
        f"for step in (migrate.check, migrate.upgrade): asyncio.run(step({fresh_sqlite_url!r}))\n"
        "sys.exit('alembic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


async def test_the_schema_of_a_newer_program_is_left_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/newer.sqlite"
    await migrate.upgrade(url)
    database = await Database.open(url)
    async with database.transaction() as session:
        await session.execute(text("UPDATE alembic_version SET version_num = 'r9999'"))
    await database.close()
    for refused in (migrate.upgrade, migrate.check):
        with pytest.raises(migrate.SchemaMismatch, match="a newer program has migrated it"):
            await refused(url)


@pytest.mark.slow
@pytest.mark.usefixtures("read_once")
async def test_the_ledger_is_made_of_what_was_there(tmp_path: Path, empty_postgres_url: str) -> None:
    """A database of the first schema, with grants, holds and events, comes out with books that agree: each revision
    is applied by itself, to what the one before it made of the data."""
    for url in (f"sqlite:///{tmp_path}/old.sqlite", empty_postgres_url):
        old = await Database.open(url)
        async with old.transaction() as session:
            connection = await session.connection()
            await connection.run_sync(_upgrade_to, "r0001")
            await connection.run_sync(_fill_first)
            before = (await session.execute(_EVENTS)).all()
        for revision in _revisions()[1:]:
            async with old.transaction() as session:
                await (await session.connection()).run_sync(_upgrade_to, revision)
            async with old.reading() as session:
                assert (await session.execute(_EVENTS)).all() == before, revision
        await old.close()
        database = await Database.open(url)
        # What an old version let a tenant overspend is said, and nothing else is wrong.
        assert [finding.what for finding in await audit.audit_money(database)] == ["a balance is below zero"]
        async with database.reading() as session:
            row = (await session.execute(select(billing.tables.money.balance))).one()
        assert (row.credit, row.debit, row.promo, row.receivable, row.held) == (900, 1000, 0, 100, 0)
        assert row.overdraft == 100
        (month,) = await usage_report.usage_by_project_and_model(database, "2026-11")
        assert (month.cost_pico, month.drafted, month.accepted) == (700, 5, 4)
        holds = HoldService(database)
        (open_one, other) = [await holds.get(request) for request in await holds.open_of("g")]
        assert open_one is not None
        assert other is not None
        assert (open_one.state, open_one.model, open_one.terms, open_one.expires_at) == ("open", "m", b"t", 10**7)
        assert await holds.sweep() == 2
        assert [finding.what for finding in await audit.audit_money(database)] == ["a balance is below zero"]
        await database.close()


_EVENTS = text("SELECT id, tenant_id, period, model, uncached, output, cost_pico FROM usage_event ORDER BY id")


def _revisions() -> list[str]:
    """All revisions, the first first."""
    script = ScriptDirectory.from_config(migrate.configuration())
    return [each.revision for each in script.walk_revisions()][::-1]


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alembic reads all revisions' modules at each upgrade, of which some tests do one a revision."""
    script = ScriptDirectory.from_config(migrate.configuration())
    monkeypatch.setattr(ScriptDirectory, "from_config", lambda _config: script)


def _upgrade_to(connection: Connection, revision: str) -> None:
    config = migrate.configuration()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _fill_first(connection: Connection) -> None:
    tenant, at = new_id(), 1_795_000_000_000_000
    metadata = MetaData()
    metadata.reflect(connection)
    table = metadata.tables

    def row(name: str, **values: object) -> None:
        filled = {
            c.name: 0 if isinstance(c.type, Integer | Numeric) else "" if isinstance(c.type, Text) else b""
            for c in table[name].columns
        }
        wanted = filled | values
        if connection.dialect.name == "sqlite":
            wanted = {k: v.bytes if isinstance(v, UUID) else v for k, v in wanted.items()}
        connection.execute(table[name].insert().values(wanted))

    row("price_version", id=1, model="m", currency="USD")
    for meter in ("uncached", "read_automatic", "output"):
        row("price", version=1, meter=meter, lane="*", price_micro=1)
    row("balance", tenant_id=tenant, currency="USD", credit=900, debit=1000, held=0, overdraft=100)
    row("grant", id=new_id(), tenant_id=tenant, amount_pico=600, currency="USD", kind="promo", at=at)
    row("grant", id=new_id(), tenant_id=tenant, amount_pico=300, currency="USD", kind="paid", at=at)
    for cost, period, sequence in ((300, "2026-10", 0), (700, "2026-11", 1)):
        identity = new_id()
        ids = {"tenant_id": tenant, "project_id": tenant, "key_id": tenant}
        row("hold", request_id=identity, **ids, state="settled", price_version=1)
        for state in ("open", "expired"):
            row("hold", request_id=new_id(), **ids, state=state, model="m", gateway="g", terms=b"t", expires_at=10**7)
        row(
            "usage_event", id=identity, **ids, model="m", period=period, sequence=sequence, uncached=cost,
            cost_pico=cost, admitted_at=at, price_version=1, count_drafted=5, count_accepted=4,
        )  # fmt: skip


async def test_a_statement_of_a_migration_has_a_limit_of_its_own(
    empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statements that rewrite a large table take longer than any that a request may wait for."""
    assert LONG_STATEMENT_S > 100 * STATEMENT_S
    monkeypatch.setattr(migrate, "LONG_STATEMENT_S", 0.3)
    other = await asyncpg.connect(empty_postgres_url)
    try:
        await other.execute(f"SELECT pg_advisory_lock({migrate._LOCK})")
        with pytest.raises(DatabaseUnavailable, match="took longer than it may"):
            await migrate.upgrade(empty_postgres_url)
    finally:
        await other.close()


@pytest.mark.slow
async def test_what_stood_before_digests_were_kept_is_recorded_once(tmp_path: Path, empty_postgres_url: str) -> None:
    for url in (f"sqlite:///{tmp_path}/old.sqlite", empty_postgres_url):
        old = await Database.open(url)
        async with old.transaction() as session:
            connection = await session.connection()
            await connection.run_sync(_upgrade_to, "r0051")
            await connection.run_sync(_fill_settings)
        await old.close()
        await migrate.upgrade(url)
        database = await Database.open(url)
        assert await audit.audit_money(database) == []
        for table in ("legal_entity", "billing_profile"):
            async with database.transaction() as session:
                await session.execute(text(f"UPDATE {table} SET profile = 'another IBAN'"))
        whats = [finding.what for finding in await audit.audit_money(database)]
        assert whats == ["a row is not what was recorded"] * 2
        await database.close()


def _fill_settings(connection: Connection) -> None:
    tenant = new_id()
    metadata = MetaData()
    metadata.reflect(connection)

    def row(name: str, **values: object) -> None:
        if connection.dialect.name == "sqlite":
            values = {k: v.bytes if isinstance(v, UUID) else v for k, v in values.items()}
        connection.execute(metadata.tables[name].insert().values(values))

    row("legal_entity", id="main", profile="{}", updated_at=1)
    row("billing_profile", tenant_id=tenant, seller="main", profile="{}", updated_at=1)
    row("balance", tenant_id=tenant, currency="USD", credit=0, debit=0, held=0, overdraft=0, credit_line=5, budgets=1)
    texts = {"scope": "tenant", "subject": "", "span": "total", "action": "block", "thresholds": "100"}
    row("budget", budget_id=new_id(), tenant_id=tenant, limit_pico=10**15, **texts)
    proposal = {"kind": "grant.create", "arguments": "{}", "summary": "a grant", "state": "pending", "reason": ""}
    row("pending_change", id=new_id(), tenant_id=tenant, author="ann", author_via="key", created_at=1, **proposal)
    work = {"rows": 1, "attempts": 1, "created_at": 1, "leased_until": 1, "manifest": "{}", "state": "done"}
    file = {"dataset": "usage", "period": "2026-10", "format": "csv"}
    row("export_job", id=new_id(), tenant_id=tenant, key_id=new_id(), **file, **work)
    counts = dict.fromkeys(("events", "lost", "doubled", "unconfirmed", "late", "drift_pico"), 0)
    row("recon_run", id=new_id(), period="2026-10", at=1, report="{}", **counts)
