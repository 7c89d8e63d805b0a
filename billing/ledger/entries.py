"""Double-entry accounts: what each movement of money debits and what it credits, and the balance that follows from it.

Every tenant has its own accounts, in its currency:

| account | what it holds |
|---|---|
| `clearing` | where money comes from |
| `goodwill` | what we give away |
| `prepaid` | what we owe in service, since it was paid |
| `promo` | what we owe in service, since it was given |
| `restricted` | what we owe in service for one model or project only |
| `breakage` | what was paid and expired unused |
| `receivable` | usage that is not paid yet |
| `revenue` | what usage earned |
| `deferred` | what commitments asked for and have not paid of usage yet: we owe the service |
| `charges` | what invoice lines earned that are no usage |
| `invoiced` | what invoices asked for beyond usage |
| `tax` | what we owe to the state |
| `credited` | what credit notes took back |
| `rounding_carry` | what rounding left for later |
| `bad_debt` | what we lost: invoices that are not collected |
| `written_off` | the part of `receivable` and `invoiced` that is lost; it stands against them |
| `tax_relief` | the part of `tax` that the state owes us again, since nobody paid it; it stands against `tax` |

The last eight are those of invoices (`billing.invoices.accounting.posting`). An entry debits one account and credits
another, so that every transaction sums to zero.

Which money is used first is decided by `billing.ledger.wallet`. Usage that no money covers is receivable, and the next
payment goes there first. A `return` takes off what a period's rating lowers: it debits `charges`, and credits what was
owed and the grants that paid. A `draw` is what an invoice takes from paid credit for what is no usage: it debits
`prepaid` and credits `invoiced`. A `lapse` earns what a commitment that has ended did not pay: it debits `deferred` and
credits `breakage`.
"""

from __future__ import annotations

from typing import Literal
from uuid import UUID

import msgspec

Account = Literal[
    "bad_debt",
    "breakage",
    "charges",
    "clearing",
    "credited",
    "deferred",
    "goodwill",
    "invoiced",
    "prepaid",
    "promo",
    "receivable",
    "restricted",
    "revenue",
    "rounding_carry",
    "tax",
    "tax_relief",
    "written_off",
]
TransactionKind = Literal["adjustment", "draw", "expiry", "grant", "invoice", "lapse", "refund", "return", "usage"]
OF_EVENTS: tuple[TransactionKind, ...] = ("usage", "adjustment")
"""The kinds of transactions that post what usage events cost."""


class Entry(msgspec.Struct, frozen=True):
    """An amount, more than zero, from one account to another."""

    debit: Account
    credit: Account
    amount_pico: int
    grant_id: UUID | None = None
    """The grant that it is taken from or put into, if it is one."""


class Transaction(msgspec.Struct, frozen=True):
    """Entries that belong together. A grant's has the grant's id; usage is posted by settled batch, tenant and period:
    that an event counts once is the event's own key."""

    id: UUID
    tenant_id: UUID
    currency: str
    kind: TransactionKind
    period: str
    entries: list[Entry]
    memo: str = ""


class Balance(msgspec.Struct, frozen=True):
    """A tenant's money in pico-units.

    `credit`: put in. `debit`: used. `held`: reserved by open holds. `overdraft`: what is missing, if used and reserved
    are more than there is. `promo`: left of what was given. `receivable`: used and not paid; `credit_line`: how much
    this may become. `restricted`: left for one model or project only; `credit` and `held` do not include it. `holds`:
    how many holds there ever were. `budgets`: how many budgets are in force.
    """

    tenant_id: UUID
    currency: str
    credit: int
    debit: int
    held: int
    overdraft: int
    promo: int = 0
    receivable: int = 0
    credit_line: int = 0
    holds: int = 0
    budgets: int = 0
    restricted: int = 0

    @property
    def available(self) -> int:
        """What may still be reserved; negative only by as much as usage came in after its hold had expired, or as the
        credit line was lowered below what is used of it."""
        return self.credit - self.debit - self.held + self.credit_line

    @property
    def prepaid(self) -> int:
        """What is left of what was paid."""
        return self.credit - self.debit - self.promo + self.receivable

    def holding(self, pico: int) -> Balance:
        """With this much more held; less, if it is negative. What is not covered any more becomes overdraft."""
        return self._with(held=self.held + pico)

    def changed(self, **by: int) -> Balance:
        """With these columns more by so much; less, if it is negative."""
        return self._with(**{name: getattr(self, name) + more for name, more in by.items()})

    def with_credit_line(self, pico: int) -> Balance:
        """With another credit line."""
        return self._with(credit_line=pico)

    def _with(self, **changes: int) -> Balance:
        after = msgspec.structs.replace(self, **changes)
        return msgspec.structs.replace(after, overdraft=max(0, -after.available))
