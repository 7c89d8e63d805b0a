"""Issued documents as XML of EN 16931, kept as they were sent."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0060"
down_revision = "r0059"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TABLE = "einvoice"


def upgrade() -> None:
    op.create_table(
        TABLE,
        sa.Column("invoice_id", ID, nullable=False),
        sa.Column("syntax", sa.Text(), nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("profile", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("at", COUNT, nullable=False),
        sa.CheckConstraint("syntax IN ('ubl', 'cii')", name=op.f("ck_einvoice_syntax")),
        sa.PrimaryKeyConstraint("invoice_id", "syntax", name=op.f("pk_einvoice")),
        sa.ForeignKeyConstraint(["invoice_id"], ["invoice.id"], name=op.f("fk_einvoice_invoice_id_invoice")),
        sqlite_strict=True,
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON {TABLE} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER immutable_{TABLE}_{verb.lower()} BEFORE {verb} ON {TABLE} "
            f"BEGIN SELECT RAISE(ABORT, '{TABLE} is immutable'); END"
        )


def downgrade() -> None:
    op.drop_table(TABLE)
