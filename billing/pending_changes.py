"""Changes that take a second person: proposed here by whatever would make them, and kept until somebody decides.

While the platform's approvals are on, whoever would make such a change calls `propose_if_needed` before it writes. If
the change takes two, it is stored with its typed arguments, and `ChangePending` ends the call. `billing.approvals`
makes it when another person approves, with its checks run anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Literal, NoReturn, TypeAlias
from uuid import UUID

import msgspec
from msgspec import Struct
from sqlalchemy import RowMapping, literal_column, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.actors import Actor, are_two_people, current_actor
from audit_log.record import record_change
from audit_log.recorded_rows import is_recorded
from billing.integrity.recorded_tables import CHANGES
from billing.money import parse_amount
from billing.platform_settings import APPROVALS, GRANT_OVER, value_of
from billing.tables.books import pending_change
from storage.database.base import new_id
from storage.database.database import Database
from storage.free_text import REASON, check_text
from storage.reported_error import ReportedError

PREFIX = "change_"
_MOST_ARGUMENTS = 32_768
"""Characters of arguments that an entry repeats; of longer ones it has the digest alone."""
State: TypeAlias = Literal["pending", "approved", "withdrawn"]
ChangeKind: TypeAlias = Literal[
    "terms.set", "grant.create", "credit_line.set", "credit_note.issue", "platform_setting.set", "seller.set"
]
"""What takes two. Another kind is a name here and an entry in `billing.approvals.kinds`."""


class ApprovalRefused(ReportedError):
    """A change cannot be proposed, approved or withdrawn like this."""


class OwnChange(ApprovalRefused):
    """Somebody was about to approve what they proposed."""


class NotAllowedToDecide(ApprovalRefused):
    """Somebody was about to decide about a change that they have no permission for."""


class NotPending(ApprovalRefused):
    """The change was decided before."""


class AlteredChange(ApprovalRefused):
    """The change in the database is not the one that was proposed."""


class UnknownChange(ReportedError, LookupError):
    """No change has this id."""


class PendingChange(Struct, frozen=True, kw_only=True):
    """A change and what became of it. Instants are microseconds since the Unix epoch."""

    id: str
    kind: str
    summary: str
    arguments: Any
    state: State
    tenant_id: UUID | None
    author: str
    author_via: str
    author_person: str = ""
    reason: str
    created_at: int
    decider: str | None = None
    decider_via: str | None = None
    decision_reason: str | None = None
    result: str | None = None
    decided_at: int | None = None


class ChangePending(Exception):
    """The change was not made: it waits for another person's approval."""

    def __init__(self, change: PendingChange) -> None:
        super().__init__(f"{change.summary}: waits for another operator's approval as {change.id}")
        self.change = change


async def propose_if_needed(
    database: Database,
    kind: ChangeKind,
    arguments: Struct,
    summary: str,
    *,
    tenant_id: UUID | None = None,
    reason: str = "",
    amount_pico: int | None = None,
) -> None:
    """Raise ChangePending, having kept the change, if it takes two people now; return if the caller may make it.

    `amount_pico`: of a grant or credit line, which takes two only over the platform's amount. Jobs of ours need
    nobody's approval. Raises ApprovalRefused for somebody whom no key or session proves; DatabaseUnavailable.
    """
    async with database.reading() as session:
        if not await takes_two_people(session, amount_pico):
            return
    await propose(database, kind, arguments, summary, tenant_id=tenant_id, reason=reason)


async def takes_two_people(session: AsyncSession, amount_pico: int | None = None) -> bool:
    """Whether a change by the current actor takes two people now; `amount_pico` as for `propose_if_needed`."""
    if current_actor().means == "system" or await value_of(session, APPROVALS) != "on":
        return False
    return amount_pico is None or amount_pico > _threshold(await value_of(session, GRANT_OVER))


async def propose(
    database: Database,
    kind: ChangeKind,
    arguments: Struct,
    summary: str,
    *,
    tenant_id: UUID | None = None,
    reason: str = "",
) -> NoReturn:
    """Keep a change for another person, whatever the settings say, and raise ChangePending. The very same change of the
    same person that waits already is not kept twice, even under another id. Raises ApprovalRefused, InvalidText."""
    actor = current_actor()
    check_proven(actor)
    check_text("reason", reason, REASON, empty=True)
    values = {
        "kind": kind,
        "arguments": msgspec.json.encode(arguments, enc_hook=str).decode(),
        "summary": summary,
        "state": "pending",
        "tenant_id": tenant_id,
        "author": actor.name,
        "author_via": via_of(actor),
        "author_person": actor.person,
        "reason": reason,
    }
    async with database.transaction() as session:
        change = await _keep(database, session, values)
    raise ChangePending(change)


def check_proven(actor: Actor) -> None:
    """Raise ApprovalRefused unless a key or a session proves who acts."""
    if actor.means not in ("operator_key", "session"):
        raise ApprovalRefused(
            "approvals are on, so it must be proven who does this: present your operator's key "
            "(--operator-key-file FILE)"
        )


def check_second_person(change: PendingChange, actor: Actor) -> None:
    """Raise OwnChange unless it is known that another person than the author acts."""
    if are_two_people(change.author_person, actor.person):
        return
    hint = ""
    if change.author_person != actor.person:
        hint = (
            ": a key that names no user and a user may be one person (`turnpike keys create --operator --user EMAIL`)"
        )
    raise OwnChange(f"{change.author} proposed {change.id}; another person must approve it{hint}")


def via_of(actor: Actor) -> str:
    """How it is known who acts, for people to read."""
    how = {"operator_key": f"operator key {actor.id}", "session": f"session of {actor.id}"}
    user = actor.through if "@" in actor.through else ""  # USER@HOST of a command
    return ", ".join(part for part in (how.get(actor.means, actor.means), user) if part)


async def find_changes(
    session: AsyncSession, *, state: State | None = None, identity: UUID | None = None
) -> list[PendingChange]:
    """Changes, the newest first: all, or those in a state, or the one with this id."""
    query = select(pending_change).order_by(pending_change.c.created_at.desc(), pending_change.c.id.desc())
    if state is not None:
        query = query.where(pending_change.c.state == state)
    if identity is not None:
        query = query.where(pending_change.c.id == identity)
    return [_change(row) for row in (await session.execute(query.limit(1000))).mappings()]


async def decide(
    database: Database, session: AsyncSession, identity: UUID, state: State, *, reason: str = ""
) -> PendingChange:
    """Lock a pending change and write what the current actor decided about it. Raises UnknownChange, NotPending,
    InvalidText; AlteredChange where one is to be approved that is not what was proposed."""
    actor = current_actor()
    check_text("reason", reason, REASON, empty=True)
    mine = pending_change.c.id == identity
    before = (await session.execute(database.locked(select(pending_change).where(mine)))).mappings().one_or_none()
    if before is None:
        raise UnknownChange(f"there is no change {PREFIX}{identity.hex}")
    if before["state"] != "pending":
        raise NotPending(f"{PREFIX}{identity.hex} was {before['state']} before")
    if state == "approved" and not await is_recorded(session, CHANGES, before, before["tenant_id"]):
        raise AlteredChange(
            f"{PREFIX}{identity.hex} is not what the audit log says was proposed: withdraw it and propose it again"
        )
    decided = {
        "state": state,
        "decider": actor.name,
        "decider_via": via_of(actor),
        "decision_reason": reason,
        "decided_at": database.clock,
    }
    written = await session.execute(update(pending_change).where(mine).values(decided).returning(pending_change))
    row = written.mappings().one()
    change = _change(row)
    await record_change(
        session,
        f"change.{state}",
        target="change",
        target_id=change.id,
        tenant_id=change.tenant_id,
        reason=reason,
        before={"state": "pending", "kind": change.kind, "author": change.author},
        after={"state": state, "summary": change.summary, "arguments_sha256": digest_arguments(row)},
        row_sha256=CHANGES.digest(row),
    )
    return change


async def write_result(session: AsyncSession, identity: UUID, result: str) -> None:
    """Note what an approved change made."""
    # no entry: its approval is recorded, and so is what it makes
    await session.execute(update(pending_change).where(pending_change.c.id == identity).values(result=result))


async def _keep(database: Database, session: AsyncSession, values: dict[str, Any]) -> PendingChange:
    """Keep a change; or the same one, if it waits already: of several at once one is kept."""
    identity, same = new_id(), _digest(values)
    row = {"id": identity, **values, "created_at": database.clock, "sha256": same}
    kept = database.insert(pending_change).values(row).on_conflict_do_update(
        index_elements=["sha256"], index_where=pending_change.c.state == literal_column("'pending'"),
        set_={"sha256": same},
    )  # fmt: skip
    found = (await session.execute(kept.returning(pending_change))).mappings().one()
    change = _change(found)
    if found["id"] != identity:
        return change
    said = {"kind": change.kind, "summary": change.summary, "arguments_sha256": digest_arguments(found)}
    await record_change(
        session,
        "change.proposed",
        target="change",
        target_id=change.id,
        tenant_id=change.tenant_id,
        reason=change.reason,
        after=said | ({"arguments": change.arguments} if len(found["arguments"]) <= _MOST_ARGUMENTS else {}),
        row_sha256=CHANGES.digest(found),
    )
    return change


def digest_arguments(row: Mapping[Any, Any]) -> str:
    """The SHA-256 of what a change is to do: its kind, tenant and arguments, as they stand in the database."""
    same = (row["kind"], str(row["tenant_id"] or ""), row["arguments"])
    return sha256(msgspec.json.encode(same)).hexdigest()


def _digest(values: dict[str, Any]) -> str:
    """What equal changes of one person have in common. The id of a grant is new each time it is asked for."""
    arguments = {name: value for name, value in msgspec.json.decode(values["arguments"]).items() if name != "id"}
    same = (values["kind"], values["author_person"], str(values["tenant_id"]), arguments)
    return sha256(msgspec.json.encode(same, order="sorted")).hexdigest()


def _change(row: RowMapping) -> PendingChange:
    values = {name: row[name] for name in PendingChange.__struct_fields__}
    values |= {"id": f"{PREFIX}{row['id'].hex}", "arguments": msgspec.json.decode(row["arguments"])}
    values["author_person"] = row["author_person"] or ""  # from before it was kept: nobody approves that
    return PendingChange(**values)


def _threshold(text: str) -> int:
    return 0 if text.strip("0.") == "" else parse_amount(text)
