"""Giving back what a tenant's ended holds were reserved from, and letting the grants that they counted on pay for their
usage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from uuid import UUID

from billing.holds.books import Ended
from billing.usage import UsageEvent
from billing.wallet import Wallet

Paid = dict[str, dict[UUID, int]]
"""What grants pay, by billing period."""
Costs = dict[str, dict[tuple[UUID, str], int]]
"""What was used, by billing period, then by project and model."""


def end_holds(
    wallet: Wallet,
    ended: Iterable[Ended],
    events: Mapping[UUID, UsageEvent] = {},
    costs: Costs | None = None,
) -> Paid:
    """End a tenant's holds. `events` are those with usage that counted on grants; what these pay for is taken off
    `costs`, and returned, for `Wallet.use` to book."""
    paid: Paid = defaultdict(dict)
    for some in ended:
        wallet.balance = wallet.balance.holding(-some.of_balance)
        if not some.counts_on_grants:
            continue
        for request in some.ids:
            event = events.get(request)
            parts = wallet.end_hold(some.grants, event.cost_pico if event is not None else 0)
            if event is not None and parts and costs is not None:
                costs[event.period][event.project_id, event.model] -= sum(parts.values())
                of_period = paid[event.period]
                for grant, pico in parts.items():
                    of_period[grant] = of_period.get(grant, 0) + pico
    return paid
