"""The tables of the prompt cache."""

from __future__ import annotations

from sqlalchemy import Column, Index, Integer, LargeBinary, Table, Text

from storage.database.base import STRICT, Base, Count, Id

cache_request = Table(
    "cache_request",
    Base.metadata,
    Column("request_id", Id, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("project_id", Id, nullable=False),
    Column("at", Count, nullable=False, index=True),
    Column("first_piece", LargeBinary, nullable=False),
    Column("opening", LargeBinary, nullable=False),
    Column("record", LargeBinary, nullable=False),
    Column("diagnosis", LargeBinary, nullable=False),
    Index(None, "project_id", "opening", "at"),
    Index(None, "project_id", "first_piece", "at"),
    **STRICT,
)
"""What the history keeps of a request (`prompt_cache.history.records`), and why it missed."""

cache_prefix = Table(
    "cache_prefix",
    Base.metadata,
    Column("project_id", Id, primary_key=True),
    Column("key", LargeBinary, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("parent", LargeBinary, nullable=False),
    Column("start_token", Integer, nullable=False),
    Column("hashes", LargeBinary, nullable=False),
    Column("first_request", Id, nullable=False),
    Column("first_at", Count, nullable=False),
    Column("last_request", Id, nullable=False),
    Column("last_at", Count, nullable=False, index=True),
    Index(None, "project_id", "parent", "last_at"),
    **STRICT,
)
"""A piece of the prompts of a project's requests, as hashes of its tokens, once for all requests that begin alike."""

cache_day = Table(
    "cache_day",
    Base.metadata,
    Column("project_id", Id, primary_key=True),
    Column("day", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("cause", Text, primary_key=True),
    Column("currency", Text, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("requests", Count, nullable=False),
    Column("tokens", Count, nullable=False),
    Column("cost_pico", Count, nullable=False),
    **STRICT,
)
"""Sums of missed tokens by cause for a project and a day (UTC, such as 2026-11-22), and what they cost beyond reading
them. The cause `read` has the tokens that were read."""

cache_history_day = Table(
    "cache_history_day",
    Base.metadata,
    Column("project_id", Id, primary_key=True),
    Column("day", Text, primary_key=True),
    Column("tenant_id", Id, nullable=False),
    Column("requests", Count, nullable=False),
    Column("bytes", Count, nullable=False),
    Column("left_out", Count, nullable=False),
    **STRICT,
)
"""How much of a project's requests the history has kept in a day, and how many it left out."""
