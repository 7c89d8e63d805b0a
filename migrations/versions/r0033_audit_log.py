"""The audit log: who changed what, as a hash chain a tenant and one for the platform. It begins with this step."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0033"
down_revision = "r0032"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
VERBS = {"audit_entry": ("UPDATE", "DELETE"), "audit_anchor": ("UPDATE", "DELETE"), "audit_chain": ("DELETE",)}


def upgrade() -> None:
    op.create_table(
        "audit_entry",
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("number", COUNT, autoincrement=False, nullable=False),
        sa.Column("at", COUNT, nullable=False),
        *(sa.Column(f"actor_{name}", sa.Text(), nullable=False) for name in ("means", "id", "name", "through")),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("actor_address", "request_id", "action")),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("target", "target_id")),
        sa.Column("project_id", ID),
        sa.Column("reason", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Text()) for name in ("before", "after")),
        sa.Column("form", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.LargeBinary(), nullable=False) for name in ("leaf", "head")),
        sa.PrimaryKeyConstraint("tenant_id", "number", name="pk_audit_entry"),
        sa.CheckConstraint("number > 0", name=op.f("ck_audit_entry_number")),
        sqlite_strict=True,
    )
    op.create_index("ix_audit_entry_at", "audit_entry", ["at"])
    op.create_index("ix_audit_entry_tenant_id_at", "audit_entry", ["tenant_id", "at"])
    op.create_index("ix_audit_entry_target_id", "audit_entry", ["target_id"])
    op.create_table(
        "audit_chain",
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("entries", COUNT, nullable=False),
        sa.Column("head", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_audit_chain"),
        sqlite_strict=True,
    )
    op.create_table(
        "audit_anchor",
        sa.Column("anchor", COUNT, autoincrement=False, nullable=False),
        sa.Column("tenant_id", ID, nullable=False),
        sa.Column("entries", COUNT, nullable=False),
        sa.Column("head", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("anchor", "tenant_id", name="pk_audit_anchor"),
        sqlite_strict=True,
    )
    for table, verbs in VERBS.items():
        _refuse(table, verbs)


def _refuse(table: str, verbs: tuple[str, ...]) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER immutable BEFORE {' OR '.join((*verbs, 'TRUNCATE'))} ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        return
    for verb in verbs:
        op.execute(
            f"CREATE TRIGGER immutable_{table}_{verb.lower()} BEFORE {verb} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{table} is immutable'); END"
        )


def downgrade() -> None:
    raise RuntimeError("who changed what is not forgotten: restore a backup")
