"""Leases: what the prompt cache promised to whom and until when, and for a day what became of it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "r0030"
down_revision = "r0029"
branch_labels = None
depends_on = None

STRICT = {"sqlite_strict": True}
_ID = sa.UUID().with_variant(sa.LargeBinary(16), "sqlite")
_COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _columns(kind: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name in names]


def _prefix() -> list[sa.Column[Any]]:
    return [
        *_columns(_ID, "id", "tenant_id", "project_id"),
        *_columns(sa.LargeBinary(), "prefix_key"),
        *_columns(sa.Text(), "model"),
        *_columns(_COUNT, "tokens"),
    ]


def upgrade() -> None:
    op.create_table(
        "lease",
        *_prefix(),
        *_columns(_COUNT, "new_tokens"),
        *_columns(sa.Text(), "class"),
        *_columns(_COUNT, "created_at", "written_at", "expires_at"),
        sa.Column("read_at", _COUNT, nullable=True),
        *_columns(_COUNT, "reads"),
        *_columns(_ID, "writer"),
        *_columns(sa.Integer(), "billed"),
        *_columns(sa.LargeBinary(), "blocks"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_lease")),
        **STRICT,
    )
    op.create_index(op.f("ix_lease_project_id_prefix_key"), "lease", ["project_id", "prefix_key"], unique=True)
    op.create_index(op.f("ix_lease_project_id_id"), "lease", ["project_id", "id"])
    op.create_index(op.f("ix_lease_expires_at"), "lease", ["expires_at"])
    op.create_index(op.f("ix_lease_writer"), "lease", ["writer"])
    op.create_table(
        "ended_lease",
        *_prefix(),
        *_columns(sa.Text(), "class"),
        *_columns(_COUNT, "created_at", "ended_at"),
        *_columns(sa.Text(), "cause"),
        *_columns(sa.LargeBinary(), "blocks"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ended_lease")),
        **STRICT,
    )
    op.create_index(op.f("ix_ended_lease_project_id_prefix_key"), "ended_lease", ["project_id", "prefix_key"])
    op.create_index(op.f("ix_ended_lease_ended_at"), "ended_lease", ["ended_at"])
    op.create_table(
        "lease_tag",
        *_columns(_ID, "lease_id"),
        *_columns(sa.Text(), "tag"),
        *_columns(_ID, "project_id"),
        sa.PrimaryKeyConstraint("lease_id", "tag", name=op.f("pk_lease_tag")),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["lease.id"], name=op.f("fk_lease_tag_lease_id_lease"), ondelete="CASCADE"
        ),
        **STRICT,
    )
    op.create_index(op.f("ix_lease_tag_project_id_tag"), "lease_tag", ["project_id", "tag"])
    op.create_table(
        "lease_blocks",
        *_columns(_ID, "lease_id"),
        *_columns(sa.Text(), "scope"),
        *_columns(sa.LargeBinary(), "keys"),
        sa.PrimaryKeyConstraint("lease_id", name=op.f("pk_lease_blocks")),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["lease.id"], name=op.f("fk_lease_blocks_lease_id_lease"), ondelete="CASCADE"
        ),
        **STRICT,
    )
    op.create_table(
        "lease_storage_hour",
        *_columns(_COUNT, "hour", "recorded_at"),
        sa.PrimaryKeyConstraint("hour", name=op.f("pk_lease_storage_hour")),
        **STRICT,
    )


def downgrade() -> None:
    for table in ("lease_storage_hour", "lease_blocks", "lease_tag", "ended_lease", "lease"):
        op.drop_table(table)
