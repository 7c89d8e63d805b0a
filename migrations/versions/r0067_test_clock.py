"""The clock of a sandbox: a database in which time is moved by hand."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0067"
down_revision = "r0066"
branch_labels = None
depends_on = None

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
FUNCTION = """
    CREATE FUNCTION refuse_turning_back() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP <> 'UPDATE' OR NEW.ahead < OLD.ahead OR NEW.begun_at <> OLD.begun_at OR NEW.id <> OLD.id THEN
            RAISE EXCEPTION 'a test clock stays, and goes forward';
        END IF;
        RETURN NEW;
    END $$
"""
FORWARD = "NEW.ahead < OLD.ahead OR NEW.begun_at <> OLD.begun_at OR NEW.id <> OLD.id"


def upgrade() -> None:
    op.create_table(
        "test_clock",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("ahead", COUNT, nullable=False),
        sa.Column("begun_at", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_test_clock"),
        sa.CheckConstraint("id = 1", name=op.f("ck_test_clock_id")),
        sqlite_strict=True,
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(FUNCTION)
        op.execute(
            "CREATE TRIGGER forward BEFORE UPDATE OR DELETE ON test_clock "
            "FOR EACH ROW EXECUTE FUNCTION refuse_turning_back()"
        )
        return
    refuse = "BEGIN SELECT RAISE(ABORT, 'a test clock stays, and goes forward'); END"
    op.execute(f"CREATE TRIGGER forward_test_clock_update BEFORE UPDATE ON test_clock WHEN {FORWARD} {refuse}")
    op.execute(f"CREATE TRIGGER forward_test_clock_delete BEFORE DELETE ON test_clock {refuse}")


def downgrade() -> None:
    op.drop_table("test_clock")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION refuse_turning_back()")
