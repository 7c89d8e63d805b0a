"""Adapters of projects: which a project has of which served model, and what they change."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from storage.database.base import STRICT

revision = "r0072"
down_revision = "r0071"
branch_labels = None
depends_on = None

_ID = sa.LargeBinary(16).with_variant(postgresql.UUID(), "postgresql")
_COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "adapter",
        sa.Column("id", _ID, nullable=False),
        sa.Column("tenant_id", _ID, nullable=False),
        sa.Column("project_id", _ID, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("facts", sa.LargeBinary(), nullable=False),
        sa.Column("bytes", _COUNT, nullable=False),
        sa.Column("created_at", _COUNT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adapter")),
        sa.UniqueConstraint("project_id", "model", "name", name=op.f("uq_adapter_project_id_model_name")),
        **STRICT,
    )


def downgrade() -> None:
    op.drop_table("adapter")
