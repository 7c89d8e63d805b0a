"""How long replicas have adapters ready: counts that they report, and hours that are billed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from storage.database.base import STRICT

revision = "r0073"
down_revision = "r0072"
branch_labels = None
depends_on = None

_ID = sa.LargeBinary(16).with_variant(postgresql.UUID(), "postgresql")
_COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_BILLED = "residency_event"


def upgrade() -> None:
    op.create_table(
        "adapter_residency",
        sa.Column("replica", sa.Text(), nullable=False),
        sa.Column("epoch", _COUNT, autoincrement=False, nullable=False),
        sa.Column("hour", _COUNT, autoincrement=False, nullable=False),
        sa.Column("project_id", _ID, nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("tenant_id", _ID, nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("model", "base")),
        sa.Column("milliseconds", _COUNT, nullable=False),
        sa.PrimaryKeyConstraint("replica", "epoch", "hour", "project_id", "digest", name=op.f("pk_adapter_residency")),
        sa.CheckConstraint("milliseconds BETWEEN 0 AND 3600000", name=op.f("ck_adapter_residency_milliseconds")),
        **STRICT,
    )
    op.create_index(op.f("ix_adapter_residency_hour"), "adapter_residency", ["hour"])
    op.create_table(
        _BILLED,
        sa.Column("tenant_id", _ID, nullable=False),
        sa.Column("period", sa.Text(), nullable=False),
        sa.Column("hour", _COUNT, autoincrement=False, nullable=False),
        sa.Column("project_id", _ID, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("price_version", sa.Integer(), nullable=False),
        *(sa.Column(name, _COUNT, nullable=False) for name in ("millihours", "cost_pico")),
        sa.PrimaryKeyConstraint("tenant_id", "period", "hour", "project_id", "model", name=op.f(f"pk_{_BILLED}")),
        *(
            sa.CheckConstraint(f"{name} >= 0", name=op.f(f"ck_{_BILLED}_{name}"))
            for name in ("millihours", "cost_pico")
        ),
        **STRICT,
    )
    op.create_index(
        op.f(f"ix_{_BILLED}_tenant_id_hour_project_id_model"),
        _BILLED,
        ["tenant_id", "hour", "project_id", "model"],
        unique=True,
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON {_BILLED} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER immutable_{_BILLED}_{verb.lower()} BEFORE {verb} ON {_BILLED} "
            f"BEGIN SELECT RAISE(ABORT, '{_BILLED} is immutable'); END"
        )


def downgrade() -> None:
    op.drop_table(_BILLED)
    op.drop_table("adapter_residency")
