"""What a tenant has for one model or project only, and what open holds count on of it."""

from __future__ import annotations

from alembic import op

revision = "r0018"
down_revision = "r0017"
branch_labels = None
depends_on = None

COVERED = "held >= 0 AND held <= remaining"
NOT_NEGATIVE = "restricted >= 0"


def upgrade() -> None:
    number = "NUMERIC(38, 0)" if op.get_bind().dialect.name == "postgresql" else "INTEGER"
    for table, column, name, condition in (
        ("grant_balance", "held", "ck_grant_balance_covered", COVERED),
        ("balance", "restricted", "ck_balance_restricted_not_negative", NOT_NEGATIVE),
    ):
        check = f"CONSTRAINT {name} CHECK ({condition})"
        op.execute(f"ALTER TABLE {table} ADD COLUMN {column} {number} DEFAULT 0 NOT NULL {check}")
    op.execute(
        """
        UPDATE balance SET restricted = coalesce((
            SELECT sum(b.remaining) FROM grant_balance b JOIN "grant" g ON g.id = b.grant_id
            WHERE b.tenant_id = balance.tenant_id AND (g.model IS NOT NULL OR g.project_id IS NOT NULL)
        ), 0)
        """
    )
