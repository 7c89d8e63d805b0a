"""Identity providers, passkeys and directories; whose roles and sessions are theirs."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from storage.database.base import STRICT

revision = "r0074"
down_revision = "r0073"
branch_labels = None
depends_on = None

_ID = sa.LargeBinary(16).with_variant(postgresql.UUID(), "postgresql")
_COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _columns(kind: Any, *names: str, nullable: bool = False) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=nullable) for name in names]


def _key(table: str, *names: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*names, name=f"pk_{table}")


def _refers(table: str, **to: str) -> list[sa.ForeignKeyConstraint]:
    return [
        sa.ForeignKeyConstraint([name], [f"{other}.id"], name=f"fk_{table}_{name}_{other}")
        for name, other in to.items()
    ]


def _unique(table: str, *names: str) -> sa.UniqueConstraint:
    return sa.UniqueConstraint(*names, name=f"uq_{table}_{'_'.join(names)}")


def upgrade() -> None:
    op.add_column("membership", sa.Column("source", sa.Text(), nullable=False, server_default=sa.text("''")))
    op.add_column("membership", sa.Column("break_glass", _COUNT, nullable=False, server_default=sa.text("0")))
    op.add_column("user_session", sa.Column("provider_id", _ID, nullable=True))
    op.add_column(
        "user_session", sa.Column("provider_session", sa.Text(), nullable=False, server_default=sa.text("''"))
    )
    op.add_column("user_session", sa.Column("tenant_id", _ID, nullable=True))
    op.create_table(
        "sign_in_policy",
        *_columns(_ID, "tenant_id"),
        *_columns(_COUNT, "provider_only"),
        _key("sign_in_policy", "tenant_id"),
        *_refers("sign_in_policy", tenant_id="tenant"),
        **STRICT,
    )
    op.create_table(
        "identity_provider",
        *_columns(_ID, "id"),
        *_columns(_ID, "tenant_id", nullable=True),
        *_columns(sa.Text(), "name", "issuer", "client_id"),
        *_columns(sa.LargeBinary(), "secret", nullable=True),
        *_columns(sa.Text(), "scopes", "groups_claim", "acr_values"),
        *_columns(_COUNT, "owner_by_group", "enabled"),
        *_columns(_COUNT, "created_at"),
        _key("identity_provider", "id"),
        *_refers("identity_provider", tenant_id="tenant"),
        **STRICT,
    )
    op.create_index("ix_identity_provider_tenant_id", "identity_provider", ["tenant_id"])
    op.create_table(
        "identity_domain",
        *_columns(sa.Text(), "domain"),
        *_columns(_ID, "provider_id"),
        *_columns(_COUNT, "created_at"),
        _key("identity_domain", "domain"),
        *_refers("identity_domain", provider_id="identity_provider"),
        **STRICT,
    )
    op.create_index("ix_identity_domain_provider_id", "identity_domain", ["provider_id"])
    op.create_table(
        "identity_group",
        *_columns(_ID, "id", "provider_id"),
        *_columns(sa.Text(), "group_id", "scope"),
        *_columns(_ID, "tenant_id", "project_id", nullable=True),
        *_columns(sa.Text(), "role", "created_by_id"),
        _key("identity_group", "id"),
        *_refers("identity_group", provider_id="identity_provider", tenant_id="tenant", project_id="project"),
        _unique("identity_group", "provider_id", "group_id", "scope"),
        **STRICT,
    )
    op.create_table(
        "user_identity",
        *_columns(_ID, "id", "user_id", "provider_id"),
        *_columns(sa.Text(), "issuer", "subject", "email"),
        *_columns(_COUNT, "created_at"),
        *_columns(_COUNT, "used_at", nullable=True),
        _key("user_identity", "id"),
        *_refers("user_identity", user_id="user_account", provider_id="identity_provider"),
        _unique("user_identity", "provider_id", "issuer", "subject"),
        **STRICT,
    )
    op.create_index("ix_user_identity_user_id", "user_identity", ["user_id"])
    op.create_table(
        "passkey",
        *_columns(_ID, "id", "user_id"),
        *_columns(sa.LargeBinary(), "credential_id", "public_key"),
        *_columns(_COUNT, "counter"),
        *_columns(sa.Text(), "name"),
        *_columns(_COUNT, "created_at"),
        *_columns(_COUNT, "used_at", nullable=True),
        _key("passkey", "id"),
        *_refers("passkey", user_id="user_account"),
        _unique("passkey", "credential_id"),
        **STRICT,
    )
    op.create_index("ix_passkey_user_id", "passkey", ["user_id"])
    _create_directory()


def _create_directory() -> None:
    op.create_table(
        "directory",
        *_columns(_ID, "tenant_id"),
        *_columns(sa.LargeBinary(), "mac"),
        *_columns(sa.Text(), "role", "member_role"),
        *_columns(_COUNT, "revoke_keys"),
        *_columns(sa.Text(), "created_by_id"),
        *_columns(_COUNT, "created_at"),
        *_columns(_COUNT, "used_at", nullable=True),
        _key("directory", "tenant_id"),
        *_refers("directory", tenant_id="tenant"),
        _unique("directory", "mac"),
        **STRICT,
    )
    op.create_table(
        "directory_user",
        *_columns(_ID, "id", "tenant_id"),
        *_columns(_ID, "user_id", nullable=True),
        *_columns(sa.Text(), "user_name", "external_id", "email"),
        *_columns(_COUNT, "active"),
        *_columns(sa.Text(), "content"),
        *_columns(_COUNT, "created_at", "changed_at"),
        _key("directory_user", "id"),
        *_refers("directory_user", tenant_id="tenant", user_id="user_account"),
        _unique("directory_user", "tenant_id", "user_name"),
        **STRICT,
    )
    op.create_index("ix_directory_user_user_id", "directory_user", ["user_id"])
    op.create_table(
        "directory_group",
        *_columns(_ID, "id", "tenant_id"),
        *_columns(sa.Text(), "name", "external_id", "role"),
        *_columns(_ID, "project_id", nullable=True),
        *_columns(sa.Text(), "role_by_id"),
        *_columns(_COUNT, "created_at", "changed_at"),
        _key("directory_group", "id"),
        *_refers("directory_group", tenant_id="tenant", project_id="project"),
        _unique("directory_group", "tenant_id", "name"),
        **STRICT,
    )
    op.create_table(
        "directory_member",
        *_columns(_ID, "group_id", "member_id", "tenant_id"),
        _key("directory_member", "group_id", "member_id"),
        *_refers("directory_member", group_id="directory_group", member_id="directory_user", tenant_id="tenant"),
        **STRICT,
    )
    op.create_index("ix_directory_member_member_id", "directory_member", ["member_id"])


def downgrade() -> None:
    for table in (
        *("directory_member", "directory_group", "directory_user", "directory", "passkey", "user_identity"),
        *("identity_group", "identity_domain", "identity_provider", "sign_in_policy"),
    ):
        op.drop_table(table)
    for table, names in (
        ("user_session", ("tenant_id", "provider_session", "provider_id")),
        ("membership", ("break_glass", "source")),
    ):
        for name in names:
            op.drop_column(table, name)
