"""Who gets a hold: what is asked for, in order, against what there is in balances and budgets. Nothing here touches the
database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from billing.balances import CurrencyMismatch
from billing.budgets.windows import BudgetTerms, BudgetWindow, describe, resets
from billing.holds.records import Hold, HoldRequest, TopUp
from billing.ledger import Balance
from billing.money import format_pico
from billing.prices import UnknownPriceVersion


class InsufficientFunds(Exception):
    """The hold does not fit. `scope` says whose money is short: the tenant's, if there is no `window`, else that of a
    budget. `affordable_pico` would fit, in all that is asked; a budget's window ends at `resets_at`."""

    def __init__(
        self, scope: str, needed_pico: int, affordable_pico: int, currency: str, window: BudgetWindow | None = None
    ) -> None:
        whose = f"the {scope}" if window is None else describe(window)
        super().__init__(
            f"the request may cost {format_pico(needed_pico)} {currency}, "
            f"and {whose} has {format_pico(affordable_pico)} {currency} left"
        )
        self.scope = scope
        self.needed_pico = needed_pico
        self.affordable_pico = affordable_pico
        self.currency = currency
        self.whose = whose
        self.budget_id = None if window is None else window.budget_id
        self.resets_at: datetime | None = None if window is None else resets(window)


class DuplicateRequest(ValueError):
    """A request of this id was admitted before, as another request or one that has ended."""

    def __init__(self, request_id: UUID) -> None:
        super().__init__(f"request {request_id} was admitted before")
        self.request_id = request_id


class HoldEnded(ValueError):
    """The request has no open hold (any more), so there is nothing to top up."""

    def __init__(self, request_id: UUID) -> None:
        super().__init__(f"request {request_id} has no open hold")
        self.request_id = request_id


class Decisions:
    """Decides a queue of requests, and adds up what the database is to be told: new holds, those that were raised, and
    what they hold."""

    def __init__(
        self,
        now: int,
        owners: Mapping[UUID, Balance],
        terms: Sequence[BudgetTerms],
        windows: Sequence[BudgetWindow],
        currencies: Mapping[int, str],
    ) -> None:
        self.made: list[tuple[HoldRequest, Hold]] = []
        self.raised: dict[UUID, int] = {}
        """What topped up holds are of now."""
        self.held: dict[UUID, int] = defaultdict(int)
        self.short: set[UUID] = set()
        """Tenants of whom something was refused for money."""
        self._now = now
        self._owners = owners
        self._left = {tenant: owner.available for tenant, owner in owners.items()}
        self._terms: dict[UUID, list[BudgetTerms]] = defaultdict(list)
        for one in terms:
            self._terms[one.tenant_id].append(one)
        self._windows = {(window.budget_id, window.starts_at): window for window in windows}
        self._keys = {window.id: key for key, window in self._windows.items()}
        self._used: set[tuple[UUID, int]] = set()
        self._currencies = currencies

    @property
    def windows(self) -> list[BudgetWindow]:
        """The windows from which something is held now."""
        return [self._windows[key] for key in self._used]

    def decide(self, request: HoldRequest, earlier: Hold | None, *, ended: bool) -> Hold | Exception:
        """A hold, or why there is none. `earlier` is the open hold of this id, `ended` whether one was before."""
        tenant, amount = request.tenant_id, request.amount_pico
        owner, currency = self._owners.get(tenant), self._currencies.get(request.price_version)
        if currency is None:
            return UnknownPriceVersion(request.price_version)
        if earlier is not None or ended:
            same = earlier is not None and (earlier.tenant_id, earlier.amount_pico) == (tenant, amount)
            return earlier if earlier is not None and same else DuplicateRequest(request.request_id)
        if owner is None:
            self.short.add(tenant)
            return InsufficientFunds("tenant", amount, 0, currency)
        if owner.currency != currency:
            return CurrencyMismatch(owner.currency, currency)
        keys = self._budgets(request)
        refusal = self._take(tenant, amount, keys, currency)
        if refusal is not None:
            return refusal
        hold = Hold.of(request, self._now, budgets=tuple(self._windows[key].id for key in keys))
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
        refusal = self._take(tenant, more, keys, self._owners[tenant].currency)
        if refusal is not None:
            return refusal
        self.raised[asked.request_id] = asked.amount_pico
        return msgspec.structs.replace(earlier, amount_pico=asked.amount_pico)

    def _take(
        self, tenant: UUID, amount: int, keys: Sequence[tuple[UUID, int]], currency: str
    ) -> InsufficientFunds | None:
        """Take the amount from the balance and from all of these windows, or from none."""
        refusal = self._shortage(tenant, amount, [self._windows[key] for key in keys], currency)
        if refusal is not None:
            self.short.add(tenant)
            return refusal
        self._left[tenant] -= amount
        self.held[tenant] += amount
        for key in keys:
            self._windows[key] = self._windows[key].holding(amount)
            self._used.add(key)
        return None

    def _budgets(self, request: HoldRequest) -> list[tuple[UUID, int]]:
        mine = self._terms.get(request.tenant_id, ())
        return [(terms.budget_id, terms.starts_at(self._now)) for terms in mine if terms.is_for(request)]

    def _shortage(
        self, tenant: UUID, amount: int, windows: Sequence[BudgetWindow], currency: str
    ) -> InsufficientFunds | None:
        """The refusal by whatever has least left, if that is too little: what it has would fit everywhere."""
        least, tightest = self._left[tenant], None
        for window in windows:
            available = window.available
            if available is not None and available < least:
                least, tightest = available, window
        if amount <= least:
            return None
        return InsufficientFunds(tightest.scope if tightest else "tenant", amount, max(0, least), currency, tightest)
