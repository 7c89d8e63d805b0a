"""Room that is kept for files whose content is on its way."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from storage.database.base import STRICT

revision = "r0069"
down_revision = "r0068"
branch_labels = None
depends_on = None

_ID = sa.LargeBinary(16).with_variant(postgresql.UUID(), "postgresql")
_COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "file_reservation",
        sa.Column("id", _ID, nullable=False),
        sa.Column("tenant_id", _ID, nullable=False),
        sa.Column("project_id", _ID, nullable=False),
        sa.Column("bytes", _COUNT, nullable=False),
        sa.Column("until", _COUNT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_file_reservation")),
        **STRICT,
    )
    op.create_index(op.f("ix_file_reservation_project_id"), "file_reservation", ["project_id"])
    op.create_index(op.f("ix_file_reservation_until"), "file_reservation", ["until"])


def downgrade() -> None:
    op.drop_table("file_reservation")
