"""The answer 202 to a request whose change takes a second person: it is kept, and waits for approval."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from audit_log.actors import are_two_people, current_actor
from billing.approvals.approvals import permission_to_decide
from billing.calendar import format_instant
from billing.money import format_pico
from billing.pending_changes import PendingChange
from billing.prices.grid import amount
from storage.database.public_ids import public_id
from tenancy.rights.permissions import ROLE_PERMISSIONS, ROLES, Role

PENDING_STATUS = 202

Arguments: TypeAlias = Annotated[
    dict[str, Any],
    Meta(
        extra_json_schema={"additionalProperties": True},
        examples=[{"amount_pico": 5_000_000_000_000_000, "currency": "USD"}],
    ),
]


class ChangeObject(Struct, frozen=True, kw_only=True):
    """A change that takes two people. `arguments`: what was asked for, as it is made when another person approves.

    `details` are the arguments for people, by their place: amounts of money and prices for a million units are exact
    decimals there, instants RFC 3339.

    `author` proposed it, `decider` approved or withdrew it; `result` is what came of an approved one. `own`: you may be
    who proposed it, so another person must approve it; `approver_roles` are the roles at the platform that may.
    """

    object: Literal["change"] = "change"
    id: str
    kind: str
    summary: str
    arguments: Arguments
    details: dict[str, str]
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
    own: bool
    approver_roles: list[Role]


def change_object(change: PendingChange) -> ChangeObject:
    """A change as answers have it, to the current actor."""
    needed = ROLE_PERMISSIONS["approvals.decide"] & ROLE_PERMISSIONS[permission_to_decide(change.kind)]
    return ChangeObject(
        id=change.id,
        kind=change.kind,
        summary=change.summary,
        arguments=change.arguments,
        details=dict(_details(change.arguments)),
        state=change.state,
        tenant_id=None if change.tenant_id is None else public_id("tenant", change.tenant_id),
        author=change.author,
        author_via=change.author_via,
        reason=change.reason,
        created_at=format_instant(change.created_at),
        decider=change.decider,
        decider_via=change.decider_via,
        decision_reason=change.decision_reason,
        decided_at=None if change.decided_at is None else format_instant(change.decided_at),
        result=change.result,
        own=not are_two_people(change.author_person, current_actor().person),
        approver_roles=[role for role in ROLES if role in needed],
    )


def _details(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Each value of some arguments with its place in them, such as `terms.discounts.0.percent`."""
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _details(inner, f"{place}.{name}" if place else str(name))
    elif isinstance(value, bool):
        yield place, str(value).lower()
    elif isinstance(value, int):
        yield _number(place, value)
    elif value is not None and value != "":
        yield place, str(value)


def _number(place: str, value: int) -> tuple[str, str]:
    """A number with its place, whose end says in what it is counted."""
    name, _, unit = place.rpartition("_")
    match unit:
        case "pico":
            return name or "amount", format_pico(value)
        case "micro":
            return name, amount(value)
        case "at":
            return place, format_instant(value)
        case _:
            return place, str(value)
