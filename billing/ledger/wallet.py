"""A tenant's balance and the grants that it is made of: which money a usage takes, and which it gets back.

Grants are used in this order:

1. grants for one model or project only, then all others;
2. of these, by priority, the lowest number first; given money has a lower number than paid money by default;
3. of these, what expires first;
4. of these, the oldest.

What no grant covers is owed (`receivable`).

A grant pays for what was admitted before its expiry, and for nothing else. It does not matter when the worker takes the
rest of it: as long as a request runs that was admitted in time, `expire` leaves what that may cost.

A grant for one model or project stands in `restricted`, and counts for `credit` only when it is used. A request for
this model or project reserves from such grants first (`held`), and the rest from the balance. What it reserved is its
own until it ends: other usage takes only what is free, and so no money that a running request counts on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

import msgspec

from billing.ledger.entries import Account, Balance, Entry
from billing.money import format_amount
from storage.reported_error import ReportedError

PAID_PRIORITY, PROMO_PRIORITY = 100, 50
_NEVER = 2**63


class RefundRefused(ReportedError, ValueError):
    """More was to be paid back than is paid, unused and not reserved: `refundable_pico`."""

    def __init__(self, refundable_pico: int, currency: str) -> None:
        super().__init__(f"only {format_amount(refundable_pico)} {currency} are paid, unused and not reserved")
        self.refundable_pico = refundable_pico


class OpenGrant(msgspec.Struct, frozen=True):
    """A grant and what became of it: `amount = remaining + used + gone`, where gone was refunded, has expired or paid
    what invoices ask for beyond usage."""

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
    held: int = 0
    """How much open holds are reserved from it: 0 unless it is restricted."""

    @property
    def free(self) -> int:
        """What is left and reserved by no hold."""
        return self.remaining - self.held

    @property
    def restricted(self) -> bool:
        """Whether it may be used for one model or project only."""
        return self.model is not None or self.project_id is not None

    @property
    def account(self) -> Account:
        """The ledger account of what is left of it."""
        return "restricted" if self.restricted else "promo" if self.kind == "promo" else "prepaid"

    def covers(self, project_id: UUID, model: str) -> bool:
        """Whether it may be used for this."""
        return self.model in (None, model) and self.project_id in (None, project_id)

    def may_pay(self, cost: ModelCost) -> bool:
        """Whether it covers the usage, and had not expired when that was admitted."""
        return self.covers(cost.project_id, cost.model) and not self.expired(cost.admitted_at)

    def expired(self, now: int) -> bool:
        """Whether its time has passed."""
        return self.expires_at is not None and self.expires_at <= now

    @property
    def order(self) -> tuple[bool, int, int, int]:
        """The sort key of the order of use."""
        return not self.restricted, self.priority, _NEVER if self.expires_at is None else self.expires_at, self.id.int


class ModelCost(msgspec.Struct, frozen=True):
    """The cost of one model's usage in one project, in pico-units, or what is reserved for it.

    `admitted_at` may be 0 if no grant of the tenant had expired by then.
    """

    project_id: UUID
    model: str
    pico: int
    admitted_at: int = 0


class Wallet:
    """The balance and grants of one tenant while money moves. `changed` has the grants that were changed, by id."""

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
        if grant.restricted:
            self.balance = self.balance.changed(restricted=pico)
        else:
            promo = pico if grant.account == "promo" else 0
            self.balance = self.balance.changed(credit=pico, promo=promo, receivable=-owed)
        source: Account = "goodwill" if grant.kind == "promo" else "clearing"
        entries = [Entry(source, "receivable", owed)] if owed else []
        return entries + ([Entry(source, grant.account, pico - owed, grant.id)] if pico > owed else [])

    def end_hold(self, counted_on: Mapping[UUID, int], pico: int) -> dict[UUID, int]:
        """End a hold that was reserved from so much of these grants: they pay for its usage of `pico` as far as that
        goes, and the rest is free again. Returns what each pays, for `use` to book."""
        paid = {}
        for grant in list(self._grants.values()):
            if held := counted_on.get(grant.id, 0):
                part = min(pico, held)
                left, used = grant.remaining - part, grant.used + part
                self._change(grant, remaining=left, used=used, held=grant.held - held)
                pico -= part
                if part:
                    paid[grant.id] = part
        return paid

    def use(self, costs: Sequence[ModelCost], paid: Mapping[UUID, int] = {}) -> list[Entry]:
        """Pay for usage with what no hold reserves; return the entries. `paid` is what `end_hold` returned; it is
        booked too. What was admitted last comes first: fewer grants may pay for it."""
        taken: dict[UUID, int] = dict(paid)
        owed = 0
        for cost in sorted(costs, key=lambda cost: (-cost.admitted_at, cost.project_id.int, cost.model)):
            left = cost.pico
            for grant in self._grants.values():
                if not left:
                    break
                if grant.free and grant.may_pay(cost):
                    part = min(left, grant.free)
                    self._change(grant, remaining=grant.remaining - part, used=grant.used + part)
                    taken[grant.id] = taken.get(grant.id, 0) + part
                    left -= part
            owed += left
        self._book(taken, sum(cost.pico for cost in costs) + sum(paid.values()), owed)
        entries = [Entry(self._grants[one].account, "revenue", pico, one) for one, pico in taken.items()]
        return entries + ([Entry("receivable", "revenue", owed)] if owed else [])

    def give_back(self, cost: ModelCost, paid: Mapping[UUID | None, int]) -> list[Entry]:
        """Take back what was paid for usage that is corrected.

        `paid` is what each grant has paid for the usage of the corrected period, less what it got back of that; None
        stands for what was owed. Nobody gets back more: what promotional credit paid for becomes no money.

        First comes what is for such usage only, the narrowest first: it must not have paid for more than there is.
        Then what was used last. Money settles what is owed first. What was given back before, as by the period's
        rating, is taken off `charges`.
        """
        if cost.pico > self.balance.debit:
            raise ValueError(f"{cost.pico} pico-units cannot be given back: only {self.balance.debit} were ever used")
        latest = list(reversed(self._grants.values()))
        grants = sorted(latest, key=lambda one: one.restricted)
        covering = [one for one in grants if one.restricted and one.covers(cost.project_id, cost.model)]
        narrowest = sorted(covering, key=lambda one: (one.model is None) + (one.project_id is None))
        returned: dict[UUID, int] = {}
        left = cost.pico
        for grant in narrowest:
            left = self._return([grant], left, returned, paid.get(grant.id, 0))
        bought = {one.id: paid.get(one.id, 0) for one in grants if one.account == "prepaid"}
        most_money = max(0, paid.get(None, 0) + sum(bought.values()))
        money = min(left, most_money, max(0, paid.get(None, 0)))
        left -= money
        for grant in grants:
            part = min(left, max(0, paid.get(grant.id, 0) - returned.get(grant.id, 0)))
            if grant.id in bought:
                part = bought[grant.id] = min(part, most_money - money)
                money += part
            else:
                part -= self._return([grant], part, returned)
            left -= part
        owed, over = self._return_money(money, bought, returned)
        left += over
        self._book({one: -part for one, part in returned.items()}, -cost.pico, -owed)
        self.balance = self.balance.changed(credit=-left)
        entries = [Entry("revenue", self._grants[one].account, part, one) for one, part in returned.items()]
        entries += [Entry("revenue", "charges", left)] if left else []
        return ([Entry("revenue", "receivable", owed)] if owed else []) + entries

    def return_charges(self, given: Mapping[UUID, int], money: int, paid: Mapping[UUID, int]) -> list[Entry]:
        """Return what a period's rating takes off its usage; return the entries.

        `given` goes back to these grants. `money` first pays what is owed. The rest goes back to prepaid grants, the
        latest first: to each as much as it paid for the period's usage (`paid`), then what else was used of it. What no
        grant ever paid stays out.
        """
        returned: dict[UUID, int] = {}
        for one, pico in given.items():
            self._return([self._grants[one]], pico, returned)
        owed, _ = self._return_money(money, paid, returned)
        by_account = {"promo": 0, "prepaid": 0, "restricted": 0}
        for one, part in returned.items():
            by_account[self._grants[one].account] += part
        promo, restricted = by_account["promo"], by_account["restricted"]
        credit = owed + promo + by_account["prepaid"]
        self.balance = self.balance.changed(credit=credit, promo=promo, restricted=restricted, receivable=-owed)
        entries = [Entry("charges", self._grants[one].account, part, one) for one, part in returned.items()]
        return ([Entry("charges", "receivable", owed)] if owed else []) + entries

    def _return_money(self, pico: int, paid: Mapping[UUID, int], returned: dict[UUID, int]) -> tuple[int, int]:
        """Pay what is owed, and return the rest to prepaid grants: to each as much as it `paid`, then to what paid
        debts. Returns what was owed, and what is left over."""
        owed = min(pico, self.balance.receivable)
        left = pico - owed
        bought = [grant for grant in reversed(self._grants.values()) if grant.account == "prepaid"]
        for grant in bought:
            left = self._return([grant], left, returned, paid.get(grant.id, 0))
        return owed, self._return(bought, left, returned)

    def _return(
        self, grants: Iterable[OpenGrant], pico: int, returned: dict[UUID, int], at_most: int | None = None
    ) -> int:
        """Return to each of these grants at most what was used of it, or `at_most`; returns what is left over."""
        for one in grants:
            grant = self._grants[one.id]
            part = min(pico, grant.used, grant.used if at_most is None else at_most)
            if part > 0:
                self._change(grant, remaining=grant.remaining + part, used=grant.used - part)
                returned[grant.id] = returned.get(grant.id, 0) + part
                pico -= part
        return pico

    def available(self, now: int) -> int:
        """What may be reserved: what is left of expired grants is for nothing that is admitted from now on."""
        return self.balance.available - expired_money(now, self._grants.values())

    def refundable(self, now: int, units: Mapping[UUID, int] = {}, grant_id: UUID | None = None) -> int:
        """What was paid (for one grant, or for any), has not expired, and is neither used nor reserved; of a grant in
        `units` only whole units."""
        free = max(0, self.available(now) - self.balance.credit_line)
        return sum(part for _, part in self._refunded(free, now, units, grant_id))

    def refund(self, pico: int, now: int, units: Mapping[UUID, int] = {}, grant_id: UUID | None = None) -> list[Entry]:
        """Pay back at most what is refundable: from one grant, or from what would be used last."""
        return [self._lose(grant, part, "clearing") for grant, part in self._refunded(pico, now, units, grant_id)]

    def _refunded(
        self, pico: int, now: int, units: Mapping[UUID, int], grant_id: UUID | None
    ) -> list[tuple[OpenGrant, int]]:
        """What each grant pays back of so much, those that would be used last first."""
        parts = []
        for grant in reversed(list(self._grants.values())):
            if grant_id not in (None, grant.id):
                continue
            part = min(pico, grant.remaining) if _is_refundable(grant, now) else 0
            if part := part - part % units.get(grant.id, 1):
                parts.append((grant, part))
                pico -= part
        return parts

    def free_credit(self, now: int) -> list[OpenGrant]:
        """The grants of paid credit that have something left that has not expired, in the order of use."""
        return [grant for grant in self._grants.values() if _is_refundable(grant, now) and grant.remaining > 0]

    def draw(self, draws: Mapping[UUID, int]) -> list[Entry]:
        """Pay with so much of these grants what an invoice asks for beyond usage. Raises ValueError if it is not
        there."""
        for one, pico in draws.items():
            if one not in self._grants or self._grants[one].free < pico:
                raise ValueError(f"less than {pico} pico-units are left of grant {one}")
        return [self._lose(self._grants[one], pico, "invoiced") for one, pico in draws.items()]

    def undraw(self, draws: Mapping[UUID, int]) -> list[Entry]:
        """Put back what was drawn."""
        entries = []
        for one, pico in draws.items():
            grant = self._grants[one]
            self._change(grant, remaining=grant.remaining + pico, gone=grant.gone - pico)
            self.balance = self.balance.changed(credit=pico)
            entries.append(Entry("invoiced", grant.account, pico, one))
        return entries

    def charge_back(self, grant_id: UUID, pico: int, unit: int = 1) -> list[Entry]:
        """Take back the money of a grant that its payer took back, whether it was used or not: what is left of it goes,
        in whole units, and usage that it had paid for is owed again. At most what is left and used of it."""
        grant = self._grants[grant_id]
        left = min(pico, grant.remaining) // unit * unit
        owed = min(pico - left, grant.used)
        entries = [self._lose(grant, left, "clearing")] if left else []
        if owed:
            grant = self._grants[grant_id]
            self._change(grant, used=grant.used - owed, gone=grant.gone + owed)
            self.balance = self.balance.changed(credit=-owed, receivable=owed)
            entries.append(Entry("receivable", "clearing", owed))
        return entries

    def used_of(self, grant_id: UUID) -> int:
        """What was used of a grant; 0 where it is not here."""
        return self._grants[grant_id].used if grant_id in self._grants else 0

    def expire(self, now: int, reserved: Sequence[ModelCost]) -> list[Entry]:
        """Take what is left of grants whose time has passed, but for what they may still have to pay.

        `reserved` is what open holds count on in the balance.
        """
        entries = []
        for grant in list(self._grants.values()):
            if grant.expired(now):
                part = grant.free - sum(cost.pico for cost in reserved if grant.may_pay(cost))
                if not grant.restricted:
                    part = min(part, self.balance.available)
                if part > 0:
                    entries.append(self._lose(grant, part, "goodwill" if grant.kind == "promo" else "breakage"))
        return entries

    def _arrange(self, grants: Iterable[OpenGrant]) -> None:
        self._grants = {grant.id: grant for grant in sorted(grants, key=lambda grant: grant.order)}

    def _lose(self, grant: OpenGrant, pico: int, to: Account) -> Entry:
        self._change(grant, remaining=grant.remaining - pico, gone=grant.gone + pico)
        if grant.restricted:
            self.balance = self.balance.changed(restricted=-pico)
        else:
            promo = pico if grant.account == "promo" else 0
            self.balance = self.balance.changed(credit=-pico, promo=-promo)
        return Entry(grant.account, to, pico, grant.id)

    def _book(self, taken: dict[UUID, int], debit: int, owed: int) -> None:
        by_account = {"promo": 0, "prepaid": 0, "restricted": 0}
        for one, pico in taken.items():
            by_account[self._grants[one].account] += pico
        restricted = by_account["restricted"]
        self.balance = self.balance.changed(
            debit=debit, promo=-by_account["promo"], credit=restricted, restricted=-restricted, receivable=owed
        )

    def _change(self, grant: OpenGrant, **changes: int) -> None:
        self._grants[grant.id] = self.changed[grant.id] = msgspec.structs.replace(grant, **changes)


def expired_money(now: int, grants: Iterable[OpenGrant]) -> int:
    """What is left in a balance of grants that have expired: the worker has still to take it, or open holds count on
    it."""
    return sum(grant.remaining for grant in grants if grant.expired(now) and not grant.restricted)


def without_expired(balance: Balance, grants: Iterable[OpenGrant], now: int) -> Balance:
    """The balance less what has expired of its grants and is not taken yet, but for what open holds count on: what is
    shown of it."""
    room = max(0, balance.available)
    for grant in grants:
        if not grant.expired(now):
            continue
        if grant.restricted:
            balance = balance.changed(restricted=-grant.free)
            continue
        part = min(grant.remaining, room)
        room -= part
        balance = balance.changed(credit=-part, promo=-part if grant.account == "promo" else 0)
    return balance


def _is_refundable(grant: OpenGrant, now: int) -> bool:
    return grant.account == "prepaid" and not grant.expired(now)
