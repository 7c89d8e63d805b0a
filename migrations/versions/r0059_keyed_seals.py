"""Seals say by which key they were made, 0 for none; checkpoints cover those of other keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0059"
down_revision = "r0058"
branch_labels = None
depends_on = None

STRICT = {"sqlite_strict": True}
_COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("seal", sa.Column("key", sa.Integer(), nullable=False, server_default=sa.text("0")))
    op.create_table(
        "seal_checkpoint",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("at", _COUNT, nullable=False),
        sa.Column("others", _COUNT, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("witness", sa.Text(), nullable=False),
        sa.Column("mac", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_seal_checkpoint")),
        **STRICT,
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON seal_checkpoint "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
    else:
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER immutable_seal_checkpoint_{verb.lower()} BEFORE {verb} ON seal_checkpoint "
                "BEGIN SELECT RAISE(ABORT, 'seal_checkpoint is immutable'); END"
            )


def downgrade() -> None:
    op.drop_table("seal_checkpoint")
    op.drop_column("seal", "key")
