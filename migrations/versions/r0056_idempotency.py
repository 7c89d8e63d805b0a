"""Claims of idempotency keys, with the answers that are given again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "r0056"
down_revision = "r0055"
branch_labels = None
depends_on = None

STRICT = {"sqlite_strict": True}
_ID = sa.UUID().with_variant(sa.LargeBinary(16), "sqlite")
_COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "idempotency_claim",
        sa.Column("key_id", _ID, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("tenant_id", _ID, nullable=False),
        sa.Column("project_id", _ID, nullable=False),
        sa.Column("request_id", _ID, nullable=False),
        sa.Column("request_digest", sa.LargeBinary(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("beat_at", _COUNT, nullable=True),
        sa.Column("expires_at", _COUNT, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.Column("bytes", _COUNT, nullable=False),
        sa.PrimaryKeyConstraint("key_id", "digest", name=op.f("pk_idempotency_claim")),
        **STRICT,
    )
    for column in ("project_id", "request_id", "worker", "expires_at"):
        op.create_index(op.f(f"ix_idempotency_claim_{column}"), "idempotency_claim", [column])


def downgrade() -> None:
    op.drop_table("idempotency_claim")
