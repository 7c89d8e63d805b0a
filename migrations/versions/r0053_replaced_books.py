"""A tenant's price book can be replaced: the newest is in force."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0053"
down_revision = "r0052"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TABLE = "price_book"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.drop_constraint("uq_price_book_tenant_id", TABLE)
    else:
        _rebuild()
    op.create_index("ix_price_book_tenant_id", TABLE, ["tenant_id"])


def _rebuild() -> None:
    """Make the table anew without the constraint. Other tables refer to it: their references are checked at the end of
    the transaction, when its rows are there again."""
    op.execute("PRAGMA defer_foreign_keys = ON")
    op.execute(f"CREATE TABLE price_book_before AS SELECT * FROM {TABLE}")  # noqa: S608  # a constant
    op.drop_table(TABLE)
    op.create_table(
        TABLE,
        sa.Column("id", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("name", "currency")),
        sa.Column("base", sa.Integer(), nullable=True),
        sa.Column("tenant_id", ID, nullable=True),
        sa.Column("created_at", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_price_book"),
        sa.ForeignKeyConstraint(["base"], ["price_book.id"], name="fk_price_book_base_price_book"),
        sa.UniqueConstraint("name", name="uq_price_book_name"),
        sa.CheckConstraint("(base IS NULL) = (tenant_id IS NULL)", name=op.f("ck_price_book_tenants_have_a_base")),
        sqlite_strict=True,
    )
    op.execute(f"INSERT INTO {TABLE} SELECT * FROM price_book_before")  # noqa: S608  # a constant
    op.drop_table("price_book_before")
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER immutable_{TABLE}_{verb.lower()} BEFORE {verb} ON {TABLE} "
            f"BEGIN SELECT RAISE(ABORT, '{TABLE} is immutable'); END"
        )


def downgrade() -> None:
    raise RuntimeError("replaced price books cannot be said in the earlier schema: restore a backup")
