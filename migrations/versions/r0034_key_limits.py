"""What a key is limited to, its earlier secret after a rotation, suspensions, and changes that wait for approval."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "r0034"
down_revision = "r0033"
branch_labels = None
depends_on = None

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
ID = sa.UUID().with_variant(sa.LargeBinary(16), "sqlite")
ADDED: dict[str, tuple[tuple[str, Any], ...]] = {
    "api_key": (
        ("role", sa.Text()),
        ("rotated_at", COUNT),
        ("previous_mac", sa.LargeBinary()),
        ("previous_pepper_version", sa.Integer()),
        ("previous_until", COUNT),
        ("previous_used_at", COUNT),
    ),
    "tenant": (("suspended_at", COUNT), ("suspended_for", sa.Text()), ("suspended_running", sa.Text())),
    "project": (("suspended_at", COUNT), ("suspended_for", sa.Text()), ("suspended_running", sa.Text())),
}


def upgrade() -> None:
    for table, columns in ADDED.items():
        for name, kind in columns:
            op.add_column(table, sa.Column(name, kind, nullable=True))
    for table in ("tenant", "project"):
        op.create_index(f"ix_{table}_suspended_at", table, ["suspended_at"])
    op.add_column("api_key", sa.Column("limits", sa.Text(), nullable=False, server_default="{}"))
    op.create_table(
        "pending_change",
        sa.Column("id", ID, nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("kind", "arguments", "summary", "state")),
        sa.Column("tenant_id", ID, nullable=True),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("author", "author_via", "reason")),
        sa.Column("created_at", COUNT, nullable=False),
        *(
            sa.Column(name, sa.Text(), nullable=True)
            for name in ("decider", "decider_via", "decision_reason", "result")
        ),
        sa.Column("decided_at", COUNT, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_pending_change"),
        sqlite_strict=True,
    )
    op.create_index("ix_pending_change_state_created_at", "pending_change", ["state", "created_at"])


def downgrade() -> None:
    op.drop_table("pending_change")
    for table in ("tenant", "project"):
        op.drop_index(f"ix_{table}_suspended_at", table)
    for table, columns in ADDED.items():
        for name, _ in columns:
            op.drop_column(table, name)
    op.drop_column("api_key", "limits")
