"""From rated lines to the content of an invoice: rounding, carry, credit and tax. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import get_args
from uuid import UUID

import msgspec

from billing.calendar import period_bounds
from billing.invoices.document import Document, InvoiceLine, Returned, Savings
from billing.invoices.parties.dated import InvoiceParties
from billing.invoices.parties.parties import Detail
from billing.invoices.parties.tax import Tax, TaxTotal, tax_totals
from billing.money import RoundedAmount, minor_unit, round_half_up, round_with_carry
from billing.rating.lines import LineKind, RatedLine
from billing.usage import METERS
from storage.database.base import from_instant

_UNITS = {"usage": "tokens", "storage": "token-seconds", "residency": "millihours"}
_KINDS = get_args(LineKind)


class Funding(msgspec.Struct, frozen=True):
    """How the usage was paid for until now, in pico-units.

    `promo` is promotional credit, `prepaid` what was paid in advance, both after what is `returned` to the balance. Of
    that return, `returned_credit` goes to paid and `returned_promo` to promotional credit. `carry` and `prepaid_carry`
    are what the rounding of earlier documents left, of the billed and of the prepaid amounts.
    """

    promo: int = 0
    prepaid: int = 0
    carry: int = 0
    prepaid_carry: int = 0
    returned: int = 0
    returned_credit: int = 0
    returned_promo: int = 0


class Exact(msgspec.Struct, frozen=True):
    """Sums of a document's lines, in pico-units: usage, promotional credit, and all other lines."""

    usage: int
    promo: int
    charges: int


def compose(
    parties: InvoiceParties,
    tenant_id: UUID,
    period: str,
    *,
    currency: str,
    rated: Sequence[RatedLine],
    funding: Funding,
    savings: Savings,
    projects: Mapping[UUID, str],
) -> Document:
    """The draft of an invoice. `rated` are the period's lines, all in `currency`; `projects` are names by id.

    Each line is rounded once. What rounding leaves is carried, and becomes a line once it comes to a minor unit. A
    negative sum is carried whole. Promotional credit lowers the taxable amount; prepaid credit is deducted from the
    total. The tax of each line is that of its own period's end, that of an advance the issue date's. Raises
    InvalidParty.
    """
    unit, seller, buyer = minor_unit(currency), parties.seller, parties.buyer
    start, end = period_bounds(period)
    priced = merged(rated, buyer.detail)
    if funding.promo:
        priced.append(_plain("credit", "Promotional credit", start, end, -funding.promo))
    taxed = _with_taxes(priced, parties)
    lines = [_line(line, unit, tax, projects) for line, tax in taxed]
    taxes = _by_rate(tax for _, tax in taxed)
    exact = sum(int(line.exact) for line in lines)
    billed = round_with_carry(exact, funding.carry, unit)
    if over := billed.amount - sum(line.net for line in lines):
        text = "Rounding of all lines together, with what earlier periods left"
        taxes = taxes or _by_rate([parties.tax_on(parties.event)])
        nets = _nets(lines)
        largest = max(taxes, key=lambda rate: abs(nets[rate]))
        lines.append(_carried(text, over, taxes[largest], start, end))
    totals = _totals(lines, taxes)
    if billed.amount < 0 or billed.amount + _vat(totals) < 0:  # an invoice cannot ask for a negative amount
        lines = [line for line in lines if line.kind != "carry"]
        text = "Credit carried to the next invoice"
        lines += [_carried(text, -net, taxes[rate], start, end) for rate, net in _nets(lines).items() if net]
        billed, totals = RoundedAmount(0, exact + funding.carry), _totals(lines, taxes)
    vat = _vat(totals)
    prepaid = round_with_carry(funding.prepaid, funding.prepaid_carry, unit).amount
    if funding.prepaid == exact:
        prepaid = billed.amount
    prepaid = min(max(prepaid, 0), billed.amount, billed.amount + vat)
    return Document(
        kind="invoice",
        series=seller.series,
        period=period,
        service_from=_day(start),
        service_until=_day(end - 1),
        currency=currency,
        seller=seller,
        tenant_id=str(tenant_id),
        buyer=buyer,
        lines=lines,
        taxes=totals,
        net=billed.amount,
        tax=vat,
        gross=billed.amount + vat,
        prepaid=prepaid,
        payable=billed.amount + vat - prepaid,
        prepaid_exact=str(funding.prepaid),
        carry_in=str(funding.carry),
        carry_out=str(billed.carry),
        prepaid_carry_in=str(funding.prepaid_carry),
        prepaid_carry_out=str(funding.prepaid + funding.prepaid_carry - prepaid * unit),
        returned=_returned(funding),
        savings=savings if savings.models else "",
    )


def _with_taxes(lines: Sequence[RatedLine], parties: InvoiceParties) -> list[tuple[RatedLine, Tax]]:
    """Each line with its tax. What lowers usage is divided by the taxes of that usage, if there are several."""
    days = {_tax_day(line, parties) for line in lines}
    by_day = {day: parties.tax_on(day) for day in sorted(days | {parties.event})}
    used: dict[Tax, list[RatedLine]] = defaultdict(list)
    for line in lines:
        if line.kind in _UNITS:
            used[by_day[_tax_day(line, parties)]].append(line)
    taxed = []
    for line in lines:
        if line.kind in _UNITS or line.exact_pico >= 0:
            taxed.append((line, by_day[_tax_day(line, parties)]))
        else:
            taxed += _divided(line, used, by_day[parties.event])
    return taxed


def _tax_day(line: RatedLine, parties: InvoiceParties) -> str:
    """The day of a line's chargeable event: the last one of its period; of an advance, that of its invoice."""
    is_advance = line.kind == "commitment" and line.exact_pico > 0
    return parties.issued if is_advance else _day(line.service_end - 1)


def _divided(line: RatedLine, used: Mapping[Tax, Sequence[RatedLine]], otherwise: Tax) -> list[tuple[RatedLine, Tax]]:
    """A line that lowers usage, in parts that are proportional to what was used under each tax."""
    weights = {
        tax: max(0, sum(each.exact_pico for each in lines if line.model in (None, each.model)))
        for tax, lines in used.items()
    }
    weights = {tax: weight for tax, weight in weights.items() if weight}
    if len(weights) < 2:
        return [(line, next(iter(weights), otherwise))]
    parts, before, done = [], 0, 0
    for tax, weight in weights.items():
        before += weight
        until = line.exact_pico * before // sum(weights.values())
        parts.append((msgspec.structs.replace(line, exact_pico=until - done), tax))
        done = until
    return [(part, tax) for part, tax in parts if part.exact_pico]


def _nets(lines: Iterable[InvoiceLine]) -> dict[tuple[str, int], int]:
    """Sums of the nets of lines by category and rate."""
    nets: dict[tuple[str, int], int] = defaultdict(int)
    for line in lines:
        nets[line.category, line.rate] += line.net
    return nets


def _carried(text: str, net: int, tax: Tax, start: int, end: int) -> InvoiceLine:
    """A line of what is rounded or carried: it has a net and no exact amount."""
    return msgspec.structs.replace(_line(_plain("carry", text, start, end, 0), 1, tax, {}), net=net)


def _by_rate(taxes: Iterable[Tax]) -> dict[tuple[str, int], Tax]:
    """Taxes by category and rate. Several reasons of one are joined."""
    by_rate: dict[tuple[str, int], Tax] = {}
    for tax in taxes:
        known = by_rate.setdefault((tax.category, tax.rate), tax)
        if tax.reason not in known.reason:
            by_rate[tax.category, tax.rate] = Tax(tax.category, tax.rate, f"{known.reason}; {tax.reason}")
    return by_rate


def _totals(lines: Iterable[InvoiceLine], taxes: Mapping[tuple[str, int], Tax]) -> list[TaxTotal]:
    return tax_totals((taxes[line.category, line.rate], line.net) for line in lines)


def _vat(totals: Iterable[TaxTotal]) -> int:
    return sum(total.tax for total in totals)


def _returned(funding: Funding) -> Returned | msgspec.UnsetType:
    if not funding.returned:
        return msgspec.UNSET
    exact, credit, promo = map(str, (funding.returned, funding.returned_credit, funding.returned_promo))
    return Returned(exact=exact, credit=credit, promo=promo)


def exact_of(lines: Iterable[InvoiceLine]) -> Exact:
    """The exact sums of lines."""
    sums = {"usage": 0, "credit": 0, "charges": 0}
    for line in lines:
        sums[line.kind if line.kind in sums else "charges"] += int(line.exact)
    return Exact(sums["usage"], -sums["credit"], sums["charges"])


def merged(rated: Iterable[RatedLine], detail: Detail) -> list[RatedLine]:
    """The lines in the order of the document. With detail `model`, lines that differ in the project alone are added."""
    found: dict[tuple[object, ...], RatedLine] = {}
    for line in rated:
        if detail == "model" and line.kind in _UNITS:
            line = msgspec.structs.replace(line, project_id=None)  # noqa: PLW2901
        key = tuple(
            value
            for name, value in zip(line.__struct_fields__, msgspec.structs.astuple(line), strict=True)
            if name not in ("units", "exact_pico")
        )
        before = found.get(key)
        if before is not None:
            units, exact = before.units + line.units, before.exact_pico + line.exact_pico
            line = msgspec.structs.replace(line, units=units, exact_pico=exact)  # noqa: PLW2901
        found[key] = line
    return sorted(found.values(), key=_order)


def _order(line: RatedLine) -> tuple[object, ...]:
    """By period, project, model, kind; lines without a project come after those with one, and so for models."""
    return (
        line.corrects_period or "",
        line.project_id is None,
        str(line.project_id or ""),
        line.model is None,
        line.model or "",
        _KINDS.index(line.kind),
        line.lane or "",
        line.context_from,
        line.price_version or 0,
        METERS.index(line.meter) if line.meter in METERS else len(METERS),
    )


def _plain(kind: str, text: str, start: int, end: int, pico: int) -> RatedLine:
    return msgspec.convert(
        {"kind": kind, "description": text, "exact_pico": pico, "service_start": start, "service_end": end}, RatedLine
    )


def _line(line: RatedLine, unit: int, tax: Tax, projects: Mapping[UUID, str]) -> InvoiceLine:
    project = line.project_id
    return InvoiceLine(
        kind=line.kind,
        text=line.description,
        project_id="" if project is None else str(project),
        project="" if project is None else projects.get(project, str(project)),
        model=line.model or "",
        meter=line.meter or "",
        lane=line.lane or "",
        context_from=line.context_from,
        price_version=line.price_version or 0,
        price=line.price_micro or 0,
        units=str(line.units),
        unit=_UNITS.get(line.kind, "") if line.price_micro is not None else "",
        corrects=line.corrects_period or "",
        service_from=_day(line.service_start),
        service_until=_day(line.service_end - 1),
        exact=str(line.exact_pico),
        net=round_half_up(line.exact_pico, unit),
        category=tax.category,
        rate=tax.rate,
    )


def _day(instant: int) -> str:
    return from_instant(instant).date().isoformat()
