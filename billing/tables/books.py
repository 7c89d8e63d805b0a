"""The tables of the books: hash chain and seals, billing periods and what they wait for, reconciliations, what takes
two people, platform settings, and how requests were served.

Triggers on both databases refuse to change batches, seals, closed periods, reconciliations and platform settings.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, Integer, LargeBinary, Table, Text, text

from storage.database.base import STRICT, Base, Count, Id, Pico

usage_batch = Table(
    "usage_batch",
    Base.metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("period", Text, primary_key=True),
    Column("link", Count, primary_key=True, autoincrement=False),
    Column("events", Count, nullable=False),
    Column("entries", LargeBinary, nullable=False),
    Column("root", LargeBinary, nullable=False),
    Column("head", LargeBinary, nullable=False),
    Column("form", Integer, nullable=False, server_default=text("1")),
    CheckConstraint("link > 0", name="link"),
    CheckConstraint("events > 0", name="events"),
    **STRICT,
)
"""A link of a chain: the events that were settled together, and the head after them. Links are numbered from 1.
`form` is that of their leaves (`billing.integrity.leaf_forms`)."""

usage_chain = Table(
    "usage_chain",
    Base.metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("period", Text, primary_key=True),
    Column("links", Count, nullable=False),
    Column("events", Count, nullable=False),
    Column("root", LargeBinary, nullable=False),
    Column("head", LargeBinary, nullable=False),
    **STRICT,
    postgresql_with={"fillfactor": 70},
)
"""Where a chain ends: how many links and events it has, the last link's root, and the head."""

seal = Table(
    "seal",
    Base.metadata,
    Column("kind", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("sha256", LargeBinary, nullable=False),
    Column("form", Integer, nullable=False, server_default=text("1")),
    Column("key", Integer, nullable=False, server_default=text("0")),
    **STRICT,
)
"""The seals of rows that never change, by table and key; `form` says what each is made of (`row_seals.FORMS`), `key` by
which key (`storage.database.keyring`), 0 for none. Append-only: triggers refuse UPDATE and DELETE."""

seal_checkpoint = Table(
    "seal_checkpoint",
    Base.metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("key", Integer, nullable=False),
    Column("at", Count, nullable=False),
    Column("others", Count, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("witness", Text, nullable=False),
    Column("mac", LargeBinary, nullable=False),
    **STRICT,
)
"""Checkpoints (`billing.integrity.seal_checkpoints`): `others` seals were not by the key `key`, and have this digest
together; `witness` is that of the audit log. Append-only: triggers refuse UPDATE and DELETE."""

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

replica_journal = Table(
    "replica_journal",
    Base.metadata,
    Column("journal", Text, primary_key=True),
    Column("replica", Text, nullable=False),
    Column("since", Count, nullable=False),
    Column("seen_at", Count, nullable=False),
    **STRICT,
)
"""The journals that gateways have met. `since`: the epoch of the replica in which the journal began. `seen_at`: when a
gateway was last connected to it, to within a minute: `journals declare-lost` waits for that."""

journal_of_epoch = Table(
    "journal_of_epoch",
    Base.metadata,
    Column("epoch", Text, primary_key=True),
    Column("journal", Text, primary_key=True),
    Column("cleared_at", Count, nullable=True),
    **STRICT,
)
"""The journals that a gateway epoch may have sent requests to: written before the first one is sent, and deleted once
the epoch's holds have ended. `cleared_at`: since when the journal knows nothing more of the epoch, for good."""

journal_loss = Table(
    "journal_loss",
    Base.metadata,
    Column("journal", Text, primary_key=True),
    Column("replica", Text, nullable=False),
    Column("since", Count, nullable=False),
    Column("at", Count, nullable=False),
    Column("author", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("events", Count, nullable=False),
    Column("missing", Count, nullable=False),
    Column("holds", Count, nullable=False),
    Column("held_pico", Pico, nullable=False),
    CheckConstraint("reason <> ''", name="reason"),
    **STRICT,
)
"""Journals that a person declared lost. `events`: how many of its requests were recorded; `missing`: how many of its
numbers no event has; `holds` and `held_pico`: what was reserved for requests that it may have known. Append-only:
triggers refuse UPDATE and DELETE."""

recon_run = Table(
    "recon_run",
    Base.metadata,
    Column("id", Id, primary_key=True),
    Column("period", Text, nullable=False),
    Column("at", Count, nullable=False),
    *(Column(name, Count, nullable=False) for name in ("events", "lost", "doubled", "unconfirmed", "late")),
    Column("drift_pico", Pico, nullable=False),
    Column("report", Text, nullable=False),
    Index(None, "period", "at"),
    **STRICT,
)
"""What a reconciliation of a period found; `report` is a Report as JSON."""

pending_change = Table(
    "pending_change",
    Base.metadata,
    Column("id", Id, primary_key=True),
    *(Column(name, Text, nullable=False) for name in ("kind", "arguments", "summary", "state")),
    Column("tenant_id", Id),
    *(Column(name, Text, nullable=False) for name in ("author", "author_via", "reason")),
    Column("created_at", Count, nullable=False),
    *(Column(name, Text) for name in ("decider", "decider_via", "decision_reason", "result")),
    Column("decided_at", Count),
    Column("author_person", Text),
    Column("sha256", Text),
    Index("ix_pending_change_state_created_at", "state", "created_at"),
    Index(
        "ix_pending_change_sha256",
        "sha256",
        unique=True,
        postgresql_where=text("state = 'pending'"),
        sqlite_where=text("state = 'pending'"),
    ),
    **STRICT,
)
"""A change with its typed arguments as JSON. `state`: pending, approved or withdrawn. `result`: what it made.
`author_person`: who proposed it, by what stays. `sha256`: of what makes two changes the same."""

platform_setting = Table(
    "platform_setting",
    Base.metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    *(Column(name, Text, nullable=False) for name in ("name", "value", "actor", "via", "reason")),
    Column("at", Count, nullable=False),
    **STRICT,
)
"""What operators set for the whole platform; of several rows with one name the last applies."""

service_hour = Table(
    "service_hour",
    Base.metadata,
    Column("tenant_id", Id, primary_key=True),
    Column("hour", Count, primary_key=True, autoincrement=False),
    Column("project_id", Id, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("lane", Text, primary_key=True),
    Column("measure", Text, primary_key=True),
    Column("bucket", Integer, primary_key=True, autoincrement=False),
    Column("requests", Count, nullable=False),
    Index(None, "hour"),
    **STRICT,
)
"""Histograms of the requests admitted in an hour (its first instant): how many of them took as long as `bucket` of
`billing.service_levels.histograms` says, from admission to the first token (`measure` `first_token`), in a replica's
queue (`queue`), or in all (`ok`, `cancelled`, `failed`, as they ended).

Gateways count them in memory and add them up here every few seconds, beside the requests: what was counted since then
is lost with a gateway that dies. Nothing is billed by them.
"""
