"""Seals of what never changes beside usage and documents' texts. What is there is sealed as it is now.

Everything is spelled out here and imported from nowhere, so that this step stays what it was.
"""

from __future__ import annotations

from decimal import Decimal
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0022"
down_revision = "r0021"
branch_labels = None
depends_on = None

_PRICES = ("meter", "lane", "context_from", "price_micro")
FORMS: tuple[tuple[str, tuple[str, ...], tuple[str, ...], str | None], ...] = (
    ("grant", ("id",), (
        "id", "tenant_id", "amount_pico", "currency", "kind", "reason", "priority", "expires_at", "model", "project_id",
    ), "at"),
    ("ledger_txn", ("id",), ("id", "tenant_id", "kind", "period", "memo"), "posted_at"),
    ("price_version", ("id",), ("id", "model", "currency", "effective_at", "sha256"), "created_at"),
    ("price_sheet", ("id",), (
        "id", "book", "model", "kind", "effective_at", "effective_until", "author", "reason", "forced", "sha256",
    ), "created_at"),
    ("price_book", ("id",), ("id", "name", "currency", "base", "tenant_id"), "created_at"),
    ("price_interval", ("sheet",), ("sheet", "book", "model", "effective_at", "effective_until"), None),
    ("price_change", ("id",), (
        "id", "sheet", "action", "actor", "reason", "before_sha256", "after_sha256", "via",
    ), "at"),
    ("price_resolution", ("sheet", "base_sheet"), ("sheet", "base_sheet", "version"), None),
    ("contract_terms", ("id",), ("id", "tenant_id", "from_period", "body", "author", "reason"), "created_at"),
    ("storage_event", ("tenant_id", "period", "hour", "project_id", "model"), (
        "tenant_id", "period", "hour", "project_id", "model", "price_version", "token_seconds", "cost_pico",
    ), None),
    ("invoice_payment", ("id",), (
        "id", "invoice_id", "tenant_id", "amount", "currency", "usage_pico", "reference",
    ), "at"),
    ("invoice", ("id",), (
        "id", "kind", "seller", "tenant_id", "period", "currency", "series", "year", "n", "number", "issued", "due",
        "net", "tax", "gross", "prepaid", "payable", "usage_pico", "promo_pico", "charges_pico", "prepaid_pico",
        "carry_in", "carry_out", "prepaid_carry_in", "prepaid_carry_out", "corrects", "content", "sha256", "drafted_at",
    ), "finalized_at"),
    ("billing_period", ("period",), ("period", "starts_at", "ends_at", "root"), "closed_at"),
)  # fmt: skip
"""Tables, their keys, what their seals are made of, and the instant that comes last."""
PARTS = {
    "ledger_txn": ("ledger_entry", "txn_id", "seq", (
        "seq", "tenant_id", "currency", "debit", "credit", "amount_pico", "grant_id",
    )),
    "price_version": ("price", "version", "meter, lane, context_from", _PRICES),
    "price_sheet": ("price_row", "sheet", "meter, lane, context_from", _PRICES),
}  # fmt: skip
"""What rows consist of: table, key of the row, order, columns."""
FINAL = ("invoice", "billing_period")
"""Tables whose rows are sealed once they are final, as their state says."""
_CHUNK = 5000


def upgrade() -> None:
    op.create_table(
        "seal",
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("kind", "id")),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "id", name="pk_seal"),
        sqlite_strict=True,
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON seal "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
    else:
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER immutable_seal_{verb.lower()} BEFORE {verb} ON seal "
                "BEGIN SELECT RAISE(ABORT, 'seal is immutable'); END"
            )
    for form in FORMS:
        _seal(*form)


def _seal(name: str, key: tuple[str, ...], columns: tuple[str, ...], instant: str | None) -> None:
    bind = op.get_bind()
    table = _table(name, {*columns, *([instant] if instant else []), *(["state"] if name in FINAL else [])})
    query = sa.select(table)
    if name == "invoice":
        query = query.where(table.c.state != "draft")
    elif name == "billing_period":
        query = query.where(table.c.state == "closed")
    found = bind.execute(query).mappings()
    seal = sa.table("seal", *map(sa.column, ("kind", "id", "sha256")))
    while rows := found.fetchmany(_CHUNK):
        sealed = []
        for row in rows:
            parts = _parts(bind, name, row[key[0]])
            digest = sha256(msgspec.msgpack.encode([name, [_plain(row[c]) for c in columns], parts])).digest()
            at = b"" if instant is None else row[instant].to_bytes(8, "big")
            identity = "/".join(str(row[c]) for c in key)
            sealed.append({"kind": name, "id": identity, "sha256": sha256(digest + at).digest()})
        bind.execute(seal.insert(), sealed)


def _parts(bind: Any, name: str, key: Any) -> list[list[str | bytes | None]]:
    if name not in PARTS:
        return []
    child, of, order, columns = PARTS[name]
    table = _table(child, {of, *columns})
    query = sa.select(*(table.c[column] for column in columns)).where(table.c[of] == key).order_by(sa.text(order))
    return [[_plain(value) for value in row] for row in bind.execute(query)]


_IDS = {"tenant_id", "project_id", "invoice_id", "grant_id", "txn_id"}


class _Id(sa.types.TypeDecorator[UUID]):
    impl = sa.LargeBinary(16)
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(postgresql.UUID() if dialect.name == "postgresql" else sa.LargeBinary(16))

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        return value if value is None or dialect.name == "postgresql" else value.bytes

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> UUID | None:
        return value if value is None or dialect.name == "postgresql" else UUID(bytes=value)


def _table(name: str, columns: set[str]) -> sa.TableClause:
    numbered = name.startswith("price") or name == "contract_terms"
    ids = _IDS | (set() if numbered else {"id", *(["corrects"] if name == "invoice" else [])})
    return sa.table(name, *(sa.column(c, _Id() if c in ids else None) for c in sorted(columns)))


def _plain(value: Any) -> str | bytes | None:
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, int | Decimal):
        return str(int(value))
    return value if value is None or isinstance(value, bytes) else str(value)


def downgrade() -> None:
    raise RuntimeError("seals are not broken: restore a backup")
