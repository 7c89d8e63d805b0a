"""Random data keys of the prompt cache, one for each project and generation, which can be destroyed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0031"
down_revision = "r0030"
branch_labels = None
depends_on = None

STRICT = {"sqlite_strict": True}
_ID = sa.UUID().with_variant(sa.LargeBinary(16), "sqlite")
_COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "cache_scope_key",
        sa.Column("project_id", _ID, nullable=False),
        sa.Column("generation", _COUNT, autoincrement=False, nullable=False),
        sa.Column("tenant_id", _ID, nullable=False),
        sa.Column("wrapped_key", sa.LargeBinary(), nullable=True),
        sa.Column("retention_s", _COUNT, nullable=True),
        sa.Column("limits", sa.Text(), nullable=True),
        sa.Column("created_at", _COUNT, nullable=False),
        sa.Column("changed_at", _COUNT, nullable=False),
        sa.Column("destroyed_at", _COUNT, nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("project_id", "generation", name=op.f("pk_cache_scope_key")),
        **STRICT,
    )
    op.create_index(op.f("ix_cache_scope_key_changed_at"), "cache_scope_key", ["changed_at"])


def downgrade() -> None:
    op.drop_table("cache_scope_key")
