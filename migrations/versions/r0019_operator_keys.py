"""Keys of operators, which belong to no tenant."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0019"
down_revision = "r0018"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
KIND = (
    "(kind = 'project' AND tenant_id IS NOT NULL AND project_id IS NOT NULL) "
    "OR (kind = 'admin' AND tenant_id IS NOT NULL AND project_id IS NULL) "
    "OR (kind = 'operator' AND tenant_id IS NULL AND project_id IS NULL)"
)
COLUMNS: tuple[tuple[str, Any, bool], ...] = (
    ("id", ID, False),
    ("public_id", sa.Text(), False),
    ("tenant_id", ID, True),
    ("project_id", ID, True),
    ("kind", sa.Text(), False),
    ("name", sa.Text(), False),
    ("mac", sa.LargeBinary(), False),
    ("pepper_version", sa.Integer(), False),
    ("created_at", COUNT, False),
    ("expires_at", COUNT, True),
    ("revoked_at", COUNT, True),
    ("last_used_at", COUNT, True),
)


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("api_key", "tenant_id", nullable=True)
        op.drop_constraint(op.f("ck_api_key_kind"), "api_key")
        op.create_check_constraint(op.f("ck_api_key_kind"), "api_key", KIND)
        return
    op.drop_index("ix_api_key_tenant_id", "api_key")
    op.rename_table("api_key", "api_key_before")
    op.create_table(
        "api_key",
        *(sa.Column(name, kind, nullable=null) for name, kind, null in COLUMNS),
        sa.PrimaryKeyConstraint("id", name="pk_api_key"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name="fk_api_key_tenant_id_tenant"),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name="fk_api_key_project_id_project"),
        sa.UniqueConstraint("public_id", name="uq_api_key_public_id"),
        sa.CheckConstraint(KIND, name=op.f("ck_api_key_kind")),
        sqlite_strict=True,
    )
    names = ", ".join(name for name, _, _ in COLUMNS)
    op.execute(f"INSERT INTO api_key ({names}) SELECT {names} FROM api_key_before")  # noqa: S608  # columns
    op.drop_table("api_key_before")
    op.create_index("ix_api_key_tenant_id", "api_key", ["tenant_id"])


def downgrade() -> None:
    raise RuntimeError("operators' keys are not forgotten again: restore a backup")
