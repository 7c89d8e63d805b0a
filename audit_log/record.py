"""Records a change in the transaction that makes it: an entry of the audit log, which continues a hash chain.

A transaction's entries are written when all else in it is done. So the locks of the chains are the last that it takes,
in the order of the tenants' ids (the platform's is first): whoever holds one waits for nothing but other chains behind
it, and nobody deadlocks. A chain is locked for as long as its entries and the commit take.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import Any
from uuid import UUID

from msgspec import Struct, json, to_builtins
from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.actors import Actor, current_actor
from audit_log.leaf_forms import CURRENT, first_head, next_head
from audit_log.recorded_rows import ROW_SHA256
from audit_log.tables import PLATFORM, audit_chain, audit_entry
from storage.database.database import Database
from storage.database.public_ids import public_id, with_public_ids

MOST_TEXT = 4_096
"""Characters of a reason, a name or an id in an entry; the rest is cut off."""
MOST_BYTES = 65_536
"""Of `before` and of `after`, as JSON; of what is longer, the entry has the digest and the length."""
_PENDING = "audit entries"


class _Change(Struct, frozen=True):
    """What a transaction is to record when it ends."""

    tenant_id: UUID
    values: dict[str, Any]


async def record_change(
    session: AsyncSession,
    action: str,
    *,
    target: str,
    target_id: UUID | str,
    tenant_id: UUID | None = None,
    project_id: UUID | None = None,
    reason: str = "",
    before: Any = None,
    after: Any = None,
    row_sha256: str | None = None,
) -> None:
    """Record, in this transaction, that the current actor did `action` (such as "key.revoked") to a target.

    `target`: its kind, such as "key"; `target_id`: its public id, or the id that one is made of. `tenant_id`: whose it
    is; None: the platform's. `before` and `after`: what msgspec can encode, without secrets; None where the target did
    not exist; ids in fields such as `project_id` get their public form. They are read now, and written when the
    transaction is about to commit. `row_sha256`: the digest of the target's row after it (`audit_log.recorded_rows`),
    kept in `after`. The session must be one of `Database.transaction`. Raises NoActor.
    """
    if isinstance(target_id, UUID):
        target_id = public_id(target, target_id)
    change = _Change(
        PLATFORM if tenant_id is None else tenant_id,
        {
            **_actor_columns(current_actor()),
            **{"action": action, "target": target, "target_id": _text(target_id), "project_id": project_id},
            **{"reason": _text(reason), "before": encoded(before), "after": encoded(after, row_sha256)},
        },
    )
    pending: list[_Change] | None = session.info.get(_PENDING)
    if pending is None:
        pending = session.info[_PENDING] = []
        Database.before_commit(session, partial(_write, session, pending))
    pending.append(change)


def _actor_columns(actor: Actor) -> dict[str, str]:
    return {
        "actor_means": actor.means,
        "actor_id": _text(actor.id),
        "actor_name": _text(actor.name),
        "actor_through": _text(actor.through),
        "actor_address": _text(actor.address),
        "request_id": _text(actor.request_id),
    }


def _text(value: str) -> str:
    """What both databases can keep: no NUL, no lone surrogates, not too long."""
    return value.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")[:MOST_TEXT]


def encoded(value: Any, row_sha256: str | None = None) -> str | None:
    """JSON with sorted keys and no spaces, so that equal values have equal texts; None for None. Raises TypeError."""
    if value is None:
        return None
    plain = with_public_ids(to_builtins(value, enc_hook=_plain, str_keys=True))
    text = json.encode(plain, order="sorted")
    if len(text) > MOST_BYTES:
        plain = {"bytes": len(text), "sha256": sha256(text).hexdigest()}
    if row_sha256 is not None:
        plain[ROW_SHA256] = row_sha256
    return json.encode(plain, order="sorted").decode()


def _plain(value: Any) -> str | int:
    if isinstance(value, UUID):  # the driver's class of ids
        return str(value)
    if isinstance(value, int):  # such as an instant that a route has read
        return int(value)
    raise TypeError(f"the audit log cannot keep a {type(value).__name__}")


async def _write(session: AsyncSession, pending: list[_Change]) -> None:
    """Write the entries, each chain's together."""
    chains: dict[UUID, list[_Change]] = {}
    for change in pending:
        chains.setdefault(change.tenant_id, []).append(change)
    for tenant_id in sorted(chains):
        await _continue(session, tenant_id, chains[tenant_id])


async def _continue(session: AsyncSession, tenant_id: UUID, changes: list[_Change]) -> None:
    """Lock the end of a chain, which this may begin, and append to it."""
    database = Database.of(session)
    start = {"tenant_id": tenant_id, "entries": 0, "head": first_head(tenant_id)}
    locking = database.insert(audit_chain).values(start)
    unchanged = {"entries": audit_chain.c.entries}
    locking = locking.on_conflict_do_update(index_elements=["tenant_id"], set_=unchanged)
    # The clock is read behind the lock, so that a chain's instants do not go back.
    ending = locking.returning(audit_chain.c.entries, audit_chain.c.head, database.clock.label("at"))
    number, head, at = (await session.execute(ending)).one()
    rows = []
    for change in changes:
        number += 1
        row = {"tenant_id": tenant_id, "number": number, "at": at, **change.values, "form": CURRENT.number}
        leaf = CURRENT.leaf(row)
        head = next_head(head, leaf)
        rows.append({**row, "leaf": leaf, "head": head})
    await session.execute(insert(audit_entry), rows)
    mine = audit_chain.c.tenant_id == tenant_id
    await session.execute(update(audit_chain).where(mine).values(entries=number, head=head))
