"""The first schema: tenants, keys, prices, money, holds, usage events, and the triggers that keep them as written.

Everything is spelled out here and imported from nowhere, so that this step stays what it was.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0001"
down_revision = None
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
PICO = sa.Numeric(38, 0).with_variant(sa.Integer(), "sqlite")

CLASSES = ("5m", "30m", "1h", "12h", "24h")
METERS = ("uncached", "read_automatic", *(f"read_{c}" for c in CLASSES), *(f"write_{c}" for c in CLASSES), "output")
COUNTS = ("prompt", "computed", "read_hbm", "read_dram", "read_nvme", "output", "recomputed", "drafted", "accepted")

IMMUTABLE = ("usage_event", "grant", "price_version", "price")


def column(name: str, kind: sa.types.TypeEngine[Any] | type[sa.Text], *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=null)


def upgrade() -> None:
    _tenancy()
    _prices()
    _money()
    _holds()
    _usage_events()
    _immutability()


def _tenancy() -> None:
    op.create_table(
        "tenant",
        column("id", ID),
        column("name", sa.Text),
        column("created_at", COUNT),
        sa.PrimaryKeyConstraint("id", name="pk_tenant"),
        sa.UniqueConstraint("name", name="uq_tenant_name"),
        sqlite_strict=True,
    )
    op.create_table(
        "project",
        column("id", ID),
        column("tenant_id", ID),
        column("name", sa.Text),
        column("created_at", COUNT),
        sa.PrimaryKeyConstraint("id", name="pk_project"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name="fk_project_tenant_id_tenant"),
        sa.UniqueConstraint("tenant_id", "name", name="uq_project_tenant_id_name"),
        sqlite_strict=True,
    )
    op.create_table(
        "api_key",
        column("id", ID),
        column("public_id", sa.Text),
        column("tenant_id", ID),
        column("project_id", ID, null=True),
        column("kind", sa.Text),
        column("name", sa.Text),
        column("mac", sa.LargeBinary()),
        column("pepper_version", sa.Integer()),
        column("created_at", COUNT),
        column("expires_at", COUNT, null=True),
        column("revoked_at", COUNT, null=True),
        column("last_used_at", COUNT, null=True),
        sa.PrimaryKeyConstraint("id", name="pk_api_key"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenant.id"], name="fk_api_key_tenant_id_tenant"),
        sa.ForeignKeyConstraint(["project_id"], ["project.id"], name="fk_api_key_project_id_project"),
        sa.UniqueConstraint("public_id", name="uq_api_key_public_id"),
        sa.CheckConstraint(
            "(kind = 'project' AND project_id IS NOT NULL) OR (kind = 'admin' AND project_id IS NULL)",
            name=op.f("ck_api_key_kind"),
        ),
        sqlite_strict=True,
    )
    op.create_index("ix_api_key_tenant_id", "api_key", ["tenant_id"])


def _prices() -> None:
    op.create_table(
        "price_version",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        column("model", sa.Text),
        column("currency", sa.Text),
        column("effective_at", COUNT),
        column("created_at", COUNT),
        column("sha256", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_price_version"),
        sqlite_strict=True,
    )
    op.create_index("ix_price_version_model_effective_at", "price_version", ["model", "effective_at"])
    op.create_table(
        "price",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        column("meter", sa.Text),
        column("lane", sa.Text),
        sa.Column("context_from", COUNT, autoincrement=False, nullable=False),
        column("price_micro", COUNT),
        sa.PrimaryKeyConstraint("version", "meter", "lane", "context_from", name="pk_price"),
        sa.ForeignKeyConstraint(["version"], ["price_version.id"], name="fk_price_version_price_version"),
        sa.CheckConstraint("price_micro >= 0", name=op.f("ck_price_not_negative")),
        sqlite_strict=True,
    )


def _money() -> None:
    op.create_table(
        "grant",
        column("id", ID),
        column("tenant_id", ID),
        column("amount_pico", PICO),
        column("currency", sa.Text),
        column("kind", sa.Text),
        column("reason", sa.Text),
        column("at", COUNT),
        sa.PrimaryKeyConstraint("id", name="pk_grant"),
        sa.CheckConstraint("amount_pico > 0", name=op.f("ck_grant_positive")),
        sqlite_strict=True,
    )
    op.create_index("ix_grant_tenant_id", "grant", ["tenant_id"])
    op.create_table(
        "balance",
        column("tenant_id", ID),
        column("currency", sa.Text),
        column("credit", PICO),
        column("debit", PICO),
        column("held", PICO),
        column("overdraft", PICO),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_balance"),
        sa.CheckConstraint("credit - debit - held + overdraft >= 0", name=op.f("ck_balance_covered")),
        sa.CheckConstraint("held >= 0", name=op.f("ck_balance_held_not_negative")),
        sa.CheckConstraint("overdraft >= 0", name=op.f("ck_balance_overdraft_not_negative")),
        sqlite_strict=True,
    )


def _holds() -> None:
    op.create_table(
        "hold",
        *(column(name, ID) for name in ("request_id", "tenant_id", "project_id", "key_id")),
        column("model", sa.Text),
        column("lane", sa.Text),
        column("price_version", sa.Integer()),
        column("amount_pico", COUNT),
        column("gateway", sa.Text),
        column("terms", sa.LargeBinary()),
        column("admitted_at", COUNT),
        column("period", sa.Text),
        column("expires_at", COUNT),
        column("state", sa.Text),
        sa.PrimaryKeyConstraint("request_id", name="pk_hold"),
        sa.CheckConstraint("amount_pico >= 0", name=op.f("ck_hold_not_negative")),
        sa.CheckConstraint("state IN ('open', 'settled', 'released', 'expired')", name=op.f("ck_hold_state")),
        sqlite_strict=True,
        postgresql_with={"fillfactor": 70},
    )
    still_open = sa.text("state = 'open'")
    op.create_index(
        "ix_hold_open_expires_at", "hold", ["expires_at"], sqlite_where=still_open, postgresql_where=still_open
    )
    op.create_table(
        "refused_settlement",
        column("id", ID),
        column("request_id", ID),
        column("cause", sa.Text),
        column("body", sa.LargeBinary()),
        column("refused_at", COUNT),
        sa.PrimaryKeyConstraint("id", name="pk_refused_settlement"),
        sqlite_strict=True,
    )
    op.create_index("ix_refused_settlement_request_id", "refused_settlement", ["request_id"])


def _usage_events() -> None:
    op.create_table(
        "usage_event",
        *(column(name, ID) for name in ("id", "tenant_id", "project_id", "key_id")),
        *(column(name, sa.Text) for name in ("model", "model_digest", "lane")),
        column("price_version", sa.Integer()),
        column("admitted_at", COUNT),
        column("finished_at", COUNT),
        *(column(name, sa.Text) for name in ("period", "status", "reason", "delivery", "source", "replica")),
        column("sequence", COUNT),
        column("attempt", COUNT),
        *(column(f"count_{name}", COUNT) for name in COUNTS),
        *(column(meter, COUNT) for meter in METERS),
        column("cost_pico", COUNT),
        sa.PrimaryKeyConstraint("id", name="pk_usage_event"),
        *(
            sa.CheckConstraint(f"{name} >= 0", name=op.f(f"ck_usage_event_{name}"))
            for name in (*(f"count_{name}" for name in COUNTS), *METERS, "cost_pico")
        ),
        sqlite_strict=True,
    )
    op.create_index("ix_usage_event_tenant_id_admitted_at", "usage_event", ["tenant_id", "admitted_at"])
    op.create_index("ix_usage_event_tenant_id_period_id", "usage_event", ["tenant_id", "period", "id"])
    journaled = sa.text("sequence > 0")
    op.create_index(
        "ix_usage_event_replica_sequence",
        "usage_event",
        ["replica", "sequence"],
        unique=True,
        sqlite_where=journaled,
        postgresql_where=journaled,
    )


def _immutability() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE EXCEPTION '% is immutable', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation'; "
            "END $$"
        )
        for table in IMMUTABLE:
            op.execute(
                f'CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON "{table}" '
                "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
            )
        return
    for table in IMMUTABLE:
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f'CREATE TRIGGER immutable_{table}_{verb.lower()} BEFORE {verb} ON "{table}" '
                f"BEGIN SELECT RAISE(ABORT, '{table} is immutable'); END"
            )


def downgrade() -> None:
    for table in (*IMMUTABLE[:2], "price", "price_version", "refused_settlement", "hold", "balance"):
        op.drop_table(table)
    for table in ("api_key", "project", "tenant"):
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION refuse_change()")
