"""The tables of prices and rating: books, sheets and versions of prices, contract terms, storage by the hour."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, ForeignKey, Index, Integer, Table, Text, UniqueConstraint, text

from storage.database.base import STRICT, Base, Count, Id

price_version = Table(
    "price_version",
    Base.metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("model", Text, nullable=False),
    Column("currency", Text, nullable=False),
    Column("effective_at", Count, nullable=False),
    Column("created_at", Count, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("formula", Integer, nullable=False, server_default=text("1")),
    Index(None, "model", "effective_at"),
    **STRICT,
)
"""A snapshot that holds and events refer to: from it alone a cost recomputes."""

price = Table(
    "price",
    Base.metadata,
    Column("version", Integer, ForeignKey("price_version.id"), primary_key=True, autoincrement=False),
    Column("meter", Text, primary_key=True),
    Column("lane", Text, primary_key=True),
    Column("context_from", Count, primary_key=True, autoincrement=False),
    Column("price_micro", Count, nullable=False),
    CheckConstraint("price_micro >= 0", name="not_negative"),
    **STRICT,
)

price_book = Table(
    "price_book",
    Base.metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", Text, nullable=False),
    Column("currency", Text, nullable=False),
    Column("base", Integer, ForeignKey("price_book.id"), nullable=True),
    Column("tenant_id", Id, nullable=True),
    Column("created_at", Count, nullable=False),
    UniqueConstraint("name"),
    Index(None, "tenant_id"),
    CheckConstraint("(base IS NULL) = (tenant_id IS NULL)", name="tenants_have_a_base"),
    **STRICT,
)
"""A base book, or a tenant's, which falls back to its base. The newest of a tenant is in force."""

price_sheet = Table(
    "price_sheet",
    Base.metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("book", Integer, ForeignKey("price_book.id"), nullable=False),
    Column("model", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("effective_at", Count, nullable=True),
    Column("effective_until", Count, nullable=True),
    Column("author", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("forced", Text, nullable=True),
    Column("created_at", Count, nullable=False),
    Column("sha256", Text, nullable=False),
    CheckConstraint("kind IN ('whole', 'overrides')", name="kind"),
    CheckConstraint("effective_until > effective_at", name="interval"),
    Index(None, "book", "model"),
    **STRICT,
)
"""The prices of one model in one book, as somebody wrote them; without `effective_at` they apply once approved.
`forced` is why prices that the guards find unusual are meant."""

price_row = Table(
    "price_row",
    Base.metadata,
    Column("sheet", Integer, ForeignKey("price_sheet.id"), primary_key=True, autoincrement=False),
    Column("meter", Text, primary_key=True),
    Column("lane", Text, primary_key=True),
    Column("context_from", Count, primary_key=True, autoincrement=False),
    Column("price_micro", Count, nullable=False),
    CheckConstraint("price_micro >= 0", name="not_negative"),
    CheckConstraint("context_from >= 0", name="context_from"),
    **STRICT,
)

price_interval = Table(
    "price_interval",
    Base.metadata,
    Column("sheet", Integer, ForeignKey("price_sheet.id"), primary_key=True, autoincrement=False),
    Column("book", Integer, ForeignKey("price_book.id"), nullable=False),
    Column("model", Text, nullable=False),
    Column("effective_at", Count, nullable=False),
    Column("effective_until", Count, nullable=True),
    CheckConstraint("effective_until > effective_at", name="interval"),
    Index(
        "ix_price_interval_standing",
        "book",
        "model",
        "effective_at",
        unique=True,
        sqlite_where=text("effective_until IS NULL"),
        postgresql_where=text("effective_until IS NULL"),
    ),
    **STRICT,
)
"""When an approved sheet applies. A standing one (without an end) applies until the next standing one begins; a
temporary one comes before it while it lasts, and no two of these overlap."""

price_change = Table(
    "price_change",
    Base.metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("sheet", Integer, ForeignKey("price_sheet.id"), nullable=False),
    Column("action", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Count, nullable=False),
    Column("before_sha256", Text, nullable=False),
    Column("after_sha256", Text, nullable=False),
    Column("via", Text, nullable=False, server_default=text("''")),
    CheckConstraint("action IN ('draft', 'approve', 'set', 'withdraw')", name="action"),
    UniqueConstraint("sheet", "action"),
    **STRICT,
)
"""Who did what to a sheet, when and why, and how it is known that they did (`via`: the operating system's user of a
command, or a key); the hashes of the prices that it changes from and to."""

price_resolution = Table(
    "price_resolution",
    Base.metadata,
    Column("sheet", Integer, ForeignKey("price_sheet.id"), primary_key=True, autoincrement=False),
    Column("base_sheet", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, ForeignKey("price_version.id"), nullable=False),
    **STRICT,
)
"""Which version a sheet makes: alone (`base_sheet` is 0), or laid over a sheet of the base book."""

contract_terms = Table(
    "contract_terms",
    Base.metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("tenant_id", Id, nullable=False),
    Column("from_period", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("author", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", Count, nullable=False),
    Index(None, "tenant_id", "from_period"),
    **STRICT,
)
"""All terms of a tenant from a period on, as JSON, until other terms begin; of two from the same, the later row."""

storage_event = Table(
    "storage_event",
    Base.metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("period", Text, primary_key=True),
    Column("hour", Count, primary_key=True, autoincrement=False),
    Column("project_id", Id, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("price_version", Integer, nullable=False),
    Column("token_seconds", Count, nullable=False),
    Column("cost_pico", Count, nullable=False),
    Index(None, "tenant_id", "hour", "project_id", "model", unique=True),
    CheckConstraint("token_seconds >= 0", name="token_seconds"),
    CheckConstraint("cost_pico >= 0", name="cost_pico"),
    **STRICT,
)
"""What a project had stored of one model in one hour (its first instant), and what that costs. `period` is the billing
period that it is booked in: its own, or, if that had closed, a later one."""

residency_event = Table(
    "residency_event",
    Base.metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("period", Text, primary_key=True),
    Column("hour", Count, primary_key=True, autoincrement=False),
    Column("project_id", Id, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("price_version", Integer, nullable=False),
    Column("millihours", Count, nullable=False),
    Column("cost_pico", Count, nullable=False),
    Index(None, "tenant_id", "hour", "project_id", "model", unique=True),
    CheckConstraint("millihours >= 0", name="millihours"),
    CheckConstraint("cost_pico >= 0", name="cost_pico"),
    **STRICT,
)
"""How long replicas kept a project's adapter ready in one hour, in thousandths of an hour and added up over replicas,
and what that costs. `model` is what requests ask for; the rest as in `storage_event`."""
