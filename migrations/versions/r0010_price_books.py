"""Price books: sheets that people draft and approve, when they apply, and the log of every change.

What was there becomes the sheets of a base book for each currency, the one of the first price being `base`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0010"
down_revision = "r0009"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

IMMUTABLE = ("price_book", "price_sheet", "price_row", "price_change", "price_resolution")
SQLITE_CLOCK = (
    "CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000"
)
MIGRATION = "turnpike migrate"


def column(name: str, kind: Any, *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=null)


def key(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Integer(), autoincrement=False, nullable=False)


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    _books()
    _sheets()
    _intervals(postgres)
    _log()
    _carry_over(postgres)
    for table in IMMUTABLE:
        _make_immutable(table, postgres)
    _keep_the_past(postgres)


def _books() -> None:
    op.create_table(
        "price_book",
        column("id", sa.Integer()),
        column("name", sa.Text),
        column("currency", sa.Text),
        column("base", sa.Integer(), null=True),
        column("tenant_id", ID, null=True),
        column("created_at", COUNT),
        sa.PrimaryKeyConstraint("id", name="pk_price_book"),
        sa.ForeignKeyConstraint(["base"], ["price_book.id"], name="fk_price_book_base_price_book"),
        sa.UniqueConstraint("name", name="uq_price_book_name"),
        sa.UniqueConstraint("tenant_id", name="uq_price_book_tenant_id"),
        sa.CheckConstraint("(base IS NULL) = (tenant_id IS NULL)", name=op.f("ck_price_book_tenants_have_a_base")),
        sqlite_strict=True,
    )


def _sheets() -> None:
    op.create_table(
        "price_sheet",
        column("id", sa.Integer()),
        column("book", sa.Integer()),
        *(column(name, sa.Text) for name in ("model", "kind")),
        *(column(name, COUNT, null=True) for name in ("effective_at", "effective_until")),
        *(column(name, sa.Text) for name in ("author", "reason")),
        column("forced", sa.Text, null=True),
        column("created_at", COUNT),
        column("sha256", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_price_sheet"),
        sa.ForeignKeyConstraint(["book"], ["price_book.id"], name="fk_price_sheet_book_price_book"),
        sa.CheckConstraint("kind IN ('whole', 'overrides')", name=op.f("ck_price_sheet_kind")),
        sa.CheckConstraint("effective_until > effective_at", name=op.f("ck_price_sheet_interval")),
        sqlite_strict=True,
    )
    op.create_index("ix_price_sheet_book_model", "price_sheet", ["book", "model"])
    op.create_table(
        "price_row",
        key("sheet"),
        *(column(name, sa.Text) for name in ("meter", "lane")),
        sa.Column("context_from", COUNT, autoincrement=False, nullable=False),
        column("price_micro", COUNT),
        sa.PrimaryKeyConstraint("sheet", "meter", "lane", "context_from", name="pk_price_row"),
        sa.ForeignKeyConstraint(["sheet"], ["price_sheet.id"], name="fk_price_row_sheet_price_sheet"),
        sa.CheckConstraint("price_micro >= 0", name=op.f("ck_price_row_not_negative")),
        sa.CheckConstraint("context_from >= 0", name=op.f("ck_price_row_context_from")),
        sqlite_strict=True,
    )
    op.create_table(
        "price_resolution",
        *map(key, ("sheet", "base_sheet")),
        column("version", sa.Integer()),
        sa.PrimaryKeyConstraint("sheet", "base_sheet", name="pk_price_resolution"),
        sa.ForeignKeyConstraint(["sheet"], ["price_sheet.id"], name="fk_price_resolution_sheet_price_sheet"),
        sa.ForeignKeyConstraint(["version"], ["price_version.id"], name="fk_price_resolution_version_price_version"),
        sqlite_strict=True,
    )


def _intervals(postgres: bool) -> None:
    op.create_table(
        "price_interval",
        key("sheet"),
        column("book", sa.Integer()),
        column("model", sa.Text),
        column("effective_at", COUNT),
        column("effective_until", COUNT, null=True),
        sa.PrimaryKeyConstraint("sheet", name="pk_price_interval"),
        sa.ForeignKeyConstraint(["sheet"], ["price_sheet.id"], name="fk_price_interval_sheet_price_sheet"),
        sa.ForeignKeyConstraint(["book"], ["price_book.id"], name="fk_price_interval_book_price_book"),
        sa.CheckConstraint("effective_until > effective_at", name=op.f("ck_price_interval_interval")),
        sqlite_strict=True,
    )
    standing = sa.text("effective_until IS NULL")
    op.create_index(
        "ix_price_interval_standing",
        "price_interval",
        ["book", "model", "effective_at"],
        unique=True,
        sqlite_where=standing,
        postgresql_where=standing,
    )
    if postgres:
        # Ranges need no extension, which equality of numbers and text would: a range of one value overlaps its equal.
        op.execute(
            "ALTER TABLE price_interval ADD CONSTRAINT ex_price_interval_temporary EXCLUDE USING gist ("
            "int4range(book, book, '[]') WITH &&, "
            "numrange(hashtextextended(model, 0), hashtextextended(model, 0), '[]') WITH &&, "
            "int8range(effective_at, effective_until) WITH &&) WHERE (effective_until IS NOT NULL)"
        )


def _log() -> None:
    op.create_table(
        "price_change",
        column("id", sa.Integer()),
        column("sheet", sa.Integer()),
        *(column(name, sa.Text) for name in ("action", "actor", "reason")),
        column("at", COUNT),
        *(column(name, sa.Text) for name in ("before_sha256", "after_sha256")),
        sa.PrimaryKeyConstraint("id", name="pk_price_change"),
        sa.ForeignKeyConstraint(["sheet"], ["price_sheet.id"], name="fk_price_change_sheet_price_sheet"),
        sa.CheckConstraint("action IN ('draft', 'approve', 'set', 'withdraw')", name=op.f("ck_price_change_action")),
        sa.UniqueConstraint("sheet", "action", name="uq_price_change_sheet_action"),
        sqlite_strict=True,
    )


def _carry_over(postgres: bool) -> None:
    bind = op.get_bind()
    versions = bind.execute(sa.text("SELECT * FROM price_version ORDER BY id")).all()
    rows: dict[int, list[Any]] = {version.id: [] for version in versions}
    for row in bind.execute(sa.text("SELECT * FROM price ORDER BY version, meter, lane, context_from")):
        rows[row.version].append(row)
    books: dict[str, int] = {}
    made: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("price_book", "price_sheet", "price_row", "price_interval", "price_change",
                              "price_resolution")
    }  # fmt: skip
    before: dict[tuple[int, str], str] = {}
    standing: dict[tuple[int, str, int], dict[str, Any]] = {}
    for version in versions:
        if version.currency not in books:
            books[version.currency] = len(books) + 1
            name = f"base-{version.currency}" if made["price_book"] else "base"
            made["price_book"].append(
                {"id": books[version.currency], "name": name, "currency": version.currency,
                 "created_at": version.created_at}
            )  # fmt: skip
        book, model, at = books[version.currency], version.model, version.effective_at
        cells = sorted([row.meter, row.lane, row.context_from, row.price_micro] for row in rows[version.id])
        digest = hashlib.sha256(json.dumps(cells, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()
        made["price_sheet"].append(
            {"id": version.id, "book": book, "model": model, "kind": "whole", "effective_at": at, "author": MIGRATION,
             "reason": "carried over", "created_at": version.created_at, "sha256": digest}
        )  # fmt: skip
        made["price_row"] += [
            {"sheet": version.id, "meter": row.meter, "lane": row.lane, "context_from": row.context_from,
             "price_micro": row.price_micro}
            for row in rows[version.id]
        ]  # fmt: skip
        # of several that began together, the last one made applied
        standing[book, model, at] = {"sheet": version.id, "book": book, "model": model, "effective_at": at}
        made["price_change"].append(
            {"sheet": version.id, "action": "set", "actor": MIGRATION, "reason": "carried over",
             "at": version.created_at, "before_sha256": before.get((book, model), ""), "after_sha256": digest}
        )  # fmt: skip
        before[book, model] = digest
        made["price_resolution"].append({"sheet": version.id, "base_sheet": 0, "version": version.id})
    made["price_interval"] = list(standing.values())
    for name, filled in made.items():
        if filled:
            bind.execute(sa.table(name, *map(sa.column, filled[0])).insert(), filled)
    if postgres:
        for name in ("price_book", "price_sheet"):
            op.execute(
                f"SELECT setval('{name}_id_seq', (SELECT max(id) FROM {name})) "  # noqa: S608  # of our tables
                f"WHERE EXISTS (SELECT FROM {name})"
            )


def _make_immutable(table: str, postgres: bool) -> None:
    if postgres:
        op.execute(
            f'CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON "{table}" '
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f'CREATE TRIGGER immutable_{table}_{verb.lower()} BEFORE {verb} ON "{table}" '
            f"BEGIN SELECT RAISE(ABORT, '{table} is immutable'); END"
        )


def _keep_the_past(postgres: bool) -> None:
    """An interval never changes, and goes only before it has begun."""
    if postgres:
        op.execute(
            "CREATE TRIGGER immutable BEFORE UPDATE OR TRUNCATE ON price_interval "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        op.execute(
            "CREATE TRIGGER immutable_once_begun BEFORE DELETE ON price_interval FOR EACH ROW "
            "WHEN (OLD.effective_at <= extract(epoch FROM clock_timestamp()) * 1000000) "
            "EXECUTE FUNCTION refuse_change()"
        )
        return
    refuse = "BEGIN SELECT RAISE(ABORT, 'price_interval is immutable'); END"
    op.execute(f"CREATE TRIGGER immutable_price_interval_update BEFORE UPDATE ON price_interval {refuse}")
    op.execute(
        "CREATE TRIGGER immutable_price_interval_delete BEFORE DELETE ON price_interval "
        f"WHEN OLD.effective_at <= {SQLITE_CLOCK} {refuse}"
    )


def downgrade() -> None:
    raise RuntimeError("who approved which price cannot be said in the earlier schema: restore a backup")
