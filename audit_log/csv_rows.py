"""The audit log as CSV: a row an entry, safe for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from datetime import UTC

from audit_log.reading import Entry
from storage.database.base import from_instant
from storage.free_text import safe_cell

COLUMNS = (
    *("at", "number", "tenant", "project", "action", "target", "target_id"),
    *("actor_means", "actor_id", "actor_name", "actor_through", "actor_address", "request_id"),
    *("reason", "before", "after"),
)
MEDIA_TYPE = "text/csv; charset=utf-8; header=present"
"""To be sent as a header: as a media type it would get a second charset."""


def format_at(at: int) -> str:
    """An instant as RFC 3339 has it, with its microseconds."""
    return from_instant(at).astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def header() -> str:
    """The first line."""
    return _text([COLUMNS])


def lines(entries: Iterable[Entry]) -> str:
    """A line for each of these entries."""
    return _text(_row(entry) for entry in entries)


def _row(entry: Entry) -> list[str]:
    actor = entry.actor
    owners = ("" if owner is None else str(owner) for owner in (entry.tenant_id, entry.project_id))
    texts = (
        *owners,
        *(entry.action, entry.target, entry.target_id),
        *(actor.means, actor.id, actor.name, actor.through, actor.address, actor.request_id),
        *(entry.reason, entry.before or "", entry.after or ""),
    )
    return [format_at(entry.at), str(entry.number), *map(safe_cell, texts)]


def _text(rows: Iterable[Iterable[str]]) -> str:
    file = io.StringIO()
    csv.writer(file).writerows(rows)
    return file.getvalue()
