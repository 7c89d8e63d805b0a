"""The answer 202 to a request whose change takes a second person: it is kept, and waits for approval."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from billing.calendar import format_instant
from billing.pending_changes import PendingChange

PENDING_STATUS = 202


class ChangeObject(Struct, frozen=True, kw_only=True):
    """A change that takes two people. `arguments`: what was asked for, as it is made when another person approves.

    `author` proposed it, `decider` approved or withdrew it; `result` is what came of an approved one.
    """

    object: Literal["change"] = "change"
    id: str
    kind: str
    summary: str
    arguments: dict[str, Any]
    state: Literal["pending", "approved", "withdrawn"]
    tenant_id: str | None
    author: str
    author_via: str
    reason: str
    created_at: str
    decider: str | None
    decider_via: str | None
    decision_reason: str | None
    decided_at: str | None
    result: str | None


def change_object(change: PendingChange) -> ChangeObject:
    """A change as answers have it."""
    return ChangeObject(
        id=change.id,
        kind=change.kind,
        summary=change.summary,
        arguments=change.arguments,
        state=change.state,
        tenant_id=None if change.tenant_id is None else f"tenant_{change.tenant_id.hex}",
        author=change.author,
        author_via=change.author_via,
        reason=change.reason,
        created_at=format_instant(change.created_at),
        decider=change.decider,
        decider_via=change.decider_via,
        decision_reason=change.decision_reason,
        decided_at=None if change.decided_at is None else format_instant(change.decided_at),
        result=change.result,
    )
