"""Leases that ended know who may still pay for them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0052"
down_revision = "r0050"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")


def upgrade() -> None:
    op.add_column("ended_lease", sa.Column("payer", ID, nullable=True))
    somebody = sa.text("payer IS NOT NULL")
    op.create_index("ix_ended_lease_payer", "ended_lease", ["payer"], postgresql_where=somebody, sqlite_where=somebody)


def downgrade() -> None:
    op.drop_index("ix_ended_lease_payer", "ended_lease")
    op.drop_column("ended_lease", "payer")
