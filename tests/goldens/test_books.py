"""What the books are made of: the schema, hashes of events and seals of rows, columns of exports."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Uuid, text
from sqlalchemy.types import LargeBinary

from billing.events.columns import EventColumns, event_dimensions
from billing.events.rows import EventRows
from billing.exports.files import DATASETS, MANIFEST_VERSION
from billing.exports.formats.writers import FORMATS
from billing.integrity import hash_chain
from billing.integrity.leaf_forms import FORMS
from billing.integrity.row_seals import CURRENT, digest_of, key_of, seal_of
from billing.usage import DIMENSIONS, METERS, Counts, SignedUsage, Usage, UsageEvent
from storage.database.base import Id
from storage.database.database import Database
from tests.billing.golden import month
from tests.goldens import golden

# ------------------------------------------------------------ the schema


async def test_schema_on_sqlite(fresh_sqlite_url: str) -> None:
    golden.check("schema_sqlite", await _statements(fresh_sqlite_url))


async def _statements(url: str) -> dict[str, list[str]]:
    """The statement of every table, index and trigger of a migrated database."""
    database = await Database.open(url)
    async with database.reading() as session:
        rows = await session.execute(text("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL"))
        found = {f"{row.type} {row.name}": row.sql for row in rows}
    await database.close()
    return {name: [line.strip() for line in sql.splitlines() if line.strip()] for name, sql in found.items()}


_POSTGRESQL = {
    "columns": """
        SELECT table_name, column_name, concat_ws(' ', data_type, numeric_precision || ',' || numeric_scale,
            CASE is_nullable WHEN 'NO' THEN 'not null' END, 'default ' || column_default,
            'identity ' || identity_generation)
        FROM information_schema.columns WHERE table_schema = 'public'
        ORDER BY table_name, ordinal_position""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'public'::regnamespace AND conrelid <> 0 ORDER BY 1, 2""",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1, 2",
    "triggers": """
        SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) FROM pg_trigger
        WHERE NOT tgisinternal ORDER BY 1, 2""",
    "functions": """
        SELECT 'public', proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY proname""",
}
_PARTITION = re.compile(r"_\d{4}_\d{2}$")


async def test_schema_on_postgresql(fresh_postgres_url: str) -> None:
    """Partitions are left out: which there are depends on the month."""
    database = await Database.open(fresh_postgres_url)
    frozen: dict[str, dict[str, list[str]]] = {}
    async with database.reading() as session:
        for what, query in _POSTGRESQL.items():
            tables = frozen.setdefault(what, {})
            for table, name, said in await session.execute(text(query)):
                if _PARTITION.search(table) is None:
                    tables.setdefault(table, []).append(f"{name}: {said}")
    await database.close()
    golden.check("schema_postgresql", frozen)


# ------------------------------------------------------------ hashes


def _event(number: int, **changes: Any) -> UsageEvent:
    said: dict[str, Any] = {
        "id": _id(number),
        "tenant_id": _id(101),
        "project_id": _id(102),
        "key_id": _id(103),
        "model": "modèle",
        "model_digest": "d" * 64,
        "lane": "standard",
        "price_version": 4,
        "admitted_at": 1_795_000_000_000_000,
        "finished_at": 1_795_000_001_000_000,
        "period": "2026-11",
        "status": "ok",
        "reason": "stop",
        "delivery": "confirmed",
        "source": "gateway",
        "replica": "r",
        "sequence": 2**40 + number,
        "attempt": 2,
        "counts": Counts(
            prompt=60,
            computed=10,
            read_hbm=20,
            read_dram=14,
            read_nvme=16,
            output=7,
            recomputed=3,
            drafted=5,
            accepted=4,
        ),
        "usage": Usage(uncached=10, read={"automatic": 20, "5m": 14}, write={"1h": 16}, output=6),
        "cost_pico": 123_456_789_012,
        "context_from": 32,
    }
    return UsageEvent(**said | changes)


def _id(number: int) -> UUID:
    return UUID(int=0x0190_0000_0000_7000_8000_0000_0000_0000 + number)


EVENTS = [
    _event(1),
    _event(2, model="another", usage=Usage(), cost_pico=0, status="failed", reason="error", source="journal"),
    _event(
        3,
        source="adjustment",
        counts=Counts(),
        usage=SignedUsage(uncached=-3, read={"12h": 3}, write={"24h": -1, "30m": 1}),
        cost_pico=-5,
        corrects=_id(1),
    ),
    _event(4, tenant_id=_id(104), period="2026-12", counts=Counts(), usage=Usage(), cost_pico=0),
]


def _row(event: UsageEvent) -> dict[str, Any]:
    """An event as the database has it: a column for each count and meter."""
    row = {name: getattr(event, name) for name in event.__struct_fields__}
    row |= {f"count_{name}": getattr(event.counts, name) for name in Counts.__struct_fields__}
    return row | event.usage.meters()


def test_leaves_and_heads() -> None:
    """The chain from events that are written, and again from rows that are read."""
    kinds = event_dimensions(EVENTS)
    made = hash_chain.chain_batches(
        EventRows(EventColumns(EVENTS), {kind: n for n, kind in enumerate(dict.fromkeys(kinds), 7)})
    )
    leaves = {str(id): leaf.hex() for batch in made for id, leaf in hash_chain.split_entries(batch.entries)}
    assert leaves == {str(event.id): FORMS[1].leaf(_row(event)).hex() for event in EVENTS}
    heads = {
        batch.tenant_id: hash_chain.next_head(hash_chain.first_head(batch.tenant_id, batch.period), batch.root)
        for batch in made
    }
    golden.check(
        "chain",
        {
            "leaves": leaves,
            "batches": [
                [str(batch.tenant_id), batch.period, batch.events, batch.entries.hex(), batch.root.hex()]
                for batch in made
            ],
            "start": hash_chain.first_head(_id(101), "2026-11").hex(),
            "heads": {str(tenant): head.hex() for tenant, head in heads.items()},
            "root": hash_chain.period_root(heads).hex(),
            "columns": [*FORMS[1].names, *FORMS[1].texts],
            "traits": list(DIMENSIONS),
            "meters": list(METERS),
        },
    )


def _value(column: Any, number: int) -> Any:
    """Some value of a column's type, another one for each column."""
    if isinstance(column.type, Id | Uuid):
        return _id(number)
    if isinstance(column.type, LargeBinary):
        return bytes([number]) * 4
    kind = column.type.python_type
    return (10**20 if column.name.endswith("_pico") else 1) + number if kind in (int, Decimal) else f"{column.name} é"


def test_seals() -> None:
    """What the seal of a row of each table is made of, and what it is: from numbers as either database gives them."""
    frozen = {}
    for name, form in sorted(CURRENT.items()):
        row = {column.name: _value(column, n) for n, column in enumerate(form.table.columns, 1)}
        first = form.columns[-1]
        part = form.part
        parts = []
        if part is not None:
            parts = [{c.name: _value(c, n + at) for n, c in enumerate(part.table.columns, 1)} for at in (20, 40)]
        instant = None if form.instant is None else 1_795_000_000_000_000
        digest = digest_of(form, row, parts)
        decimals = [{key: _as_decimal(value) for key, value in each.items()} for each in (row, *parts)]
        assert digest_of(form, decimals[0], decimals[1:]) == digest
        assert digest_of(form, row | {first: None}, parts) != digest
        frozen[name] = {
            "key": key_of(form, row),
            "columns": list(form.columns),
            "instant": form.instant,
            "part": part and [str(part.table.name), part.of, list(part.order), list(part.columns)],
            "final": str(form.final.compile(compile_kwargs={"literal_binds": True})),
            "digest": digest.hex(),
            "seal": seal_of(digest, instant).hex(),
        }
    golden.check("seals", frozen)


def _as_decimal(value: Any) -> Any:
    return Decimal(value) if isinstance(value, int) else value


@pytest.mark.both_databases
async def test_hashes_of_a_month(database: Database) -> None:
    """What both databases have at the end of the golden month: every seal, batch, head and root."""
    await month.make_month(database)
    frozen: dict[str, Any] = {}
    queries = {
        "seals": "SELECT kind, id, sha256 FROM seal",
        "batches": "SELECT tenant_id, period, link, events, root, head, entries FROM usage_batch",
        "heads": "SELECT tenant_id, period, links, events, head FROM usage_chain",
        "periods": "SELECT period, root FROM billing_period WHERE state = 'closed'",
    }
    async with database.reading() as session:
        for name, query in queries.items():
            rows = [[_plain(value) for value in row] for row in await session.execute(text(query))]
            frozen[name] = sorted(" ".join(map(str, row)) for row in rows)
    golden.check("month_hashes", frozen)


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return value.hex
    return bytes(value).hex() if isinstance(value, bytes | memoryview) else value


# ------------------------------------------------------------ exports


def test_exports() -> None:
    golden.check(
        "exports",
        {
            "manifest version": MANIFEST_VERSION,
            "formats": list(FORMATS),
            "datasets": {
                name: {
                    "columns": [f"{column.name}: {column.kind}" for column in dataset.columns],
                    "sums": list(dataset.sums),
                    "currency": dataset.currency,
                }
                for name, dataset in DATASETS.items()
            },
        },
    )
