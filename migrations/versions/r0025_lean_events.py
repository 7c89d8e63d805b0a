"""A usage event costs less to write: what it says nothing of is 0 without being sent, and its index is shorter."""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op

revision = "r0025"
down_revision = "r0024"
branch_labels = None
depends_on = None

CLASSES = ("5m", "30m", "1h", "12h", "24h")
METERS = ("uncached", "read_automatic", *(f"read_{c}" for c in CLASSES), *(f"write_{c}" for c in CLASSES), "output")
COUNTS = (
    "prompt", "computed", "read_hbm", "read_dram", "read_nvme", "output", "recomputed", "drafted", "accepted",
)  # fmt: skip
COLUMNS = ("context_from", *(f"count_{name}" for name in COUNTS), *METERS)


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE usage_fact " + ", ".join(f"ALTER COLUMN {name} SET DEFAULT 0" for name in COLUMNS))
    else:
        _set_defaults_in_schema()
    op.create_index("ix_usage_fact_tenant_id_admitted_at", "usage_fact", ["tenant_id", "admitted_at"])
    op.drop_index("ix_usage_fact_tenant_id_period_admitted_at", "usage_fact")


def _set_defaults_in_schema() -> None:
    """SQLite has no statement for it; a default changes nothing that is stored, and its documentation (ALTER TABLE,
    "making other kinds of table schema changes") says to edit the text of the schema."""
    bind = op.get_bind()
    sql = str(bind.scalar(sa.text("SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = 'usage_fact'")))
    for name in COLUMNS:
        sql, found = re.subn(rf"(?<=[\s(]){name} INTEGER NOT NULL", f"{name} INTEGER DEFAULT 0 NOT NULL", sql)
        if found != 1:
            raise RuntimeError(f"usage_fact has no column {name} as it was made: {sql}")
    version = int(bind.scalar(sa.text("PRAGMA schema_version")) or 0)
    op.execute("PRAGMA writable_schema = ON")
    changed = sa.text("UPDATE sqlite_schema SET sql = :sql WHERE type = 'table' AND name = 'usage_fact'")
    bind.execute(changed, {"sql": sql})
    op.execute(f"PRAGMA schema_version = {version + 1}")
    op.execute("PRAGMA writable_schema = OFF")


def downgrade() -> None:
    raise RuntimeError("programs of before run on this schema too: there is nothing to go back for")
