"""The tables of replicas' journals: which there are, which gateway epochs they may know of, which are lost."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Table, Text

from storage.database.base import STRICT, Base, Count, Pico

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
