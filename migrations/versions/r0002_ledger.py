"""The second schema: ledger, hourly rollups, outbox, and on PostgreSQL usage events partitioned by month.

What was there is carried over: rollups and the ledger are made of the events and grants. Everything is spelled out here
and imported from nowhere, so that this step stays what it was.
"""

from __future__ import annotations

import calendar
import uuid
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0002"
down_revision = "r0001"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
PICO = sa.Numeric(38, 0).with_variant(sa.Integer(), "sqlite")

CLASSES = ("5m", "30m", "1h", "12h", "24h")
METERS = ("uncached", "read_automatic", *(f"read_{c}" for c in CLASSES), *(f"write_{c}" for c in CLASSES), "output")
ACCOUNTS = "'clearing', 'goodwill', 'prepaid', 'promo', 'receivable', 'revenue'"
IMMUTABLE = ("ledger_txn", "ledger_entry")
HOUR = 3_600_000_000
LIMB = 10**9


def column(name: str, kind: sa.types.TypeEngine[Any] | type[sa.Text], *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=null)


def upgrade() -> None:
    postgres = op.get_bind().dialect.name == "postgresql"
    _balance(postgres)
    _ledger()
    _rollups()
    if postgres:
        _partitions()
    for table in IMMUTABLE:
        _make_immutable(table, postgres)
    _carry_over_rollups()
    _carry_over_ledger(postgres)


def _balance(postgres: bool) -> None:
    checks = ("promo", "receivable", "credit_line")
    covered = "credit - debit - held + overdraft + credit_line >= 0"
    if postgres:
        for name in checks:
            op.add_column("balance", sa.Column(name, PICO, nullable=False, server_default=sa.text("0")))
            op.create_check_constraint(op.f(f"ck_balance_{name}_not_negative"), "balance", f"{name} >= 0")
        op.drop_constraint(op.f("ck_balance_covered"), "balance")
        op.create_check_constraint(op.f("ck_balance_covered"), "balance", covered)
        op.execute("ALTER TABLE balance SET (fillfactor = 50)")
        return
    op.rename_table("balance", "balance_before")
    op.create_table(
        "balance",
        column("tenant_id", ID),
        column("currency", sa.Text),
        *(column(name, PICO) for name in ("credit", "debit", "held", "overdraft")),
        *(sa.Column(name, PICO, nullable=False, server_default=sa.text("0")) for name in checks),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_balance"),
        sa.CheckConstraint(covered, name=op.f("ck_balance_covered")),
        *(
            sa.CheckConstraint(f"{name} >= 0", name=op.f(f"ck_balance_{name}_not_negative"))
            for name in ("held", "overdraft", *checks)
        ),
        sqlite_strict=True,
    )
    op.execute(
        "INSERT INTO balance (tenant_id, currency, credit, debit, held, overdraft) "
        "SELECT tenant_id, currency, credit, debit, held, overdraft FROM balance_before"
    )
    op.drop_table("balance_before")


def _ledger() -> None:
    op.create_table(
        "ledger_txn",
        column("id", ID),
        column("tenant_id", ID),
        column("kind", sa.Text),
        column("period", sa.Text),
        column("posted_at", COUNT),
        sa.PrimaryKeyConstraint("id", name="pk_ledger_txn"),
        sqlite_strict=True,
    )
    op.create_index("ix_ledger_txn_tenant_id_posted_at", "ledger_txn", ["tenant_id", "posted_at"])
    op.create_table(
        "ledger_entry",
        column("txn_id", ID),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        column("tenant_id", ID),
        *(column(name, sa.Text) for name in ("currency", "debit", "credit")),
        column("amount_pico", PICO),
        sa.PrimaryKeyConstraint("txn_id", "seq", name="pk_ledger_entry"),
        sa.ForeignKeyConstraint(["txn_id"], ["ledger_txn.id"], name="fk_ledger_entry_txn_id_ledger_txn"),
        sa.CheckConstraint("amount_pico > 0", name=op.f("ck_ledger_entry_positive")),
        sa.CheckConstraint("debit <> credit", name=op.f("ck_ledger_entry_two_accounts")),
        sa.CheckConstraint(f"debit IN ({ACCOUNTS})", name=op.f("ck_ledger_entry_debit")),
        sa.CheckConstraint(f"credit IN ({ACCOUNTS})", name=op.f("ck_ledger_entry_credit")),
        sqlite_strict=True,
    )
    op.create_table(
        "outbox",
        column("id", ID),
        column("tenant_id", ID),
        column("topic", sa.Text),
        column("payload", sa.Text),
        column("created_at", COUNT),
        column("sent_at", COUNT, null=True),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
        sqlite_strict=True,
    )
    unsent = sa.text("sent_at IS NULL")
    op.create_index("ix_outbox_unsent", "outbox", ["id"], sqlite_where=unsent, postgresql_where=unsent)


def _rollups() -> None:
    op.create_table(
        "rollup_hour",
        column("tenant_id", ID),
        column("period", sa.Text),
        sa.Column("hour", COUNT, autoincrement=False, nullable=False),
        *(column(name, ID) for name in ("project_id", "key_id")),
        *(column(name, sa.Text) for name in ("model", "lane")),
        sa.Column("price_version", sa.Integer(), autoincrement=False, nullable=False),
        *(column(name, COUNT) for name in ("requests", *METERS, "cost_high", "cost_low")),
        sa.PrimaryKeyConstraint(
            "tenant_id",
            "period",
            "hour",
            "project_id",
            "key_id",
            "model",
            "lane",
            "price_version",
            name="pk_rollup_hour",
        ),
        sqlite_strict=True,
        postgresql_with={"fillfactor": 70},
    )


def _partitions() -> None:
    """The events move into a table partitioned by their ids, one partition for each month that has any."""
    op.execute("ALTER TABLE usage_event RENAME TO usage_event_before")
    op.execute("ALTER TABLE usage_event_before RENAME CONSTRAINT pk_usage_event TO pk_usage_event_before")
    indexes = ("tenant_id_admitted_at", "tenant_id_period_id")
    for name in indexes:
        op.execute(f"ALTER INDEX ix_usage_event_{name} RENAME TO ix_usage_event_before_{name}")
    op.execute(
        "CREATE TABLE usage_event (LIKE usage_event_before INCLUDING CONSTRAINTS, "
        "CONSTRAINT pk_usage_event PRIMARY KEY (id)) PARTITION BY RANGE (id)"
    )
    op.create_index("ix_usage_event_tenant_id_admitted_at", "usage_event", ["tenant_id", "admitted_at"])
    op.create_index("ix_usage_event_tenant_id_period_id", "usage_event", ["tenant_id", "period", "id"])
    _make_immutable("usage_event", postgres=True)
    # the first 48 bits of a UUIDv7 are milliseconds since the epoch
    months = op.get_bind().scalars(
        sa.text(
            "SELECT DISTINCT to_char(to_timestamp(('x' || lpad(left(replace(id::text, '-', ''), 12), 16, '0'))"
            "::bit(64)::bigint / 1000) AT TIME ZONE 'UTC', 'YYYY-MM') FROM usage_event_before"
        )
    )
    for month in sorted(months):
        _partition(month)
    op.execute("INSERT INTO usage_event SELECT * FROM usage_event_before")
    op.execute("DROP TABLE usage_event_before")


def _partition(month: str) -> None:
    year, number = (int(part) for part in month.split("-"))
    following = (year + 1, 1) if number == 12 else (year, number + 1)
    lower, upper = (
        uuid.UUID(int=calendar.timegm(datetime(*at, 1, tzinfo=UTC).timetuple()) * 1000 << 80)
        for at in ((year, number), following)
    )
    name = f"usage_event_{year:04d}_{number:02d}"
    op.execute(f"CREATE TABLE {name} PARTITION OF usage_event FOR VALUES FROM ('{lower}') TO ('{upper}')")
    op.execute(f"CREATE UNIQUE INDEX ix_{name}_replica_sequence ON {name} (replica, sequence) WHERE sequence > 0")
    _make_immutable(name, postgres=True)


def _make_immutable(table: str, postgres: bool) -> None:
    if postgres:
        op.execute(
            f'CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON "{table}" '
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f'CREATE TRIGGER immutable_{table}_{verb.lower()} BEFORE {verb} ON "{table}" '
            f"BEGIN SELECT RAISE(ABORT, '{table} is immutable'); END"
        )


def _carry_over_rollups() -> None:
    keys = f"tenant_id, period, admitted_at - admitted_at % {HOUR}, project_id, key_id, model, lane, price_version"
    sums = ", ".join(f"sum({meter})" for meter in METERS)
    op.execute(
        f"INSERT INTO rollup_hour SELECT {keys}, count(*), {sums}, "  # noqa: S608  # names of columns
        f"sum(cost_pico / {LIMB}), sum(cost_pico % {LIMB}) FROM usage_event GROUP BY {keys}"
    )


def _carry_over_ledger(postgres: bool) -> None:
    """One transaction for each grant, then one for each tenant's month of usage."""
    bind = op.get_bind()
    balances = {row.tenant_id: row for row in bind.execute(sa.text("SELECT tenant_id, currency FROM balance"))}
    promo, paid, owed = (dict.fromkeys(balances, 0) for _ in range(3))
    txns: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []

    def post(txn: dict[str, Any], *legs: tuple[str, str, int]) -> None:
        txns.append(txn)
        identity, tenant = txn["id"], txn["tenant_id"]
        for seq, (debit, credit, amount) in enumerate((leg for leg in legs if leg[2]), 1):
            entries.append(
                {"txn_id": identity, "seq": seq, "tenant_id": tenant, "currency": balances[tenant].currency,
                 "debit": debit, "credit": credit, "amount_pico": amount}
            )  # fmt: skip

    for row in bind.execute(sa.text('SELECT id, tenant_id, amount_pico, kind, at FROM "grant" ORDER BY at, id')):
        given = row.kind == "promo"
        (promo if given else paid)[row.tenant_id] += int(row.amount_pico)
        leg = ("goodwill", "promo") if given else ("clearing", "prepaid")
        txn = {"id": row.id, "tenant_id": row.tenant_id, "kind": "grant", "period": "", "posted_at": row.at}
        post(txn, (*leg, int(row.amount_pico)))
    used = bind.execute(
        sa.text(
            "SELECT tenant_id, period, max(finished_at) AS at, sum(cost_pico / 1000000000) AS high, "
            "sum(cost_pico % 1000000000) AS low FROM usage_event GROUP BY tenant_id, period ORDER BY period"
        )
    )
    for row in used:
        cost = int(row.high) * LIMB + int(row.low)
        from_promo = min(cost, promo[row.tenant_id])
        from_paid = min(cost - from_promo, paid[row.tenant_id])
        rest = cost - from_promo - from_paid
        promo[row.tenant_id] -= from_promo
        paid[row.tenant_id] -= from_paid
        owed[row.tenant_id] += rest
        identity = uuid.uuid4()
        txn = {
            "id": identity if postgres else identity.bytes,
            "tenant_id": row.tenant_id,
            "kind": "usage",
            "period": row.period,
            "posted_at": row.at,
        }
        post(txn, ("promo", "revenue", from_promo), ("prepaid", "revenue", from_paid), ("receivable", "revenue", rest))
    for table, rows in (("ledger_txn", txns), ("ledger_entry", entries)):
        if rows:
            bind.execute(sa.table(table, *map(sa.column, rows[0])).insert(), rows)
    for tenant in balances:
        bind.execute(
            sa.text("UPDATE balance SET promo = :promo, receivable = :owed WHERE tenant_id = :tenant"),
            {"promo": promo[tenant], "owed": owed[tenant], "tenant": tenant},
        )


def downgrade() -> None:
    raise RuntimeError("the ledger is not thrown away: restore a backup")
