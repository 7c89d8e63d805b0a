"""What operators set for the whole platform, append-only: each row says who set what, when and why."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0028"
down_revision = "r0027"
branch_labels = None
depends_on = None

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "platform_setting",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("name", "value", "actor", "via", "reason")),
        sa.Column("at", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_platform_setting"),
        sqlite_strict=True,
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON platform_setting "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER immutable_platform_setting_{verb.lower()} BEFORE {verb} ON platform_setting "
            "BEGIN SELECT RAISE(ABORT, 'platform_setting is immutable'); END"
        )


def downgrade() -> None:
    raise RuntimeError("what operators set is not forgotten: restore a backup")
