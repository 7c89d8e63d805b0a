"""Rate limits of projects and keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0036"
down_revision = "r0035"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
LIMITS = ("requests_per_minute", "input_tokens_per_minute", "output_tokens_per_minute", "concurrent_requests")


def upgrade() -> None:
    op.create_table(
        "rate_limit",
        *(sa.Column(name, ID, nullable=False) for name in ("subject_id", "tenant_id", "project_id")),
        sa.Column("key_id", ID),
        *(sa.Column(name, COUNT) for name in LIMITS),
        sa.Column("changed_at", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("subject_id", name="pk_rate_limit"),
        *(
            sa.ForeignKeyConstraint([f"{table}_id"], [f"{name}.id"], name=f"fk_rate_limit_{table}_id_{name}")
            for table, name in (("tenant", "tenant"), ("project", "project"), ("key", "api_key"))
        ),
        sqlite_strict=True,
    )
    op.create_index("ix_rate_limit_tenant_id", "rate_limit", ["tenant_id"])
    op.create_index("ix_rate_limit_project_id", "rate_limit", ["project_id"])
