"""Export jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0008"
down_revision = "r0007"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "export_job",
        *(sa.Column(name, ID, nullable=False) for name in ("id", "tenant_id", "key_id")),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("dataset", "period", "format", "state")),
        *(sa.Column(name, COUNT, nullable=False) for name in ("rows", "attempts")),
        *(sa.Column(name, sa.Text(), nullable=True) for name in ("error", "manifest")),
        sa.Column("created_at", COUNT, nullable=False),
        *(sa.Column(name, COUNT, nullable=True) for name in ("started_at", "finished_at")),
        sa.Column("leased_until", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_export_job"),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed', 'expired')", name=op.f("ck_export_job_state")
        ),
        sa.CheckConstraint(
            "(state IN ('done', 'expired')) = (manifest IS NOT NULL)", name=op.f("ck_export_job_manifest")
        ),
        sqlite_strict=True,
    )
    op.create_index("ix_export_job_tenant_id_id", "export_job", ["tenant_id", "id"])
    unfinished = sa.text("state IN ('queued', 'running')")
    op.create_index(
        "ix_export_job_unfinished", "export_job", ["id"], sqlite_where=unfinished, postgresql_where=unfinished
    )


def downgrade() -> None:
    op.drop_table("export_job")
