"""Users, their credentials, memberships, sessions and one-time tokens, and counts of sign-in attempts."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0035"
down_revision = "r0034"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TABLES = ("user_account", "credential", "membership", "user_session", "one_time_token", "sign_in_count")


def _texts(*names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def _numbers(*names: str, nullable: bool = False) -> list[sa.Column[Any]]:
    return [sa.Column(name, COUNT, nullable=nullable) for name in names]


def _reference(table: str, column: str, other: str, *, nullable: bool = False) -> list[Any]:
    key = sa.ForeignKeyConstraint([column], [f"{other}.id"], name=f"fk_{table}_{column}_{other}")
    return [sa.Column(column, ID, nullable=nullable), key]


def _create(table: str, *parts: Any, primary: tuple[str, ...] = ("id",)) -> None:
    id_column = [sa.Column("id", ID, nullable=False)] if primary == ("id",) else []
    key = sa.PrimaryKeyConstraint(*primary, name=f"pk_{table}")
    op.create_table(table, *id_column, *parts, key, sqlite_strict=True)


def upgrade() -> None:
    _create(
        "user_account",
        *_texts("email", "name"),
        *_numbers("created_at"),
        *_numbers("disabled_at", nullable=True),
        sa.UniqueConstraint("email", name="uq_user_account_email"),
    )
    _create(
        "credential",
        *_reference("credential", "user_id", "user_account"),
        *_texts("kind", "identifier"),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        *_numbers("counter", "created_at"),
        *_numbers("confirmed_at", "used_at", nullable=True),
        sa.UniqueConstraint("user_id", "kind", "identifier", name="uq_credential_user_id_kind_identifier"),
    )
    _create(
        "membership",
        *_reference("membership", "user_id", "user_account"),
        *_texts("scope"),
        *_reference("membership", "tenant_id", "tenant", nullable=True),
        *_reference("membership", "project_id", "project", nullable=True),
        *_texts("role"),
        *_numbers("created_at"),
        sa.UniqueConstraint("user_id", "scope", name="uq_membership_user_id_scope"),
    )
    op.create_index("ix_membership_tenant_id", "membership", ["tenant_id"])
    _create(
        "user_session",
        *_reference("user_session", "user_id", "user_account"),
        sa.Column("mac", sa.LargeBinary(), nullable=False),
        sa.Column("previous_mac", sa.LargeBinary()),
        *_numbers("previous_until", nullable=True),
        *_numbers("rotate"),
        *_texts("method", "address", "user_agent"),
        *_numbers("created_at", "proven_at", "seen_at", "expires_at"),
        *_numbers("revoked_at", nullable=True),
        sa.UniqueConstraint("mac", name="uq_user_session_mac"),
        sa.UniqueConstraint("previous_mac", name="uq_user_session_previous_mac"),
    )
    op.create_index("ix_user_session_user_id", "user_session", ["user_id"])
    op.create_index("ix_user_session_expires_at", "user_session", ["expires_at"])
    _create(
        "one_time_token",
        *_texts("kind"),
        sa.Column("mac", sa.LargeBinary(), nullable=False),
        *_reference("one_time_token", "user_id", "user_account", nullable=True),
        *_texts("email", "role"),
        *_reference("one_time_token", "tenant_id", "tenant", nullable=True),
        *_reference("one_time_token", "project_id", "project", nullable=True),
        *_texts("method", "created_by"),
        *_numbers("created_at", "expires_at"),
        *_numbers("used_at", nullable=True),
        sa.UniqueConstraint("mac", name="uq_one_time_token_mac"),
    )
    op.create_index("ix_one_time_token_user_id", "one_time_token", ["user_id"])
    op.create_index("ix_one_time_token_expires_at", "one_time_token", ["expires_at"])
    _create(
        "sign_in_count",
        *_texts("key"),
        *_numbers("slot", "attempts", "ends_at"),
        primary=("key", "slot"),
    )
    op.create_index("ix_sign_in_count_ends_at", "sign_in_count", ["ends_at"])


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)
