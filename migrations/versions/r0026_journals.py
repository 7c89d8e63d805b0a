"""Which journals may know a gateway's requests, which of them are lost, and in which folder a gateway's spool is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0026"
down_revision = "r0025"
branch_labels = None
depends_on = None

STRICT = {"sqlite_strict": True}


def upgrade() -> None:
    op.add_column("gateway_epoch", sa.Column("folder", sa.Text(), nullable=False, server_default=sa.text("''")))
    op.add_column("gateway_epoch", sa.Column("holds_ended_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite")))
    # Holds of before say their gateway's name, and no epoch: they end with their time, as they did.
    op.execute("UPDATE gateway_epoch SET holds_ended_at = seen_at")
    count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "replica_journal",
        sa.Column("journal", sa.Text(), nullable=False),
        sa.Column("replica", sa.Text(), nullable=False),
        sa.Column("since", count, nullable=False),
        sa.Column("seen_at", count, nullable=False),
        sa.PrimaryKeyConstraint("journal", name=op.f("pk_replica_journal")),
        **STRICT,
    )
    op.create_table(
        "journal_of_epoch",
        sa.Column("epoch", sa.Text(), nullable=False),
        sa.Column("journal", sa.Text(), nullable=False),
        sa.Column("cleared_at", count, nullable=True),
        sa.PrimaryKeyConstraint("epoch", "journal", name=op.f("pk_journal_of_epoch")),
        **STRICT,
    )
    op.create_table(
        "journal_loss",
        sa.Column("journal", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("replica",)),
        *(sa.Column(name, count, nullable=False) for name in ("since", "at")),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("author", "reason")),
        *(sa.Column(name, count, nullable=False) for name in ("events", "missing", "holds")),
        sa.Column("held_pico", sa.Numeric(38, 0).with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.PrimaryKeyConstraint("journal", name=op.f("pk_journal_loss")),
        sa.CheckConstraint("reason <> ''", name=op.f("ck_journal_loss_reason")),
        **STRICT,
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON journal_loss "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
    else:
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER immutable_journal_loss_{verb.lower()} BEFORE {verb} ON journal_loss "
                "BEGIN SELECT RAISE(ABORT, 'journal_loss is immutable'); END"
            )


def downgrade() -> None:
    raise RuntimeError("revisions are not taken back: restore a backup")
