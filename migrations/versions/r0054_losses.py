"""Accounts of losses, and a state of invoices that credit notes took back whole."""

from __future__ import annotations

from alembic import op

revision = "r0054"
down_revision = "r0053"
branch_labels = None
depends_on = None

OLD_ACCOUNTS = (
    "'breakage', 'charges', 'clearing', 'credited', 'goodwill', 'invoiced', 'prepaid', 'promo', 'receivable', "
    "'restricted', 'revenue', 'rounding_carry', 'tax'"
)
ACCOUNTS = (
    "'bad_debt', 'breakage', 'charges', 'clearing', 'credited', 'goodwill', 'invoiced', 'prepaid', 'promo', "
    "'receivable', 'restricted', 'revenue', 'rounding_carry', 'tax', 'tax_relief', 'written_off'"
)
OLD_STATES = "'draft', 'finalized', 'partially_paid', 'paid', 'void', 'uncollectible'"
STATES = "'draft', 'finalized', 'partially_paid', 'paid', 'credited', 'void', 'uncollectible'"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        for table, name, column, values in (
            ("ledger_entry", "debit", "debit", ACCOUNTS),
            ("ledger_entry", "credit", "credit", ACCOUNTS),
            ("invoice", "state", "state", STATES),
        ):
            constraint = op.f(f"ck_{table}_{name}")
            op.drop_constraint(constraint, table)
            op.create_check_constraint(constraint, table, f"{column} IN ({values})")
    else:
        op.execute("PRAGMA defer_foreign_keys = ON")
        _rebuild("ledger_entry", OLD_ACCOUNTS, ACCOUNTS)
        _rebuild("invoice", OLD_STATES, STATES)
    op.execute(
        "UPDATE invoice SET state = 'credited' "
        "WHERE kind = 'invoice' AND state = 'paid' AND gross > 0 AND credited = gross"
    )


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


def downgrade() -> None:
    raise RuntimeError("losses cannot be said in the earlier schema: restore a backup")
