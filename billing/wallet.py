"""A tenant's balance and the grants that it is made of: which money a usage takes, and which it gets back.

Money is used in this order: what may be used for one model or project only, then all other; in each by priority (the
lowest first), then what expires first, then what was there first. Given money has the lower priority unless it is said
otherwise. What no grant covers is owed (`receivable`).

What was given for one model or project stands in `restricted` and counts for `credit` only when it is used: a request
is never admitted on it, since it could not pay for any other, but it pays first for what it is for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

import msgspec

from billing.ledger import Account, Balance, Entry

PAID_PRIORITY, PROMO_PRIORITY = 100, 50
_NEVER = 2**63


class OpenGrant(msgspec.Struct, frozen=True):
    """A grant and what became of it: `amount = remaining + used + gone`, where gone was refunded or has expired."""

    id: UUID
    tenant_id: UUID
    kind: str
    priority: int
    expires_at: int | None
    model: str | None
    project_id: UUID | None
    remaining: int
    used: int
    gone: int

    @property
    def restricted(self) -> bool:
        """Whether it may be used for one model or project only."""
        return self.model is not None or self.project_id is not None

    @property
    def account(self) -> Account:
        """Where what is left of it stands in the ledger."""
        return "restricted" if self.restricted else "promo" if self.kind == "promo" else "prepaid"

    def covers(self, project_id: UUID, model: str) -> bool:
        """Whether it may be used for this."""
        return self.model in (None, model) and self.project_id in (None, project_id)

    @property
    def order(self) -> tuple[bool, int, int, int]:
        """Its place in the order of use."""
        return not self.restricted, self.priority, _NEVER if self.expires_at is None else self.expires_at, self.id.int


class Cost(msgspec.Struct, frozen=True):
    """What was used of one model in one project, in pico-units."""

    project_id: UUID
    model: str
    pico: int


class Wallet:
    """The balance and grants of one tenant while money moves; `changed` has the grants that are not what they were."""

    def __init__(self, balance: Balance, grants: Iterable[OpenGrant]) -> None:
        self.balance = balance
        self.changed: dict[UUID, OpenGrant] = {}
        self._grants: dict[UUID, OpenGrant] = {}
        self._arrange(grants)

    def put_in(self, grant: OpenGrant) -> list[Entry]:
        """Take in a new grant; return the entries. What was paid goes to what is owed first."""
        pico = grant.remaining
        owed = min(pico, self.balance.receivable) if grant.account == "prepaid" else 0
        self._arrange((*self._grants.values(), grant))
        self._change(grant, remaining=pico - owed, used=owed)
        if not grant.restricted:
            promo = pico if grant.account == "promo" else 0
            self.balance = self.balance.changed(credit=pico, promo=promo, receivable=-owed)
        source: Account = "goodwill" if grant.kind == "promo" else "clearing"
        entries = [Entry(source, "receivable", owed)] if owed else []
        return entries + ([Entry(source, grant.account, pico - owed, grant.id)] if pico > owed else [])

    def use(self, costs: Sequence[Cost]) -> list[Entry]:
        """Pay for usage; return the entries."""
        taken: dict[UUID, int] = {}
        owed = 0
        for cost in sorted(costs, key=lambda cost: (cost.project_id.int, cost.model)):
            left = cost.pico
            for grant in self._grants.values():
                if not left:
                    break
                if grant.remaining and grant.covers(cost.project_id, cost.model):
                    part = min(left, grant.remaining)
                    self._change(grant, remaining=grant.remaining - part, used=grant.used + part)
                    taken[grant.id] = taken.get(grant.id, 0) + part
                    left -= part
            owed += left
        self._book(taken, sum(cost.pico for cost in costs), owed)
        entries = [Entry(self._grants[one].account, "revenue", pico, one) for one, pico in taken.items()]
        return entries + ([Entry("receivable", "revenue", owed)] if owed else [])

    def give_back(self, pico: int) -> list[Entry]:
        """Take back what was paid for usage that is corrected: what is owed goes first, then what was used last."""
        owed = min(pico, self.balance.receivable)
        left = pico - owed
        returned: dict[UUID, int] = {}
        for grant in reversed(list(self._grants.values())):
            part = min(left, grant.used)
            if part:
                self._change(grant, remaining=grant.remaining + part, used=grant.used - part)
                returned[grant.id] = part
                left -= part
        if left:
            raise ValueError(f"{pico} pico-units cannot be given back: only {pico - left} were ever used")
        self._book({one: -part for one, part in returned.items()}, -pico, -owed)
        entries = [Entry("revenue", self._grants[one].account, part, one) for one, part in returned.items()]
        return ([Entry("revenue", "receivable", owed)] if owed else []) + entries

    def refundable(self) -> int:
        """What was paid and is neither used nor reserved."""
        paid = sum(grant.remaining for grant in self._grants.values() if grant.account == "prepaid")
        return max(0, min(paid, self.balance.credit - self.balance.debit - self.balance.held))

    def refund(self, pico: int) -> list[Entry]:
        """Pay back at most what is refundable, from what would be used last."""
        entries = []
        for grant in reversed(list(self._grants.values())):
            part = min(pico, grant.remaining) if grant.account == "prepaid" else 0
            if part:
                entries.append(self._lose(grant, part, "clearing"))
                pico -= part
        return entries

    def expire(self, now: int) -> list[Entry]:
        """Take what is left of grants whose time has passed, but for what open holds still count on."""
        entries = []
        for grant in list(self._grants.values()):
            if grant.remaining and grant.expires_at is not None and grant.expires_at <= now:
                free = max(0, self.balance.credit - self.balance.debit - self.balance.held)
                part = grant.remaining if grant.restricted else min(grant.remaining, free)
                if part:
                    entries.append(self._lose(grant, part, "goodwill" if grant.kind == "promo" else "breakage"))
        return entries

    def _arrange(self, grants: Iterable[OpenGrant]) -> None:
        self._grants = {grant.id: grant for grant in sorted(grants, key=lambda grant: grant.order)}

    def _lose(self, grant: OpenGrant, pico: int, to: Account) -> Entry:
        self._change(grant, remaining=grant.remaining - pico, gone=grant.gone + pico)
        if not grant.restricted:
            promo = pico if grant.account == "promo" else 0
            self.balance = self.balance.changed(credit=-pico, promo=-promo)
        return Entry(grant.account, to, pico, grant.id)

    def _book(self, taken: dict[UUID, int], debit: int, owed: int) -> None:
        by_account = {"promo": 0, "prepaid": 0, "restricted": 0}
        for one, pico in taken.items():
            by_account[self._grants[one].account] += pico
        self.balance = self.balance.changed(
            debit=debit, promo=-by_account["promo"], credit=by_account["restricted"], receivable=owed
        )

    def _change(self, grant: OpenGrant, **changes: int) -> None:
        self._grants[grant.id] = self.changed[grant.id] = msgspec.structs.replace(grant, **changes)
