"""Anchors: now and then the platform's chain takes up where every tenant's chain ends.

Whoever cuts off the end of a tenant's chain, and sets its last head back, must so rewrite the platform's chain too. Its
head after an anchor is therefore a witness for the whole log: `Witness.text` is short enough to be kept elsewhere, such
as in the logs of the workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import msgspec
from sqlalchemy import func, insert, select
from sqlalchemy.exc import IntegrityError

from audit_log.record import record_change
from audit_log.tables import PLATFORM, audit_anchor, audit_chain, audit_entry
from storage.database.database import Database
from storage.reported_error import ReportedError

ANCHORED = "audit.anchored"
_MOST_CHAINS = 10_000
"""Chains of one anchor; the others are in the next."""


class InvalidWitness(ReportedError, ValueError):
    """A witness that is not NUMBER:HEAD."""


class Witness(msgspec.Struct, frozen=True):
    """The head of the platform's chain after one of its entries."""

    number: int
    head: bytes

    @property
    def text(self) -> str:
        """NUMBER:HEAD, the head in hexadecimal."""
        return f"{self.number}:{self.head.hex()}"

    @classmethod
    def parse(cls, text: str) -> Witness:
        """What `text` says. Raises InvalidWitness."""
        number, _, head = text.strip().partition(":")
        try:
            witness = cls(int(number), bytes.fromhex(head))
        except ValueError:
            witness = cls(0, b"")
        if witness.number < 1 or len(witness.head) != sha256().digest_size:
            raise InvalidWitness(f"the witness {text[:100]!r} is not NUMBER:HEAD, the head in hexadecimal")
        return witness


def digest(rows: Iterable[Mapping[Any, Any]]) -> str:
    """The digest of an anchor's rows, in hexadecimal."""
    said = sorted((row["tenant_id"].bytes, row["entries"], row["head"]) for row in rows)
    return sha256(msgspec.msgpack.encode(said)).hexdigest()


async def anchor_chains(database: Database) -> int:
    """Anchor the tenants' chains that have grown since they were anchored last. Returns how many; 0 also if somebody
    else does so now. Raises DatabaseUnavailable, NoActor."""
    anchor, chain = audit_anchor.c, audit_chain.c
    # A probe of the index for each chain: how many anchors there are in all does not matter.
    there = select(anchor.tenant_id).where(anchor.tenant_id == chain.tenant_id, anchor.entries >= chain.entries)
    grown = select(chain.tenant_id, chain.entries, chain.head).where(chain.tenant_id != PLATFORM, ~there.exists())
    try:
        async with database.transaction() as session:
            rows = (await session.execute(grown.limit(_MOST_CHAINS))).mappings().all()
            if not rows:
                return 0
            number = (await session.scalar(select(func.max(anchor.anchor))) or 0) + 1
            await session.execute(insert(audit_anchor), [{"anchor": number, **row} for row in rows])
            after = {"chains": len(rows), "sha256": digest(rows)}
            await record_change(session, ANCHORED, target="audit_anchor", target_id=str(number), after=after)
    except IntegrityError:  # the same number, by another worker
        return 0
    return len(rows)


async def latest_witness(database: Database) -> Witness | None:
    """The witness of the platform's newest entry; None if it has none."""
    entry = audit_entry.c
    newest = select(entry.number, entry.head).where(entry.tenant_id == PLATFORM).order_by(entry.number.desc()).limit(1)
    async with database.reading() as session:
        row = (await session.execute(newest)).one_or_none()
    return None if row is None else Witness(*row)
