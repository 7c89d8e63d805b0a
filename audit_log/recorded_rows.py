"""Rows whose every change is in the audit log: each entry says the digest of the row as the change left it.

A room declares such a table (`RecordedTable`). Whoever changes a row gives `digest_row` to `record_change`, which keeps
it in the entry as `row_sha256`. An audit replays the log, keeps the last digest of each row, and compares the rows with
it: what was altered, inserted or deleted beside the log is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Column, ColumnElement, Table, select, true
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.leaf_forms import FORMS
from audit_log.tables import PLATFORM, audit_entry
from storage.database.public_ids import public_id

ROW_SHA256 = "row_sha256"
"""The field of an entry's `after` that has the digest."""
_IN_JSON = f'"{ROW_SHA256}":'
_encode = msgspec.msgpack.encode


class RecordedTable(msgspec.Struct, frozen=True):
    """A table whose every change is recorded, in entries about a `target`.

    `forms`: the columns that a digest is made of, by its number from 1. A form never changes: when the table gets a
    column, append a form with it; rows are compared in the form of their last entry. `unrecorded` are the other
    columns, each with the reason why it needs no record. `recorded`: which rows need an entry.
    """

    table: Table
    target: str
    forms: tuple[tuple[str, ...], ...]
    unrecorded: Mapping[str, str]
    recorded: ColumnElement[bool] = true()

    @property
    def key(self) -> Column[Any]:
        """The column that identifies a row."""
        (key,) = self.table.primary_key
        return key

    def target_id(self, row: Mapping[Any, Any]) -> str:
        """What entries call the row."""
        identity = row[self.key.name]
        return public_id(self.target, identity) if isinstance(identity, UUID) else str(identity)

    def digest(self, row: Mapping[Any, Any], number: int | None = None) -> str:
        """The digest of a row, in the form of this number or in the current one: "NUMBER:SHA-256"."""
        number = len(self.forms) if number is None else number
        values = [plain_value(row[name]) for name in self.forms[number - 1]]
        return f"{number}:{sha256(_encode([str(self.table.name), number, *values])).hexdigest()}"

    def agrees(self, row: Mapping[Any, Any], digest: str) -> bool:
        """Whether the row is what a digest says."""
        number, _, _ = digest.partition(":")
        known = number.isascii() and number.isdigit() and 0 < int(number) <= len(self.forms)
        return known and self.digest(row, int(number)) == digest


def plain_value(value: Any) -> str | bytes | None:
    """A value as both databases have it: ids as bytes, all numbers as text, since sums have more than 64 bits. Digests
    and seals are made of it, so it never changes."""
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, int | Decimal):
        return str(int(value))
    return value if value is None or isinstance(value, bytes) else str(value)


async def digest_row(session: AsyncSession, recorded: RecordedTable, key: Any) -> str:
    """The digest of a row that this transaction has just written, as it is in the database now."""
    query = select(recorded.table).where(recorded.key == key)
    return recorded.digest((await session.execute(query)).mappings().one())


async def is_recorded(
    session: AsyncSession, recorded: RecordedTable, row: Mapping[Any, Any], tenant_id: UUID | None
) -> bool:
    """Whether the last entry about the row, in this tenant's chain (None: the platform's), is unaltered and agrees with
    it. Whether the chain is whole is for `verify_log`."""
    entry, chain = audit_entry.c, PLATFORM if tenant_id is None else tenant_id
    about = (entry.tenant_id == chain, entry.target == recorded.target, entry.target_id == recorded.target_id(row))
    query = select(audit_entry).where(*about, entry.after.contains(_IN_JSON, autoescape=True))
    last = (await session.execute(query.order_by(entry.number.desc()).limit(1))).mappings().one_or_none()
    if last is None or (form := FORMS.get(last["form"])) is None or form.leaf(last) != last["leaf"]:
        return False
    digest = recorded_digest(last)
    return digest is not None and recorded.agrees(row, digest)


def recorded_digest(entry: Mapping[Any, Any]) -> str | None:
    """The digest of a row that an entry says, if it says one."""
    after = entry["after"]
    if after is None or _IN_JSON not in after:
        return None
    try:
        digest = msgspec.json.decode(after).get(ROW_SHA256)
    except (msgspec.DecodeError, AttributeError):
        return None
    return digest if isinstance(digest, str) else None


class LastDigests:
    """The last digest of each row of some tables, from the entries of the log in the order of their chains."""

    def __init__(self, tables: tuple[RecordedTable, ...]) -> None:
        self._digests: dict[str, dict[str, tuple[str, UUID, int]]] = {table.target: {} for table in tables}

    def replay(self, entry: Mapping[Any, Any]) -> None:
        """Take the next entry of the log."""
        rows = self._digests.get(entry["target"])
        if rows is not None and (digest := recorded_digest(entry)) is not None:
            rows[entry["target_id"]] = (digest, entry["tenant_id"], entry["number"])

    def take(self, target: str, target_id: str) -> str | None:
        """The last digest of a row, which is forgotten here; None if no entry says one."""
        last = self._digests[target].pop(target_id, None)
        return None if last is None else last[0]

    def remaining(self) -> Iterator[tuple[str, UUID, int]]:
        """The rows that were not taken: their public ids, and the chain and number of the last entry about each."""
        for rows in self._digests.values():
            yield from ((target_id, tenant, number) for target_id, (_, tenant, number) in rows.items())
