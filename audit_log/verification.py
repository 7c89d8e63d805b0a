"""Verifying the audit log: every entry says what it said, none is missing, new or elsewhere, and no end is cut off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.anchors import ANCHORED, Witness, digest
from audit_log.leaf_forms import FORMS, first_head, next_head
from audit_log.tables import PLATFORM, audit_anchor, audit_chain, audit_entry

_CHUNK = 1000

ALTERED = "an audit entry was altered"
MISPLACED = "an audit entry does not follow from the one before"
MISSING = "an audit entry is missing"
NEW = "an audit entry was never recorded"
CUT_OFF = "the audit log does not end where it did"
ANCHOR = "an anchor of the audit log was altered"

Progress = Callable[[int], None]
"""Called now and then with how many entries were read."""
Observe = Callable[[Mapping[Any, Any]], None]
"""Called with each entry, in the order of its chain."""


class LogFinding(msgspec.Struct, frozen=True):
    """What is wrong with the log: `what` is one of the texts above, the tenant whose chain it is (PLATFORM: the
    platform's), and which of its entries; None: not one of them."""

    what: str
    tenant_id: UUID
    number: int | None
    detail: str


class ChainEnd(msgspec.Struct, frozen=True):
    """Where a chain ends: how many entries it has, the head after the last, up to which entry it is anchored, and of
    how many entries it was looked at whether each says what it said and follows from the one before."""

    entries: int
    head: bytes
    anchored: int
    checked: int
    findings: list[LogFinding]


class _End(msgspec.Struct):
    """Where the walk is in a chain."""

    number: int
    head: bytes


async def verify_log(
    session: AsyncSession,
    progress: Progress = lambda _entries: None,
    witness: Witness | None = None,
    observe: Observe = lambda _entry: None,
) -> list[LogFinding]:
    """Read the whole log, in a session that sees one snapshot, and return what is wrong with it.

    `witness`: what the head after one of the platform's entries was, kept elsewhere. `observe` sees each entry.
    """
    findings: list[LogFinding] = []
    ends: dict[UUID, _End] = {}
    # all tenants: the log is verified as a whole
    entries = select(audit_entry).order_by(audit_entry.c.tenant_id, audit_entry.c.number)
    read = 0
    stream = await session.stream(entries.execution_options(yield_per=_CHUNK))
    async for rows in stream.mappings().partitions(_CHUNK):
        for row in rows:
            end = ends.setdefault(row["tenant_id"], _End(0, first_head(row["tenant_id"])))
            findings += _follow(end, row)
            observe(row)
        read += len(rows)
        progress(read)
    findings += await _check_ends(session, ends)
    findings += await _check_anchors(session)
    if witness is not None:
        findings += await check_witness(session, witness)
    return findings


async def check_end(session: AsyncSession, tenant_id: UUID, most: int = _CHUNK) -> ChainEnd:
    """Where a tenant's chain ends (PLATFORM: the platform's), with its last entries verified, at most `most` of them,
    in a session that sees one snapshot. The whole log is for `verify_log`."""
    chain, entry, anchor = audit_chain.c, audit_entry.c, audit_anchor.c
    said = (await session.execute(select(chain.entries, chain.head).where(chain.tenant_id == tenant_id))).one_or_none()
    length, head = (0, first_head(tenant_id)) if said is None else said
    end = _End(max(0, length - most), first_head(tenant_id))
    if end.number:
        before = select(entry.head).where(entry.tenant_id == tenant_id, entry.number == end.number)
        end.head = await session.scalar(before) or b""
    start, findings = end.number, list[LogFinding]()
    rows = select(audit_entry).where(entry.tenant_id == tenant_id, entry.number > start).order_by(entry.number)
    for row in (await session.execute(rows.limit(most + 1))).mappings():
        findings += _follow(end, row)
    findings += _compare_ends(tenant_id, _End(length, head), end)
    anchored = await session.scalar(select(func.max(anchor.entries)).where(anchor.tenant_id == tenant_id))
    return ChainEnd(length, head, anchored or 0, length - start, findings)


def _follow(end: _End, row: Mapping[Any, Any]) -> list[LogFinding]:
    """Compare the next entry of a chain with its leaf and with the entry before."""
    tenant, number, form = row["tenant_id"], row["number"], FORMS.get(row["form"])
    findings = [LogFinding(MISSING, tenant, gone, "the entries around it are there") for gone in _gap(end, number)]
    follows = bool(findings) or next_head(end.head, row["leaf"]) == row["head"]
    if form is None or form.leaf(row) != row["leaf"]:
        findings.append(LogFinding(ALTERED, tenant, number, "it does not say what it said when it was recorded"))
    elif not follows:
        findings.append(LogFinding(MISPLACED, tenant, number, f"its head does not follow from entry {end.number}'s"))
    end.number, end.head = number, row["head"]
    return findings


_MOST_NAMED = 100
"""Missing entries that are named one by one, of each gap."""


def _gap(end: _End, number: int) -> range:
    return range(end.number + 1, min(number, end.number + 1 + _MOST_NAMED))


async def _check_ends(session: AsyncSession, ends: Mapping[UUID, _End]) -> list[LogFinding]:
    """Each chain ends where `audit_chain` says."""
    # all tenants: the log is verified as a whole
    said = {row.tenant_id: _End(row.entries, row.head) for row in await session.execute(select(audit_chain))}
    findings: list[LogFinding] = []
    for tenant in sorted(said.keys() | ends.keys()):
        nothing = _End(0, first_head(tenant))
        findings += _compare_ends(tenant, said.get(tenant, nothing), ends.get(tenant, nothing))
    return findings


def _compare_ends(tenant: UUID, was: _End, found: _End) -> list[LogFinding]:
    """Compare where a chain ends with where `audit_chain` says that it did."""
    gone, new = _gap(found, was.number + 1), _gap(was, found.number + 1)
    findings = [LogFinding(MISSING, tenant, number, f"the log has {was.number} entries") for number in gone]
    findings += [LogFinding(NEW, tenant, number, f"the log ends with entry {was.number}") for number in new]
    if was.number == found.number and was.head != found.head:
        findings.append(LogFinding(CUT_OFF, tenant, found.number, "the head after its last entry is another"))
    return findings


async def _check_anchors(session: AsyncSession) -> list[LogFinding]:
    """Compare anchors with the platform's chain, which recorded each, and with the chains.

    An anchor must be what was recorded. Each chain must still have the head that the anchor has for its entry.
    """
    anchor, entry = audit_anchor.c, audit_entry.c
    # all tenants: the log is verified as a whole
    there = and_(entry.tenant_id == anchor.tenant_id, entry.number == anchor.entries)
    differ = select(anchor.tenant_id, anchor.entries, anchor.anchor).outerjoin(audit_entry, there)
    differ = differ.where(or_(entry.head.is_(None), entry.head != anchor.head)).order_by(*audit_anchor.primary_key)
    findings = [
        LogFinding(CUT_OFF, row.tenant_id, row.entries, f"anchor {row.anchor} has another head after this entry")
        for row in await session.execute(differ)
    ]
    recorded = select(entry.number, entry.target_id, entry.after).where(
        entry.tenant_id == PLATFORM, entry.action == ANCHORED
    )
    known = {row.target_id: row for row in await session.execute(recorded)}
    digests = await _digests(session)
    for name in sorted(known.keys() | digests.keys(), key=lambda name: (len(name), name)):
        row = known.get(name)
        if row is None:
            findings.append(LogFinding(ANCHOR, PLATFORM, None, f"no entry has recorded anchor {name}"))
        elif _said(row.after) != digests.get(name, digest(())):
            findings.append(LogFinding(ANCHOR, PLATFORM, row.number, f"anchor {name} is not what it was"))
    return findings


async def _digests(session: AsyncSession) -> dict[str, str]:
    """The digest of each anchor's rows, by its name: all anchors are read in one pass."""
    # all tenants: the log is verified as a whole
    query = select(audit_anchor).order_by(audit_anchor.c.anchor).execution_options(yield_per=_CHUNK)
    digests: dict[str, str] = {}
    number, rows = 0, list[Mapping[Any, Any]]()
    async for row in (await session.stream(query)).mappings():
        if row["anchor"] != number and rows:
            digests[str(number)] = digest(rows)
            rows = []
        number = row["anchor"]
        rows.append(row)
    if rows:
        digests[str(number)] = digest(rows)
    return digests


def _said(after: str | None) -> str | None:
    try:
        said: str = msgspec.json.decode(after or "{}").get("sha256")
    except (msgspec.DecodeError, AttributeError):
        return None
    return said


async def check_witness(session: AsyncSession, witness: Witness) -> list[LogFinding]:
    """What is wrong if the head after the platform's entry is not that of the witness."""
    entry = audit_entry.c
    query = select(entry.head).where(entry.tenant_id == PLATFORM, entry.number == witness.number)
    if await session.scalar(query) == witness.head:
        return []
    return [LogFinding(CUT_OFF, PLATFORM, witness.number, "the witness has another head after this entry")]
