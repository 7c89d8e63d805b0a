"""Rollups say how many drafts steps verified, and how many of them became output, as events do."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0065"
down_revision = "r0064"
branch_labels = None
depends_on = None

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DRAFTS = ("drafted", "accepted")
KEYS = ("tenant_id", "period", "hour", "project_id", "key_id", "model", "lane", "price_version", "context_from")


def upgrade() -> None:
    for name in DRAFTS:
        op.add_column("rollup_hour", sa.Column(name, COUNT, nullable=False, server_default=sa.text("0")))
    keys = ", ".join("admitted_at - admitted_at % 3600000000 AS hour" if key == "hour" else key for key in KEYS)
    same = " AND ".join(f"rollup_hour.{key} = sums.{key}" for key in KEYS)
    op.execute(
        "UPDATE rollup_hour SET drafted = sums.drafted, accepted = sums.accepted "  # noqa: S608  # names of columns
        f"FROM (SELECT {keys}, sum(count_drafted) AS drafted, sum(count_accepted) AS accepted "
        "FROM usage_event WHERE count_drafted <> 0 "
        f"GROUP BY {', '.join(str(at) for at in range(1, len(KEYS) + 1))}) AS sums WHERE {same}"
    )


def downgrade() -> None:
    for name in DRAFTS:
        op.drop_column("rollup_hour", name)
