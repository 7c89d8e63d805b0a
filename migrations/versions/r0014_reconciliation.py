"""What reconciliations found, kept so that it can be published."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0014"
down_revision = "r0013"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
PICO = sa.Numeric(38, 0).with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "recon_run",
        sa.Column("id", ID, nullable=False),
        sa.Column("period", sa.Text(), nullable=False),
        *(
            sa.Column(name, COUNT, nullable=False)
            for name in ("at", "events", "lost", "doubled", "unconfirmed", "late")
        ),
        sa.Column("drift_pico", PICO, nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_recon_run"),
        sqlite_strict=True,
    )
    op.create_index("ix_recon_run_period_at", "recon_run", ["period", "at"])
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON recon_run "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER immutable_recon_run_{verb.lower()} BEFORE {verb} ON recon_run "
            "BEGIN SELECT RAISE(ABORT, 'recon_run is immutable'); END"
        )


def downgrade() -> None:
    raise RuntimeError("what was found is not forgotten: restore a backup")
