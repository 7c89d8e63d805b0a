"""The history of requests as the prompt cache saw them, and sums of missed tokens by cause."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0032"
down_revision = "r0031"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "cache_request",
        *(sa.Column(name, ID, nullable=False) for name in ("request_id", "tenant_id", "project_id")),
        sa.Column("at", COUNT, nullable=False),
        *(sa.Column(name, sa.LargeBinary(), nullable=False) for name in ("first_piece", "opening")),
        *(sa.Column(name, sa.LargeBinary(), nullable=False) for name in ("record", "diagnosis")),
        sa.PrimaryKeyConstraint("request_id", name="pk_cache_request"),
        sqlite_strict=True,
    )
    op.create_index("ix_cache_request_at", "cache_request", ["at"])
    op.create_index("ix_cache_request_project_id_opening_at", "cache_request", ["project_id", "opening", "at"])
    op.create_index("ix_cache_request_project_id_first_piece_at", "cache_request", ["project_id", "first_piece", "at"])
    op.create_table(
        "cache_prefix",
        sa.Column("project_id", ID, nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("parent", sa.LargeBinary(), nullable=False),
        sa.Column("start_token", sa.Integer(), nullable=False),
        sa.Column("hashes", sa.LargeBinary(), nullable=False),
        sa.Column("first_request", ID, nullable=False),
        sa.Column("first_at", COUNT, nullable=False),
        sa.Column("last_request", ID, nullable=False),
        sa.Column("last_at", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("project_id", "key", name="pk_cache_prefix"),
        sqlite_strict=True,
    )
    op.create_index("ix_cache_prefix_last_at", "cache_prefix", ["last_at"])
    op.create_index("ix_cache_prefix_project_id_parent_last_at", "cache_prefix", ["project_id", "parent", "last_at"])
    op.create_table(
        "cache_day",
        sa.Column("project_id", ID, nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("day", "model", "cause", "currency")),
        sa.Column("tenant_id", ID, nullable=False),
        *(sa.Column(name, COUNT, nullable=False) for name in ("requests", "tokens", "cost_pico")),
        sa.PrimaryKeyConstraint("project_id", "day", "model", "cause", "currency", name="pk_cache_day"),
        sqlite_strict=True,
    )
    op.create_table(
        "cache_history_day",
        sa.Column("project_id", ID, nullable=False),
        sa.Column("day", sa.Text(), nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        *(sa.Column(name, COUNT, nullable=False) for name in ("requests", "bytes", "left_out")),
        sa.PrimaryKeyConstraint("project_id", "day", name="pk_cache_history_day"),
        sqlite_strict=True,
    )


def downgrade() -> None:
    for table in ("cache_history_day", "cache_day", "cache_prefix", "cache_request"):
        op.drop_table(table)
