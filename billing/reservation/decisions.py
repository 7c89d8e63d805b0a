"""Who gets a hold: what is asked for, in order, against what there is in balances, grants and budgets. Nothing here
touches the database.

A hold counts on grants for its model or project first, in the order in which they are used, and on the balance for the
rest (`billing.ledger.wallet`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from billing.accounts.balances import CurrencyMismatch
from billing.budgets.windows import BudgetLimit, BudgetWindow, describe, resets
from billing.holds.records import Hold, HoldRequest, TopUp
from billing.ledger.entries import Balance
from billing.ledger.wallet import OpenGrant
from billing.money import format_pico
from billing.prices import UnknownPriceVersion


class InsufficientFunds(Exception):
    """The hold does not fit. `scope` says whose money is short: the tenant's, if there is no `window`, else that of a
    budget. `affordable_pico` would fit, in all that is asked; a budget's window ends at `resets_at`.

    `elsewhere_pico` is what the tenant has for other models or projects only.
    """

    def __init__(
        self,
        scope: str,
        needed_pico: int,
        affordable_pico: int,
        currency: str,
        window: BudgetWindow | None = None,
        *,
        elsewhere_pico: int = 0,
    ) -> None:
        whose = f"the {scope}" if window is None else describe(window.scope, window.span, window.subject)
        elsewhere = f", beside {format_pico(elsewhere_pico)} for other models or projects" if elsewhere_pico else ""
        super().__init__(
            f"the request may cost {format_pico(needed_pico)} {currency}, "
            f"and {whose} has {format_pico(affordable_pico)} {currency} left{elsewhere}"
        )
        self.elsewhere_pico = elsewhere_pico
        self.scope = scope
        self.needed_pico = needed_pico
        self.affordable_pico = affordable_pico
        self.currency = currency
        self.window = window
        self.budget_id = None if window is None else window.budget_id
        self.resets_at: datetime | None = None if window is None else resets(window)


class HoldEnded(ValueError):
    """The request has no open hold (any more), so there is nothing to top up."""

    def __init__(self, request_id: UUID) -> None:
        super().__init__(f"request {request_id} has no open hold")
        self.request_id = request_id


class Purpose(msgspec.Struct, frozen=True):
    """What money is held for: a tenant's requests to a model in a project."""

    tenant_id: UUID
    project_id: UUID
    model: str


class HoldDecider:
    """Decides a queue of requests, and adds up what the database is to be told: new holds, those that were raised, and
    what they hold."""

    def __init__(
        self,
        now: int,
        owners: Mapping[UUID, Balance],
        terms: Sequence[BudgetLimit],
        windows: Sequence[BudgetWindow],
        currencies: Mapping[int, str],
        *,
        grants: Sequence[OpenGrant] = (),
    ) -> None:
        """`grants`: those of the tenants that are for one model or project."""
        self.made: list[tuple[HoldRequest, Hold]] = []
        self.raised: dict[UUID, Hold] = {}
        """Topped up holds as they are now."""
        self.held: dict[UUID, int] = defaultdict(int)
        """What is held of each balance."""
        self.short: set[UUID] = set()
        """Tenants of whom something was refused for money."""
        self._now = now
        self._owners = owners
        self._left = {tenant: owner.available for tenant, owner in owners.items()}
        self._terms: dict[UUID, list[BudgetLimit]] = defaultdict(list)
        for one in terms:
            self._terms[one.tenant_id].append(one)
        self._windows = {(window.budget_id, window.starts_at): window for window in windows}
        self._keys = {window.id: key for key, window in self._windows.items()}
        self._used: set[tuple[UUID, int]] = set()
        self._grants = {one.id: one for one in sorted(grants, key=lambda one: one.order) if not one.expired(now)}
        self._counted_on: set[UUID] = set()
        self._currencies = currencies

    @property
    def windows(self) -> list[BudgetWindow]:
        """The windows from which something is held now."""
        return [self._windows[key] for key in self._used]

    @property
    def grants(self) -> list[OpenGrant]:
        """The grants on which holds count now."""
        return [self._grants[one] for one in self._counted_on]

    def decide(self, request: HoldRequest) -> Hold | Exception:
        """A hold, or why there is none."""
        tenant, amount = request.tenant_id, request.amount_pico
        owner, currency = self._owners.get(tenant), self._currencies.get(request.price_version)
        if currency is None:
            return UnknownPriceVersion(request.price_version)
        if owner is None:
            self.short.add(tenant)
            return InsufficientFunds("tenant", amount, 0, currency)
        if owner.currency != currency:
            return CurrencyMismatch(owner.currency, currency)
        keys = self._budgets(request)
        taken = self._take(Purpose(tenant, request.project_id, request.model), amount, keys, currency)
        if isinstance(taken, InsufficientFunds):
            return taken
        windows = tuple(self._windows[key].id for key in keys)
        hold = Hold.of(request, self._now, budgets=windows, grants=taken)
        self.made.append((request, hold))
        return hold

    def top_up(self, asked: TopUp, earlier: Hold | None) -> Hold | Exception:
        """The hold raised from the balance and from the windows of budgets that it was reserved from, or why it is not.
        `earlier` is the open hold of this id."""
        if earlier is None:
            return HoldEnded(asked.request_id)
        more = asked.amount_pico - earlier.amount_pico
        if more <= 0:
            return earlier
        tenant, keys = earlier.tenant_id, [self._keys[window] for window in earlier.budgets]
        of = Purpose(tenant, earlier.project_id, earlier.model)
        taken = self._take(of, more, keys, self._owners[tenant].currency)
        if isinstance(taken, InsufficientFunds):
            return taken
        grants = {one: earlier.grants.get(one, 0) + taken.get(one, 0) for one in {**earlier.grants, **taken}}
        raised = msgspec.structs.replace(earlier, amount_pico=asked.amount_pico, grants=grants)
        self.raised[asked.request_id] = raised
        return raised

    def _take(
        self, of: Purpose, amount: int, keys: Sequence[tuple[UUID, int]], currency: str
    ) -> dict[UUID, int] | InsufficientFunds:
        """Take the amount from grants and the balance, and from all of these windows; or nothing. Returns how much is
        from which grants."""
        grants = [one for one in self._grants.values() if one.tenant_id == of.tenant_id]
        covering = [one for one in grants if one.covers(of.project_id, of.model)]
        free = sum(one.free for one in covering)
        elsewhere = sum(one.free for one in grants) - free
        windows = [self._windows[key] for key in keys]
        refusal = self._shortage(of.tenant_id, amount, windows, currency, granted=free, elsewhere=elsewhere)
        if refusal is not None:
            self.short.add(of.tenant_id)
            return refusal
        taken: dict[UUID, int] = {}
        for one in covering:
            if part := min(amount - sum(taken.values()), one.free):
                self._grants[one.id] = msgspec.structs.replace(one, held=one.held + part)
                self._counted_on.add(one.id)
                taken[one.id] = part
        rest = amount - sum(taken.values())
        self._left[of.tenant_id] -= rest
        self.held[of.tenant_id] += rest
        for key in keys:
            self._windows[key] = self._windows[key].holding(amount)
            self._used.add(key)
        return taken

    def _budgets(self, request: HoldRequest) -> list[tuple[UUID, int]]:
        mine = self._terms.get(request.tenant_id, ())
        return [(terms.budget_id, terms.starts_at(self._now)) for terms in mine if terms.is_for(request)]

    def _shortage(
        self,
        tenant: UUID,
        amount: int,
        windows: Sequence[BudgetWindow],
        currency: str,
        *,
        granted: int,
        elsewhere: int,
    ) -> InsufficientFunds | None:
        """The refusal by whatever has least left, if that is too little: what it has would fit everywhere, and what may
        cost nothing always does. `granted` is for such usage only, `elsewhere` for other usage only."""
        least, tightest = max(0, self._left[tenant]) + granted, None
        for window in windows:
            available = window.available
            if available is not None and available < least:
                least, tightest = available, window
        if amount <= max(0, least):
            return None
        scope = tightest.scope if tightest else "tenant"
        return InsufficientFunds(
            scope, amount, max(0, least), currency, tightest, elsewhere_pico=0 if tightest else elsewhere
        )
