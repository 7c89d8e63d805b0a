"""The tables of webhooks: endpoints, deliveries, and the attempts at each delivery."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, ForeignKey, Index, Integer, LargeBinary, Table, Text, text

from storage.database.base import STRICT, Base, Count, Id

webhook_endpoint = Table(
    "webhook_endpoint",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False, index=True),
    Column("url", Text, nullable=False),
    Column("topics", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("secret", LargeBinary, nullable=False),
    Column("previous_secret", LargeBinary, nullable=True),
    Column("previous_until", Count, nullable=True),
    Column("created_at", Count, nullable=False),
    CheckConstraint("state IN ('enabled', 'disabled', 'removed')", name="state"),
    **STRICT,
)
"""`topics` are patterns separated by commas. Secrets are encrypted (`webhooks.signing.SecretCipher`). A removed
endpoint has none, and its row stays for its deliveries."""

webhook_delivery = Table(
    "webhook_delivery",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("endpoint_id", Id, ForeignKey("webhook_endpoint.id"), nullable=False),
    Column("event_id", Id, nullable=False),
    Column("topic", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("created_at", Count, nullable=False),
    Column("due_since", Count, nullable=False),
    Column("next_at", Count, nullable=False),
    Column("leased_until", Count, nullable=False),
    Column("finished_at", Count, nullable=True),
    Column("status", Integer, nullable=True),
    Column("error", Text, nullable=False),
    CheckConstraint("state IN ('pending', 'delivered', 'failed')", name="state"),
    Index(None, "endpoint_id", "event_id", unique=True),
    Index(None, "tenant_id", "id"),
    Index(
        "ix_webhook_delivery_pending",
        "next_at",
        sqlite_where=text("state = 'pending'"),
        postgresql_where=text("state = 'pending'"),
    ),
    **STRICT,
)
"""One message for one endpoint, at most once each. `due_since` is when attempts began, `next_at` when the next is due;
until `leased_until` a worker holds the row. `status` and `error` are those of the last attempt."""

webhook_attempt = Table(
    "webhook_attempt",
    Base.metadata,
    Column("delivery_id", Id, ForeignKey("webhook_delivery.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("at", Count, nullable=False),
    Column("status", Integer, nullable=True),
    Column("error", Text, nullable=False),
    Column("milliseconds", Integer, nullable=False),
    **STRICT,
)
