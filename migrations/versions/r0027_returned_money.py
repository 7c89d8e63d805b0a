"""What a period's rating gave back of what its usage was posted at: final with the invoice that says it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0027"
down_revision = "r0026"
branch_labels = None
depends_on = None

PICO = sa.Numeric(38, 0).with_variant(sa.Integer(), "sqlite")
FINAL = (
    "id", "kind", "seller", "tenant_id", "period", "currency", "series", "year", "n", "number", "issued", "due", "net",
    "tax", "gross", "prepaid", "payable", "usage_pico", "promo_pico", "charges_pico", "prepaid_pico", "returned_pico",
    "carry_in", "carry_out", "prepaid_carry_in", "prepaid_carry_out", "corrects", "content", "sha256", "drafted_at",
    "finalized_at",
)  # fmt: skip
"""The columns that never change once an invoice is finalized."""


def upgrade() -> None:
    op.add_column("invoice", sa.Column("returned_pico", PICO, nullable=False, server_default=sa.text("0")))
    if op.get_bind().dialect.name == "postgresql":
        same = " AND ".join(f"NEW.{name} IS NOT DISTINCT FROM OLD.{name}" for name in FINAL)
        op.execute(f"""
            CREATE OR REPLACE FUNCTION keep_invoice() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF OLD.state = 'draft' THEN
                    IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
                    RETURN NEW;
                END IF;
                IF TG_OP = 'UPDATE' AND NEW.state <> 'draft' AND {same} THEN RETURN NEW; END IF;
                RAISE EXCEPTION 'invoice % is immutable', OLD.number;
            END $$
        """)
        return
    same = " AND ".join(f"NEW.{name} IS OLD.{name}" for name in FINAL)
    op.execute("DROP TRIGGER immutable_invoice_update")
    op.execute(
        "CREATE TRIGGER immutable_invoice_update BEFORE UPDATE ON invoice "
        f"WHEN OLD.state <> 'draft' AND NOT (NEW.state <> 'draft' AND {same}) "
        "BEGIN SELECT RAISE(ABORT, 'invoice is immutable'); END"
    )


def downgrade() -> None:
    raise RuntimeError("what was given back is not taken back: restore a backup")
