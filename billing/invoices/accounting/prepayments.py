"""What an invoice takes from paid credit: advances with their VAT, and what it asks for beyond usage. Pure functions.

Usage takes its price from credit when it happens. What an invoice asks for beyond that (VAT, a minimum, storage, the
difference that a change of the rate makes) is taken from what is left of paid credit when the invoice is finalized, as
far as that goes. Credit that was bought with an advance-payment invoice is an amount without VAT, of which VAT was due
when it was paid: with each part that an invoice uses, the same part of that VAT is deducted. Other credit was bought
without VAT and pays for net and VAT alike.

The VAT of an advance is deducted as it was charged, whatever the rate is now. It never makes an invoice ask for less
than nothing: what does not fit is deducted from the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from billing.invoices.document import Deduction, Document
from billing.invoices.parties.tax import Category
from billing.money import minor_unit, round_half_up


class Advance(msgspec.Struct, frozen=True, kw_only=True):
    """An advance-payment invoice, and what became of it until now.

    `net` and `tax` are its minor units; of these, `deducted` (pico-units) and `deducted_tax` (minor units) are on
    invoices. `used` pico-units of its credit have paid for usage and for what invoices asked for beyond that.
    """

    id: UUID
    number: str
    issued: str
    category: Category
    rate: int
    net: int
    tax: int
    used: int
    deducted: int = 0
    deducted_tax: int = 0

    def tax_until(self, deducted: int, unit: int) -> int:
        """The VAT of the first so many pico-units, in minor units."""
        return round_half_up(self.tax * deducted, self.net * unit) if self.net else 0


class CreditSource(msgspec.Struct, frozen=True):
    """Paid credit that is there now: `free` pico-units of one grant, which no open hold counts on. `advance`: what it
    was bought with, None for credit without VAT."""

    grant_id: UUID
    free: int
    advance: Advance | None = None


class PaidByCredit(msgspec.Struct, frozen=True):
    """A document with its deductions, and the pico-units that are drawn from each grant for it."""

    document: Document
    draws: Mapping[UUID, int] = {}


class _Deducted:
    """What one document deducts of advances, while that is computed. `room`: minor units that it still asks for."""

    def __init__(self, advances: Sequence[Advance], room: int, unit: int) -> None:
        self.advances = advances
        self.room = room
        self.unit = unit
        self.pico: dict[UUID, int] = {}
        self.tax: dict[UUID, int] = {}

    def tax_of(self, advance: Advance, pico: int) -> int:
        """The VAT to deduct if so much of the advance is used, with what did not fit earlier; not more than room."""
        target = advance.tax_until(advance.deducted + pico, self.unit)
        return target - advance.deducted_tax - self.tax.get(advance.id, 0)

    def use(self, advance: Advance, pico: int, room: int) -> int:
        """Use so much of an advance: deduct its VAT as far as there is room, and return that."""
        whole = self.pico.get(advance.id, 0) + pico
        tax = min(self.tax_of(advance, whole), room)
        self.pico[advance.id] = whole
        self.tax[advance.id] = self.tax.get(advance.id, 0) + tax
        self.room -= tax
        return tax


def pay_from_credit(
    document: Document, advances: Sequence[Advance], sources: Sequence[CreditSource], *, free: int, reserved: int = 0
) -> PaidByCredit:
    """Deduct from a draft what advances paid of it with their VAT, then draw what it asks for from credit.

    `advances` are all of the tenant, `sources` what is left of credit, both in the order of use; `free` pico-units of
    that may be used. `reserved` minor units of the document are not paid from credit.
    """
    unit = minor_unit(document.currency)
    deducted = _Deducted(advances, document.gross - document.prepaid, unit)
    prepaid = int(document.prepaid_exact)
    open_ = {one.id: one.used - one.deducted for one in advances}
    left = prepaid - sum(min(0, pico) for pico in open_.values())
    for one in advances:  # what was taken back of usage first: its VAT is due again
        if open_[one.id] < 0:
            deducted.use(one, open_[one.id], deducted.room)
    for one in advances:
        part = max(0, min(left, open_[one.id]))
        left -= part
        deducted.use(one, part, max(0, deducted.room))
    owed = max(0, _owed(document))
    drawable = max(0, (deducted.room - reserved) * unit - owed) // unit
    draws: dict[UUID, int] = {}
    for source in sources:
        minor = min(source.free, free) // unit
        if source.advance is None:
            minor = min(minor, drawable)
            drawable -= minor
            deducted.room -= minor
        else:
            minor = _affordable(deducted, source.advance, minor, drawable)
            if minor:
                drawable -= minor + deducted.use(source.advance, minor * unit, drawable - minor)
                deducted.room -= minor
        if minor:
            draws[source.grant_id] = minor * unit
            free -= minor * unit
    drawn = sum(draws.values()) // unit
    rows = [_deduction(one, deducted) for one in advances]
    rows = [row for row in rows if row.tax or int(row.exact)]
    paid = msgspec.structs.replace(
        document, deductions=rows or msgspec.UNSET, drawn=drawn or msgspec.UNSET, payable=deducted.room
    )
    return PaidByCredit(paid, draws)


def _affordable(deducted: _Deducted, advance: Advance, most: int, drawable: int) -> int:
    """The most minor units of an advance that pay, with their VAT, for no more than `drawable`."""
    low, high = 0, max(0, min(most, drawable))
    while low < high:
        middle = (low + high + 1) // 2
        pico = deducted.pico.get(advance.id, 0) + middle * deducted.unit
        if middle + max(0, deducted.tax_of(advance, pico)) <= drawable:
            low = middle
        else:
            high = middle - 1
    return low


def _owed(document: Document) -> int:
    """The usage of a document that nobody has paid, in pico-units."""
    sums = {"usage": 0, "credit": 0}
    for line in document.lines:
        if line.kind in sums:
            sums[line.kind] += int(line.exact)
    returned = 0 if document.returned is msgspec.UNSET else int(document.returned.exact)
    return sums["usage"] + sums["credit"] - returned - int(document.prepaid_exact)


def _deduction(advance: Advance, deducted: _Deducted) -> Deduction:
    pico, unit = deducted.pico.get(advance.id, 0), deducted.unit
    net = round_half_up(advance.deducted + pico, unit) - round_half_up(advance.deducted, unit)
    return Deduction(
        advance=str(advance.id),
        number=advance.number,
        issued=advance.issued,
        category=advance.category,
        rate=advance.rate,
        exact=str(pico),
        net=net,
        tax=deducted.tax.get(advance.id, 0),
    )


def without_credit(document: Document) -> Document:
    """A document without what follows from the credit that is there at the moment: what two drafts must agree in."""
    return msgspec.structs.replace(document, deductions=msgspec.UNSET, drawn=msgspec.UNSET, payable=0)
