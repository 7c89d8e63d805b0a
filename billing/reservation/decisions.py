"""Deciding who gets a hold: requests, in order, against balances, grants and budgets. Nothing here uses the database.

A hold is reserved from grants for its model or project first, in the order in which they are used, and from the balance
for the rest (`billing.ledger.wallet`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from billing.accounts.balances import CurrencyMismatch
from billing.budgets.windows import BudgetLimit, BudgetWindow, describe, resets
from billing.holds.records import Hold, HoldRequest, HoldSources, TopUp
from billing.ledger.entries import Balance
from billing.ledger.wallet import OpenGrant, expired_money
from billing.money import format_amount
from billing.prices import UnknownPriceVersion


class InsufficientFunds(Exception):
    """There is not enough money for the hold. `scope` says whose is short: that of the budget of `window`, or without
    one the tenant's. `affordable_pico` would fit. The budget's window ends at `resets_at`.

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
        elsewhere = f", beside {format_amount(elsewhere_pico)} for other models or projects" if elsewhere_pico else ""
        super().__init__(
            f"the request may cost {format_amount(needed_pico)} {currency}, "
            f"and {whose} has {format_amount(affordable_pico)} {currency} left{elsewhere}"
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
    """The request has no open hold, so there is nothing to top up."""

    def __init__(self, request_id: UUID) -> None:
        super().__init__(f"request {request_id} has no open hold")
        self.request_id = request_id


class Purpose(msgspec.Struct, frozen=True):
    """What a hold is for: a model, in a project of a tenant."""

    tenant_id: UUID
    project_id: UUID
    model: str


class HoldDecider:
    """Decides a queue of requests, and collects what is to be written: new holds, raised ones, and what they hold."""

    def __init__(
        self,
        now: int,
        owners: Mapping[UUID, Balance],
        limits: Sequence[BudgetLimit],
        windows: Sequence[BudgetWindow],
        currencies: Mapping[int, str],
        *,
        grants: Sequence[OpenGrant] = (),
    ) -> None:
        """`now` is in microseconds since the Unix epoch. `limits` are the budgets in force, and `windows` their current
        windows; `currencies` are those of price versions; `grants` are for one model or project, or have expired."""
        self.made: list[tuple[HoldRequest, Hold]] = []
        self.raised: dict[UUID, Hold] = {}
        """Topped up holds by request, as they are now."""
        self.held: dict[UUID, int] = defaultdict(int)
        """How much more is held of each tenant's balance."""
        self.short: set[UUID] = set()
        """Tenants of whom a hold was refused for lack of money."""
        self.now = now
        self._owners = owners
        self._left = {tenant: owner.available for tenant, owner in owners.items()}
        self.expiring: set[UUID] = set()
        """Tenants with money whose time has passed, and which is still in their balance."""
        for grant in grants:
            if pico := expired_money(now, [grant]):
                self.expiring.add(grant.tenant_id)
                self._left[grant.tenant_id] -= pico
        self._limits: dict[UUID, list[BudgetLimit]] = defaultdict(list)
        for limit in limits:
            self._limits[limit.tenant_id].append(limit)
        self._windows = {(window.budget_id, window.starts_at): window for window in windows}
        self._keys = {window.id: key for key, window in self._windows.items()}
        self._used: set[tuple[UUID, int]] = set()
        in_order = sorted(grants, key=lambda grant: grant.order)
        self._grants = {grant.id: grant for grant in in_order if grant.restricted and not grant.expired(now)}
        self._changed_grants: set[UUID] = set()
        self._currencies = currencies

    @property
    def windows(self) -> list[BudgetWindow]:
        """The windows that were changed."""
        return [self._windows[key] for key in self._used]

    @property
    def grants(self) -> list[OpenGrant]:
        """The grants that were changed."""
        return [self._grants[id] for id in self._changed_grants]

    def decide(self, request: HoldRequest) -> Hold | Exception:
        """A hold, or the error that says why there is none."""
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
        hold = Hold.of(request, self.now, sources=HoldSources(windows, taken))
        self.made.append((request, hold))
        return hold

    def top_up(self, top_up: TopUp, earlier: Hold | None) -> Hold | Exception:
        """The `earlier` open hold of the request, raised from the balance, grants and the windows that it was reserved
        from; or the error that says why it is not."""
        if earlier is None:
            return HoldEnded(top_up.request_id)
        more = top_up.amount_pico - earlier.amount_pico
        if more <= 0:
            return earlier
        tenant, keys = earlier.tenant_id, [self._keys[window] for window in earlier.budgets]
        purpose = Purpose(tenant, earlier.project_id, earlier.model)
        taken = self._take(purpose, more, keys, self._owners[tenant].currency)
        if isinstance(taken, InsufficientFunds):
            return taken
        grants = {grant: earlier.grants.get(grant, 0) + taken.get(grant, 0) for grant in {**earlier.grants, **taken}}
        raised = msgspec.structs.replace(earlier, amount_pico=top_up.amount_pico, grants=grants)
        self.raised[top_up.request_id] = raised
        return raised

    def _take(
        self, purpose: Purpose, amount: int, keys: Sequence[tuple[UUID, int]], currency: str
    ) -> dict[UUID, int] | InsufficientFunds:
        """Take the amount from grants and the balance, and from all of these windows; or take nothing. Returns how much
        is from which grants."""
        tenant = purpose.tenant_id
        grants = [grant for grant in self._grants.values() if grant.tenant_id == tenant]
        covering = [grant for grant in grants if grant.covers(purpose.project_id, purpose.model)]
        free = sum(grant.free for grant in covering)
        elsewhere = sum(grant.free for grant in grants) - free
        windows = [self._windows[key] for key in keys]
        refusal = self._shortage(tenant, amount, windows, currency, granted=free, elsewhere=elsewhere)
        if refusal is not None:
            self.short.add(tenant)
            return refusal
        taken: dict[UUID, int] = {}
        for grant in covering:
            if part := min(amount - sum(taken.values()), grant.free):
                self._grants[grant.id] = msgspec.structs.replace(grant, held=grant.held + part)
                self._changed_grants.add(grant.id)
                taken[grant.id] = part
        rest = amount - sum(taken.values())
        self._left[tenant] -= rest
        self.held[tenant] += rest
        for key in keys:
            self._windows[key] = self._windows[key].holding(amount)
            self._used.add(key)
        return taken

    def _budgets(self, request: HoldRequest) -> list[tuple[UUID, int]]:
        limits = self._limits.get(request.tenant_id, ())
        return [(limit.budget_id, limit.starts_at(self.now)) for limit in limits if limit.is_for(request)]

    def _shortage(
        self, tenant: UUID, amount: int, windows: Sequence[BudgetWindow], currency: str, *, granted: int, elsewhere: int
    ) -> InsufficientFunds | None:
        """The refusal by whatever has least left, if that is too little: as much would fit everywhere. An amount of 0
        always fits. `granted` is what grants for such usage have, `elsewhere` those for other usage."""
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
