"""What became of each grant, how it may be used and until when; accounts for what expired and what is restricted.

What is left of the money there is stays with the grants that came last, since the earlier ones were used first.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0016"
down_revision = "r0015"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
PICO = sa.Numeric(38, 0).with_variant(sa.Integer(), "sqlite")
ACCOUNTS = (
    "'breakage', 'charges', 'clearing', 'credited', 'goodwill', 'invoiced', 'prepaid', 'promo', 'receivable', "
    "'restricted', 'revenue', 'rounding_carry', 'tax'"
)
LEFT = ("remaining", "used", "gone")


def column(name: str, kind: sa.types.TypeEngine[Any] | type[sa.Text]) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def upgrade() -> None:
    op.add_column("grant", sa.Column("priority", sa.Integer(), nullable=False, server_default=sa.text("100")))
    for name, kind in (("expires_at", COUNT), ("model", sa.Text()), ("project_id", ID)):
        op.add_column("grant", sa.Column(name, kind, nullable=True))
    op.create_table(
        "grant_balance",
        *(column(name, ID) for name in ("grant_id", "tenant_id")),
        *(column(name, PICO) for name in LEFT),
        sa.PrimaryKeyConstraint("grant_id", name="pk_grant_balance"),
        sa.ForeignKeyConstraint(["grant_id"], ["grant.id"], name="fk_grant_balance_grant_id_grant"),
        *(sa.CheckConstraint(f"{name} >= 0", name=op.f(f"ck_grant_balance_{name}_not_negative")) for name in LEFT),
        sqlite_strict=True,
    )
    op.create_index("ix_grant_balance_tenant_id", "grant_balance", ["tenant_id"])
    op.add_column("ledger_txn", sa.Column("memo", sa.Text(), nullable=False, server_default=sa.text("''")))
    _entries()
    _carry_over()


def _entries() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.add_column("ledger_entry", sa.Column("grant_id", ID, nullable=True))
        for side in ("debit", "credit"):
            op.drop_constraint(op.f(f"ck_ledger_entry_{side}"), "ledger_entry")
            op.create_check_constraint(op.f(f"ck_ledger_entry_{side}"), "ledger_entry", f"{side} IN ({ACCOUNTS})")
        return
    op.rename_table("ledger_entry", "ledger_entry_before")
    op.create_table(
        "ledger_entry",
        column("txn_id", ID),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        column("tenant_id", ID),
        *(column(name, sa.Text) for name in ("currency", "debit", "credit")),
        column("amount_pico", PICO),
        sa.Column("grant_id", ID, nullable=True),
        sa.PrimaryKeyConstraint("txn_id", "seq", name="pk_ledger_entry"),
        sa.ForeignKeyConstraint(["txn_id"], ["ledger_txn.id"], name="fk_ledger_entry_txn_id_ledger_txn"),
        sa.CheckConstraint("amount_pico > 0", name=op.f("ck_ledger_entry_positive")),
        sa.CheckConstraint("debit <> credit", name=op.f("ck_ledger_entry_two_accounts")),
        sa.CheckConstraint(f"debit IN ({ACCOUNTS})", name=op.f("ck_ledger_entry_debit")),
        sa.CheckConstraint(f"credit IN ({ACCOUNTS})", name=op.f("ck_ledger_entry_credit")),
        sqlite_strict=True,
    )
    names = "txn_id, seq, tenant_id, currency, debit, credit, amount_pico"
    op.execute(f"INSERT INTO ledger_entry ({names}) SELECT {names} FROM ledger_entry_before")  # noqa: S608  # columns
    op.drop_table("ledger_entry_before")
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER immutable_ledger_entry_{verb.lower()} BEFORE {verb} ON ledger_entry "
            "BEGIN SELECT RAISE(ABORT, 'ledger_entry is immutable'); END"
        )


def _carry_over() -> None:
    bind = op.get_bind()
    left: dict[tuple[Any, str], int] = {}
    for row in bind.execute(sa.text("SELECT tenant_id, credit, debit, promo, receivable FROM balance")):
        left[row.tenant_id, "promo"] = int(row.promo)
        left[row.tenant_id, "paid"] = int(row.credit) - int(row.debit) - int(row.promo) + int(row.receivable)
    rows = []
    query = 'SELECT id, tenant_id, kind, amount_pico FROM "grant" ORDER BY at DESC, id DESC'
    for row in bind.execute(sa.text(query)):
        key = (row.tenant_id, "promo" if row.kind == "promo" else "paid")
        remaining = min(int(row.amount_pico), left[key])
        left[key] -= remaining
        used = int(row.amount_pico) - remaining
        rows.append({"grant_id": row.id, "tenant_id": row.tenant_id, "remaining": remaining, "used": used, "gone": 0})
    if rows:
        bind.execute(sa.table("grant_balance", *map(sa.column, rows[0])).insert(), rows)


def downgrade() -> None:
    raise RuntimeError("what became of grants is not forgotten again: restore a backup")
