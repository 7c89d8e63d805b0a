"""Usage events are stored narrow: what many have in common moves to `usage_traits`, the rest to `usage_fact`, and
`usage_event` becomes the view of both. What was there is carried over.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0007"
down_revision = "r0006"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

CLASSES = ("5m", "30m", "1h", "12h", "24h")
METERS = ("uncached", "read_automatic", *(f"read_{c}" for c in CLASSES), *(f"write_{c}" for c in CLASSES), "output")
COUNTS = (
    "prompt", "computed", "read_hbm", "read_dram", "read_nvme", "output", "recomputed", "drafted", "accepted",
)  # fmt: skip
TOKENS = (*(f"count_{name}" for name in COUNTS), *METERS)
TRAITS = ("model", "model_digest", "lane", "status", "reason", "delivery", "source", "replica")
FACTS = (
    "tenant_id", "project_id", "key_id", "price_version", "context_from", "admitted_at", "finished_at", "period",
    "sequence", "attempt", *TOKENS, "cost_pico",
)  # fmt: skip


def column(name: str, kind: sa.types.TypeEngine[Any] | type[sa.Text], *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=null)


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    op.create_table(
        "usage_traits",
        column("id", sa.Integer()),
        *(column(name, sa.Text) for name in TRAITS),
        sa.PrimaryKeyConstraint("id", name="pk_usage_traits"),
        sa.UniqueConstraint(*TRAITS, name="uq_usage_traits"),
        sqlite_strict=True,
    )
    never_negative = " AND ".join(f"{name} >= 0" for name in (*TOKENS, "cost_pico"))
    op.create_table(
        "usage_fact",
        column("id", ID),
        column("traits", sa.Integer()),
        *(column(name, ID) for name in ("tenant_id", "project_id", "key_id")),
        *(column(name, sa.Integer()) for name in ("price_version", "context_from")),
        *(column(name, COUNT) for name in ("admitted_at", "finished_at")),
        column("period", sa.Text),
        column("sequence", COUNT),
        column("attempt", sa.Integer()),
        *(column(name, sa.Integer()) for name in TOKENS),
        column("cost_pico", COUNT),
        column("corrects", ID, null=True),
        sa.PrimaryKeyConstraint("id", name="pk_usage_fact"),
        sa.CheckConstraint(f"corrects IS NOT NULL OR ({never_negative})", name=op.f("ck_usage_fact_not_negative")),
        sqlite_strict=True,
        postgresql_partition_by="RANGE (id)",
    )
    op.create_index("ix_usage_fact_tenant_id_period_admitted_at", "usage_fact", ["tenant_id", "period", "admitted_at"])
    corrected = sa.text("corrects IS NOT NULL")
    op.create_index(
        "ix_usage_fact_corrects", "usage_fact", ["corrects"], sqlite_where=corrected, postgresql_where=corrected
    )
    _make_immutable("usage_fact", postgres)
    _make_immutable("usage_traits", postgres)
    if postgres:
        _partitions()
    _carry_over()
    op.execute("DROP TABLE usage_event")
    facts, traits = ", ".join(f"f.{name}" for name in ("id", *FACTS, "corrects")), ", ".join(f"t.{n}" for n in TRAITS)
    op.execute(
        f"CREATE VIEW usage_event AS SELECT {facts}, {traits} "  # noqa: S608  # names of columns
        "FROM usage_fact f LEFT JOIN usage_traits t ON t.id = f.traits"
    )


def _partitions() -> None:
    """One for each month that has one, with the same bounds."""
    found = op.get_bind().execute(
        sa.text(
            "SELECT relname, pg_get_expr(relpartbound, pg_class.oid) FROM pg_inherits "
            "JOIN pg_class ON pg_class.oid = inhrelid WHERE inhparent = 'usage_event'::regclass ORDER BY relname"
        )
    )
    for before, bounds in found.all():
        name = before.replace("usage_event", "usage_fact")
        op.execute(f"CREATE TABLE {name} PARTITION OF usage_fact {bounds}")
        _make_immutable(name, postgres=True)


def _carry_over() -> None:
    traits = ", ".join(TRAITS)
    op.execute(
        f"INSERT INTO usage_traits ({traits}) "  # noqa: S608  # names of columns
        f"SELECT DISTINCT {traits} FROM usage_event ORDER BY {traits}"
    )
    facts, same = ", ".join(FACTS), " AND ".join(f"t.{name} = e.{name}" for name in TRAITS)
    op.execute(
        f"INSERT INTO usage_fact (id, traits, {facts}) "  # noqa: S608  # names of columns
        f"SELECT e.id, t.id, {', '.join(f'e.{name}' for name in FACTS)} "
        f"FROM usage_event e JOIN usage_traits t ON {same} ORDER BY e.id"
    )


def _make_immutable(table: str, postgres: bool) -> None:
    if postgres:
        op.execute(
            f"CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER immutable_{table}_{verb.lower()} BEFORE {verb} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{table} is immutable'); END"
        )


def downgrade() -> None:
    raise RuntimeError("events are not widened again: restore a backup")
