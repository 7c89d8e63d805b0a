"""Leases that ended know who may still pay for them; a lease has blocks in each scope and at each model digest."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0051"
down_revision = "r0050"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")


def upgrade() -> None:
    op.add_column("ended_lease", sa.Column("payer", ID, nullable=True))
    somebody = sa.text("payer IS NOT NULL")
    op.create_index("ix_ended_lease_payer", "ended_lease", ["payer"], postgresql_where=somebody, sqlite_where=somebody)
    if op.get_bind().dialect.name == "postgresql":
        op.add_column("lease_blocks", sa.Column("digest", sa.Text(), nullable=False, server_default=""))
        op.alter_column("lease_blocks", "digest", server_default=None)
        op.drop_constraint("pk_lease_blocks", "lease_blocks")
        op.create_primary_key("pk_lease_blocks", "lease_blocks", ["lease_id", "scope", "digest"])
    else:
        op.rename_table("lease_blocks", "lease_blocks_before")
        _create("lease_id", "scope", "digest")
        op.execute("INSERT INTO lease_blocks SELECT lease_id, scope, '', keys FROM lease_blocks_before")
        op.drop_table("lease_blocks_before")


def downgrade() -> None:
    op.drop_index("ix_ended_lease_payer", "ended_lease")
    op.drop_column("ended_lease", "payer")
    op.rename_table("lease_blocks", "lease_blocks_after")
    if op.get_bind().dialect.name == "postgresql":  # names of constraints belong to the schema
        op.drop_constraint("pk_lease_blocks", "lease_blocks_after")
        op.drop_constraint("fk_lease_blocks_lease_id_lease", "lease_blocks_after")
    _create("lease_id")
    op.execute(
        "INSERT INTO lease_blocks SELECT lease_id, scope, keys FROM lease_blocks_after AS one WHERE NOT EXISTS "
        "(SELECT 1 FROM lease_blocks_after AS other WHERE other.lease_id = one.lease_id AND "
        "(other.scope, other.digest) < (one.scope, one.digest))"
    )
    op.drop_table("lease_blocks_after")


def _create(*primary: str) -> None:
    op.create_table(
        "lease_blocks",
        sa.Column("lease_id", ID, nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        *([sa.Column("digest", sa.Text(), nullable=False)] if "digest" in primary else []),
        sa.Column("keys", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint(*primary, name="pk_lease_blocks"),
        sa.ForeignKeyConstraint(["lease_id"], ["lease.id"], name="fk_lease_blocks_lease_id_lease", ondelete="CASCADE"),
        sqlite_strict=True,
    )
