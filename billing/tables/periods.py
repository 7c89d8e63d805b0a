"""The tables of billing periods, and of the gateways that they wait for. A closed period's row never changes again:
triggers see to it on both databases."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, LargeBinary, Table, Text, text

from storage.database.base import STRICT, Base, Count

ATTEMPTS_LOCK = 7_233_104_875
"""PostgreSQL's advisory lock: taken by who settles an attempt that may be recorded as lost as well. Few do."""
NAMES_LOCK = 7_233_104_874
"""PostgreSQL's advisory lock: taken by a gateway worker while it takes its name."""
CLOSING_LOCK = 7_233_104_873
"""PostgreSQL's advisory lock: shared by all who book in periods, alone by who closes one. Its queue is fair, and unlike
a lock of the period's row it writes nothing."""

billing_period = Table(
    "billing_period",
    Base.metadata,
    Column("period", Text, primary_key=True),
    Column("starts_at", Count, nullable=False),
    Column("ends_at", Count, nullable=False),
    Column("state", Text, nullable=False),
    Column("closed_at", Count, nullable=True),
    Column("root", LargeBinary, nullable=True),
    CheckConstraint("state IN ('open', 'closing', 'closed')", name="state"),
    CheckConstraint("(state = 'closed') = (closed_at IS NOT NULL)", name="closed_at"),
    CheckConstraint("starts_at < ends_at", name="order"),
    **STRICT,
)
"""A month in UTC, by the database's clock. `closing` has ended and waits for the last usage; a period without a row is
open. `root` is the digest of what it held when it closed."""

gateway_epoch = Table(
    "gateway_epoch",
    Base.metadata,
    Column("epoch", Text, primary_key=True),
    Column("gateway", Text, nullable=False),
    Column("started_at", Count, nullable=False),
    Column("seen_at", Count, nullable=False),
    Column("watermark", Count, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("folder", Text, nullable=False, server_default=text("''")),
    Column("holds_ended_at", Count, nullable=True),
    CheckConstraint("state IN ('live', 'ended', 'dead')", name="state"),
    **STRICT,
)
"""One run of a gateway worker: no event that waits in its spool was admitted before `watermark`. `ended`: its spool is
drained; `dead`: somebody said so, and why. `folder`: the identity of its data folder. `holds_ended_at`: since when none
of its holds is open any more, and no journal knows anything of it."""
