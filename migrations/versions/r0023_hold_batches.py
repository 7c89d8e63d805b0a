"""Open holds that were taken together share a row. Those that are open now get a row each."""

from __future__ import annotations

import uuid
from struct import Struct
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0023"
down_revision = "r0022"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
PICO = sa.Numeric(38, 0).with_variant(sa.Integer(), "sqlite")
ENTRY = Struct(">16sq")
ONE_OF_LIST = b"\x91"
"""What msgpack writes before the only element of an array."""


def column(name: str, kind: sa.types.TypeEngine[Any] | type[sa.Text | sa.Integer | sa.LargeBinary]) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def upgrade() -> None:
    op.create_table(
        "hold_batch",
        column("id", ID),
        column("tenant_id", ID),
        *(column(name, sa.Text) for name in ("gateway", "sources")),
        *(column(name, COUNT) for name in ("admitted_at", "expires_at")),
        *(column(name, ID) for name in ("first", "last")),
        column("open", sa.Integer),
        column("amount_pico", PICO),
        *(column(name, sa.LargeBinary) for name in ("entries", "requests")),
        sa.PrimaryKeyConstraint("id", name="pk_hold_batch"),
        sa.CheckConstraint("open > 0", name=op.f("ck_hold_batch_open")),
        sa.CheckConstraint("amount_pico >= 0", name=op.f("ck_hold_batch_not_negative")),
        sqlite_strict=True,
    )
    if op.get_bind().dialect.name == "postgresql":
        # neither grows smaller by compression: ids, and what a gateway packed
        op.execute("ALTER TABLE hold_batch ALTER entries SET STORAGE EXTERNAL, ALTER requests SET STORAGE EXTERNAL")
    _carry_over()
    op.drop_table("hold")


def _carry_over() -> None:
    bind = op.get_bind()
    rows = bind.execute(
        sa.text(
            "SELECT request_id, tenant_id, gateway, budgets, admitted_at, expires_at, amount_pico, request FROM hold"
        )
    )
    kept = sa.text(
        "INSERT INTO hold_batch (id, tenant_id, gateway, sources, admitted_at, expires_at, first, last, open, "
        "amount_pico, entries, requests) VALUES (:id, :tenant, :gateway, :sources, :admitted, :expires, :id, :id, 1, "
        ":amount, :entries, :requests)"
    )
    for identity, tenant, gateway, sources, admitted, expires, amount, request in rows.all():
        packed = identity.bytes if isinstance(identity, uuid.UUID) else identity
        bind.execute(
            kept,
            {
                "id": identity,
                "tenant": tenant,
                "gateway": gateway,
                "sources": sources,
                "admitted": admitted,
                "expires": expires,
                "amount": amount,
                "entries": ENTRY.pack(packed, amount),
                "requests": ONE_OF_LIST + request,
            },
        )


def downgrade() -> None:
    raise RuntimeError("holds do not part again: restore a backup")
