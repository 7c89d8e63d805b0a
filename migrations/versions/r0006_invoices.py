"""Invoices: parties, number series, documents with their lines, and payments; with the triggers that keep them, and the
accounts that they post to."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0006"
down_revision = "r0005"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
PICO = sa.Numeric(38, 0).with_variant(sa.Integer(), "sqlite")

ACCOUNTS = (
    "'charges', 'clearing', 'credited', 'goodwill', 'invoiced', 'prepaid', 'promo', 'receivable', 'revenue', "
    "'rounding_carry', 'tax'"
)
STATES = "'draft', 'finalized', 'partially_paid', 'paid', 'void', 'uncollectible'"
MAY_CHANGE = ("state", "paid", "credited", "settled_pico")
COLUMNS = (
    "id", "kind", "seller", "tenant_id", "period", "currency", "state", "series", "year", "n", "number", "issued",
    "due", "net", "tax", "gross", "prepaid", "payable", "usage_pico", "promo_pico", "charges_pico", "prepaid_pico",
    "carry_in", "carry_out", "prepaid_carry_in", "prepaid_carry_out", "corrects", "content", "sha256", "drafted_at",
    "finalized_at", "paid", "credited", "settled_pico",
)  # fmt: skip


def column(name: str, kind: sa.types.TypeEngine[Any] | type[Any], *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=null)


def upgrade() -> None:
    _parties()
    _invoices()
    _lines()
    _accounts(op.get_bind().dialect.name == "postgresql")
    if op.get_bind().dialect.name == "postgresql":
        _protect_postgresql()
    else:
        _protect_sqlite()


def _parties() -> None:
    op.create_table(
        "legal_entity",
        column("id", sa.Text),
        column("profile", sa.Text),
        column("updated_at", COUNT),
        sa.PrimaryKeyConstraint("id", name="pk_legal_entity"),
        sqlite_strict=True,
    )
    op.create_table(
        "billing_profile",
        column("tenant_id", ID),
        column("seller", sa.Text),
        column("profile", sa.Text),
        column("updated_at", COUNT),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_billing_profile"),
        sa.ForeignKeyConstraint(["seller"], ["legal_entity.id"], name="fk_billing_profile_seller_legal_entity"),
        sqlite_strict=True,
    )
    op.create_table(
        "number_series",
        column("seller", sa.Text),
        column("series", sa.Text),
        column("year", sa.Integer()),
        column("next", sa.Integer()),
        column("issued", sa.Text),
        column("head", sa.Text),
        sa.PrimaryKeyConstraint("seller", "series", name="pk_number_series"),
        sa.ForeignKeyConstraint(["seller"], ["legal_entity.id"], name="fk_number_series_seller_legal_entity"),
        sa.CheckConstraint("next >= 1", name=op.f("ck_number_series_next")),
        sqlite_strict=True,
    )


def _invoices() -> None:
    checks = {
        "kind": "kind IN ('invoice', 'credit_note')",
        "state": f"state IN ({STATES})",
        "draft": "(state = 'draft') = (number IS NULL)",
        "sha256": "(number IS NULL) = (sha256 IS NULL)",
        "corrects": "(kind = 'credit_note') = (corrects IS NOT NULL)",
        "settled": "paid >= 0 AND credited >= 0 AND paid <= payable AND credited <= gross",
    }
    op.create_table(
        "invoice",
        column("id", ID),
        column("kind", sa.Text),
        column("seller", sa.Text),
        column("tenant_id", ID),
        *(column(name, sa.Text) for name in ("period", "currency", "state", "series")),
        *(column(name, sa.Integer(), null=True) for name in ("year", "n")),
        *(column(name, sa.Text, null=True) for name in ("number", "issued", "due")),
        *(column(name, COUNT) for name in ("net", "tax", "gross", "prepaid", "payable")),
        *(column(name, PICO) for name in ("usage_pico", "promo_pico", "charges_pico", "prepaid_pico")),
        *(column(name, PICO) for name in ("carry_in", "carry_out", "prepaid_carry_in", "prepaid_carry_out")),
        column("corrects", ID, null=True),
        column("content", sa.Text),
        column("sha256", sa.Text, null=True),
        column("drafted_at", COUNT),
        column("finalized_at", COUNT, null=True),
        *(sa.Column(name, COUNT, nullable=False, server_default=sa.text("0")) for name in ("paid", "credited")),
        sa.Column("settled_pico", PICO, nullable=False, server_default=sa.text("0")),
        sa.PrimaryKeyConstraint("id", name="pk_invoice"),
        sa.ForeignKeyConstraint(["seller"], ["legal_entity.id"], name="fk_invoice_seller_legal_entity"),
        sa.ForeignKeyConstraint(["corrects"], ["invoice.id"], name="fk_invoice_corrects_invoice"),
        *(sa.CheckConstraint(check, name=op.f(f"ck_invoice_{name}")) for name, check in checks.items()),
        sa.UniqueConstraint("seller", "number", name="uq_invoice_seller_number"),
        sa.UniqueConstraint("seller", "series", "year", "n", name="uq_invoice_seller_series_year_n"),
        sqlite_strict=True,
    )
    counts = sa.text("kind = 'invoice' AND state <> 'void'")
    op.create_index(
        "ix_invoice_one_of_a_period",
        "invoice",
        ["tenant_id", "period"],
        unique=True,
        sqlite_where=counts,
        postgresql_where=counts,
    )
    op.create_index("ix_invoice_corrects", "invoice", ["corrects"])


def _lines() -> None:
    op.create_table(
        "invoice_line",
        column("invoice_id", ID),
        sa.Column("n", sa.Integer(), autoincrement=False, nullable=False),
        column("tenant_id", ID),
        *(column(name, sa.Text) for name in ("period", "kind", "text")),
        column("project_id", ID, null=True),
        *(column(name, sa.Text, null=True) for name in ("model", "meter", "lane")),
        column("context_from", COUNT),
        column("price_version", sa.Integer(), null=True),
        column("price_micro", COUNT, null=True),
        column("units", COUNT),
        column("exact_pico", PICO),
        column("net", COUNT),
        column("category", sa.Text),
        column("rate", sa.Integer()),
        *(column(name, COUNT) for name in ("service_start", "service_end")),
        column("corrects", sa.Text, null=True),
        column("of", sa.Integer()),
        sa.PrimaryKeyConstraint("invoice_id", "n", name="pk_invoice_line"),
        sa.ForeignKeyConstraint(["invoice_id"], ["invoice.id"], name="fk_invoice_line_invoice_id_invoice"),
        sqlite_strict=True,
    )
    op.create_table(
        "invoice_payment",
        *(column(name, ID) for name in ("id", "invoice_id", "tenant_id")),
        column("amount", COUNT),
        column("currency", sa.Text),
        column("usage_pico", PICO),
        column("reference", sa.Text),
        column("at", COUNT),
        sa.PrimaryKeyConstraint("id", name="pk_invoice_payment"),
        sa.ForeignKeyConstraint(["invoice_id"], ["invoice.id"], name="fk_invoice_payment_invoice_id_invoice"),
        sa.CheckConstraint("amount > 0", name=op.f("ck_invoice_payment_positive")),
        sqlite_strict=True,
    )
    op.create_index("ix_invoice_payment_invoice_id", "invoice_payment", ["invoice_id"])


def _accounts(postgres: bool) -> None:
    if postgres:
        for side in ("debit", "credit"):
            op.drop_constraint(op.f(f"ck_ledger_entry_{side}"), "ledger_entry")
            op.create_check_constraint(op.f(f"ck_ledger_entry_{side}"), "ledger_entry", f"{side} IN ({ACCOUNTS})")
        return
    op.rename_table("ledger_entry", "ledger_entry_before")
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
    op.execute("INSERT INTO ledger_entry SELECT * FROM ledger_entry_before")
    op.drop_table("ledger_entry_before")
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER immutable_ledger_entry_{verb.lower()} BEFORE {verb} ON ledger_entry "
            "BEGIN SELECT RAISE(ABORT, 'ledger_entry is immutable'); END"
        )


_ONWARDS = (
    "NEW.seller = OLD.seller AND NEW.series = OLD.series AND NEW.issued >= OLD.issued AND "
    "(NEW.year = OLD.year AND NEW.next = OLD.next + 1 OR NEW.year > OLD.year AND NEW.next = 2)"
)


def _protect_postgresql() -> None:
    same = " AND ".join(f"NEW.{name} IS NOT DISTINCT FROM OLD.{name}" for name in COLUMNS if name not in MAY_CHANGE)
    op.execute(f"""
        CREATE FUNCTION keep_invoice() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF OLD.state = 'draft' THEN
                IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
                RETURN NEW;
            END IF;
            IF TG_OP = 'UPDATE' AND NEW.state <> 'draft' AND {same} THEN RETURN NEW; END IF;
            RAISE EXCEPTION 'invoice % is immutable', OLD.number;
        END $$
    """)
    op.execute("""
        CREATE FUNCTION keep_invoice_line() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE line invoice_line;
        BEGIN
            IF TG_OP = 'INSERT' THEN line := NEW; ELSE line := OLD; END IF;
            IF TG_OP <> 'UPDATE'
                AND EXISTS (SELECT 1 FROM invoice WHERE id = line.invoice_id AND state = 'draft') THEN
                RETURN line;
            END IF;
            RAISE EXCEPTION 'the lines of invoice % are immutable', line.invoice_id;
        END $$
    """)
    op.execute(f"""
        CREATE FUNCTION keep_number_series() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'UPDATE' AND {_ONWARDS} THEN RETURN NEW; END IF;
            RAISE EXCEPTION 'series % is immutable: its numbers only go on', OLD.series;
        END $$
    """)
    for table, verbs in (
        ("invoice", "UPDATE OR DELETE"),
        ("invoice_line", "INSERT OR UPDATE OR DELETE"),
        ("number_series", "UPDATE OR DELETE"),
    ):
        op.execute(f"CREATE TRIGGER immutable BEFORE {verbs} ON {table} FOR EACH ROW EXECUTE FUNCTION keep_{table}()")
        op.execute(
            f"CREATE TRIGGER no_truncate BEFORE TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
    op.execute(
        "CREATE TRIGGER immutable BEFORE UPDATE OR DELETE OR TRUNCATE ON invoice_payment "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )


def _protect_sqlite() -> None:
    same = " AND ".join(f"NEW.{name} IS OLD.{name}" for name in COLUMNS if name not in MAY_CHANGE)
    drafted = "EXISTS (SELECT 1 FROM invoice WHERE id = {row}.invoice_id AND state = 'draft')"

    def refuse(name: str, table: str, verb: str, when: str) -> None:
        op.execute(
            f"CREATE TRIGGER immutable_{name} BEFORE {verb} ON {table} WHEN {when} "
            f"BEGIN SELECT RAISE(ABORT, '{table} is immutable'); END"
        )

    refuse("invoice_update", "invoice", "UPDATE", f"OLD.state <> 'draft' AND NOT (NEW.state <> 'draft' AND {same})")
    refuse("invoice_delete", "invoice", "DELETE", "OLD.state <> 'draft'")
    refuse("invoice_line_insert", "invoice_line", "INSERT", f"NOT {drafted.format(row='NEW')}")
    refuse("invoice_line_update", "invoice_line", "UPDATE", "TRUE")
    refuse("invoice_line_delete", "invoice_line", "DELETE", f"NOT {drafted.format(row='OLD')}")
    refuse("number_series_update", "number_series", "UPDATE", f"NOT ({_ONWARDS})")
    refuse("number_series_delete", "number_series", "DELETE", "TRUE")
    refuse("invoice_payment_update", "invoice_payment", "UPDATE", "TRUE")
    refuse("invoice_payment_delete", "invoice_payment", "DELETE", "TRUE")


def downgrade() -> None:
    raise RuntimeError("invoices are not thrown away: restore a backup")
