"""Which of a tenant's requests were refused."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0048"
down_revision = "r0047"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "refused_request",
        *(sa.Column(name, ID, nullable=False) for name in ("tenant_id", "request_id")),
        sa.Column("project_id", ID),
        sa.Column("at", COUNT, nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("key", "route", "code", "message")),
        sa.PrimaryKeyConstraint("tenant_id", "request_id", name="pk_refused_request"),
        sqlite_strict=True,
    )
    op.create_index("ix_refused_request_at", "refused_request", ["at"])


def downgrade() -> None:
    op.drop_table("refused_request")
