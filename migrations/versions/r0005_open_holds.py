"""Open holds in a table of their own that shrinks again: what ended without usage moves to `ended_hold`, what was
settled is in its usage event.

Each balance counts its tenant's holds, so that each can be shown to have ended once.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0005"
down_revision = "r0004"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

ASKED = ("request_id", "tenant_id", "project_id", "key_id", "model", "lane", "price_version", "amount_pico")
KEPT = ("request_id", "tenant_id", "amount_pico", "gateway", "admitted_at", "expires_at")


def column(name: str, kind: sa.types.TypeEngine[Any] | type[sa.Text]) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def upgrade() -> None:
    _balance()
    op.drop_index("ix_hold_open_expires_at", "hold")
    op.rename_table("hold", "hold_before")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE hold_before RENAME CONSTRAINT pk_hold TO pk_hold_before")
    op.create_table(
        "hold",
        *_columns(),
        sa.PrimaryKeyConstraint("request_id", name="pk_hold"),
        sa.CheckConstraint("amount_pico >= 0", name=op.f("ck_hold_not_negative")),
        sqlite_strict=True,
    )
    op.create_table(
        "ended_hold",
        *_columns(),
        column("state", sa.Text),
        column("ended_at", COUNT),
        sa.PrimaryKeyConstraint("request_id", name="pk_ended_hold"),
        sa.CheckConstraint("state IN ('released', 'expired')", name=op.f("ck_ended_hold_state")),
        sqlite_strict=True,
    )
    _carry_over()
    op.drop_table("hold_before")


def _balance() -> None:
    for name in ("holds", "budgets"):
        op.add_column("balance", sa.Column(name, COUNT, nullable=False, server_default=sa.text("0")))
    op.execute(
        "UPDATE balance SET holds = (SELECT count(*) FROM hold WHERE hold.tenant_id = balance.tenant_id) "
        "WHERE EXISTS (SELECT 1 FROM hold WHERE hold.tenant_id = balance.tenant_id)"
    )


def _columns() -> list[sa.Column[Any]]:
    return [
        *(column(name, ID) for name in ("request_id", "tenant_id")),
        column("amount_pico", COUNT),
        column("gateway", sa.Text),
        *(column(name, COUNT) for name in ("admitted_at", "expires_at")),
        sa.Column("budgets", sa.Text, nullable=False, server_default=sa.text("''")),
        column("request", sa.LargeBinary()),
    ]


def _carry_over() -> None:
    bind = op.get_bind()
    tables = {
        name: sa.table(name, *map(sa.column, (*KEPT, "request", *more)))
        for name, more in (("hold", ()), ("ended_hold", ("state", "ended_at")))
    }
    for row in bind.execute(sa.text("SELECT * FROM hold_before WHERE state <> 'settled'")).mappings().all():
        kept: dict[str, Any] = {name: row[name] for name in KEPT} | {"request": _request(row)}
        if row["state"] == "open":
            bind.execute(tables["hold"].insert(), kept)
        else:
            ended = {"state": row["state"], "ended_at": row["expires_at"]}
            bind.execute(tables["ended_hold"].insert(), kept | ended)


def _request(row: Any) -> bytes:
    """The request that made the hold, as it is packed from now on."""
    asked = [_bytes(row[name]) if name.endswith("_id") else row[name] for name in ASKED]
    lifetime = (row["expires_at"] - row["admitted_at"]) // 1_000_000
    return msgspec.msgpack.encode([*asked, lifetime, row["gateway"], bytes(row["terms"])])


def _bytes(identity: Any) -> bytes:
    return bytes(identity) if isinstance(identity, bytes) else uuid.UUID(str(identity)).bytes


def downgrade() -> None:
    raise RuntimeError("settled holds are gone: restore a backup")
