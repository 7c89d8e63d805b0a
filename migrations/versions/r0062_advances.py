"""Advance-payment invoices: their kind, what later invoices deduct of them, and what invoices take from credit."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "r0062"
down_revision = "r0061"
branch_labels = None
depends_on = None

ID = postgresql.UUID().with_variant(sa.LargeBinary(16), "sqlite")
PICO = sa.Numeric(38, 0).with_variant(sa.Integer(), "sqlite")
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TABLE = "advance_deduction"
OLD_KINDS, KINDS = "'invoice', 'credit_note'", "'invoice', 'credit_note', 'advance'"
OLD_ACCOUNTS = (
    "'bad_debt', 'breakage', 'charges', 'clearing', 'credited', 'goodwill', 'invoiced', 'prepaid', 'promo', "
    "'receivable', 'restricted', 'revenue', 'rounding_carry', 'tax', 'tax_relief', 'written_off'"
)
ACCOUNTS = (
    "'bad_debt', 'breakage', 'charges', 'clearing', 'credited', 'deferred', 'goodwill', 'invoiced', "
    "'prepaid', 'promo', 'receivable', 'restricted', 'revenue', 'rounding_carry', 'tax', 'tax_relief', 'written_off'"
)
FINAL = (
    "id", "kind", "seller", "tenant_id", "period", "currency", "series", "year", "n", "number", "issued", "due", "net",
    "tax", "gross", "prepaid", "payable", "usage_pico", "promo_pico", "charges_pico", "prepaid_pico", "returned_pico",
    "advance_tax", "drawn", "deferred_pico", "carry_in", "carry_out", "prepaid_carry_in", "prepaid_carry_out",
    "corrects", "content", "sha256", "drafted_at", "finalized_at",
)  # fmt: skip
"""The columns that never change once an invoice is finalized."""


def upgrade() -> None:
    for name in ("advance_tax", "drawn"):
        op.add_column("invoice", sa.Column(name, COUNT, nullable=False, server_default=sa.text("0")))
    op.add_column("invoice", sa.Column("deferred_pico", PICO, nullable=False, server_default=sa.text("0")))
    postgres = op.get_bind().dialect.name == "postgresql"
    if postgres:
        op.drop_constraint(op.f("ck_invoice_kind"), "invoice")
        op.create_check_constraint(op.f("ck_invoice_kind"), "invoice", f"kind IN ({KINDS})")
        for side in ("debit", "credit"):
            op.drop_constraint(op.f(f"ck_ledger_entry_{side}"), "ledger_entry")
            op.create_check_constraint(op.f(f"ck_ledger_entry_{side}"), "ledger_entry", f"{side} IN ({ACCOUNTS})")
    else:
        op.execute("PRAGMA defer_foreign_keys = ON")
        _rebuild("invoice", f"({OLD_KINDS})", f"({KINDS})")
        _rebuild("ledger_entry", OLD_ACCOUNTS, ACCOUNTS)
    op.create_table(
        TABLE,
        *(sa.Column(name, ID, nullable=False) for name in ("invoice_id", "tenant_id", "advance_id")),
        sa.Column("n", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("exact_pico", PICO, nullable=False),
        *(sa.Column(name, COUNT, nullable=False) for name in ("net", "tax")),
        sa.PrimaryKeyConstraint("invoice_id", "n", name="pk_advance_deduction"),
        *(
            sa.ForeignKeyConstraint([name], ["invoice.id"], name=f"fk_advance_deduction_{name}_invoice")
            for name in ("invoice_id", "advance_id")
        ),
        sqlite_strict=True,
    )
    op.create_index("ix_advance_deduction_advance_id", TABLE, ["advance_id"])
    if postgres:
        _protect_postgresql()
    else:
        _protect_sqlite()


def _rebuild(table: str, old: str, new: str) -> None:
    """Make a table anew on SQLite with other values in a check, and its indexes and triggers as they were.

    References to it are checked at the end of the transaction, when its rows are there again.
    """
    connection = op.get_bind()
    query = "SELECT type, sql FROM sqlite_schema WHERE tbl_name = ? AND sql IS NOT NULL AND type <> 'view'"
    made = connection.exec_driver_sql(query, (table,)).all()
    ((create,), others) = [sql for kind, sql in made if kind == "table"], [sql for kind, sql in made if kind != "table"]
    if old not in create:
        raise RuntimeError(f"the table {table} is not as the migration before left it")
    connection.exec_driver_sql(f"CREATE TABLE {table}_before AS SELECT * FROM {table}")  # noqa: S608  # constants
    connection.exec_driver_sql(f"DROP TABLE {table}")
    connection.exec_driver_sql(create.replace(old, new))
    connection.exec_driver_sql(f"INSERT INTO {table} SELECT * FROM {table}_before")  # noqa: S608  # constants
    connection.exec_driver_sql(f"DROP TABLE {table}_before")
    for sql in others:
        connection.exec_driver_sql(sql)


def _protect_postgresql() -> None:
    same = " AND ".join(f"NEW.{name} IS NOT DISTINCT FROM OLD.{name}" for name in FINAL)
    op.execute(f"""
        CREATE OR REPLACE FUNCTION keep_invoice() RETURNS trigger LANGUAGE plpgsql AS $$
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
        CREATE FUNCTION keep_advance_deduction() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE deduction advance_deduction;
        BEGIN
            IF TG_OP = 'INSERT' THEN deduction := NEW; ELSE deduction := OLD; END IF;
            IF TG_OP <> 'UPDATE'
                AND EXISTS (SELECT 1 FROM invoice WHERE id = deduction.invoice_id AND state = 'draft') THEN
                RETURN deduction;
            END IF;
            RAISE EXCEPTION 'what invoice % deducts is immutable', deduction.invoice_id;
        END $$
    """)
    op.execute(
        f"CREATE TRIGGER immutable BEFORE INSERT OR UPDATE OR DELETE ON {TABLE} "
        "FOR EACH ROW EXECUTE FUNCTION keep_advance_deduction()"
    )
    op.execute(
        f"CREATE TRIGGER no_truncate BEFORE TRUNCATE ON {TABLE} FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )


def _protect_sqlite() -> None:
    same = " AND ".join(f"NEW.{name} IS OLD.{name}" for name in FINAL)
    op.execute("DROP TRIGGER immutable_invoice_update")
    op.execute(
        "CREATE TRIGGER immutable_invoice_update BEFORE UPDATE ON invoice "
        f"WHEN OLD.state <> 'draft' AND NOT (NEW.state <> 'draft' AND {same}) "
        "BEGIN SELECT RAISE(ABORT, 'invoice is immutable'); END"
    )
    drafted = "EXISTS (SELECT 1 FROM invoice WHERE id = {row}.invoice_id AND state = 'draft')"
    for verb, when in (
        ("INSERT", f"NOT {drafted.format(row='NEW')}"),
        ("UPDATE", "TRUE"),
        ("DELETE", f"NOT {drafted.format(row='OLD')}"),
    ):
        op.execute(
            f"CREATE TRIGGER immutable_{TABLE}_{verb.lower()} BEFORE {verb} ON {TABLE} WHEN {when} "
            f"BEGIN SELECT RAISE(ABORT, '{TABLE} is immutable'); END"
        )


def downgrade() -> None:
    raise RuntimeError("advance-payment invoices cannot be said in the earlier schema: restore a backup")
