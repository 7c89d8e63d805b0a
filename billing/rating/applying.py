"""Applying a contract's terms to a period's lines: pure, exact, and in one order.

Tiers first, then discounts on what that leaves, then the minimum on what the period comes to, then what a commitment
pays of it. A discount of basis points is the one place where an amount can have a fraction of a pico-unit; it is
rounded half-up, once for each discount.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from billing.calendar import period_bounds
from billing.money import MICRO
from billing.prices.grid import amount
from billing.rating.lines import LineKind, RatedLine
from billing.rating.terms import Commitment, ContractTerms, Discount, Step, Tiers


def apply_terms(
    lines: Sequence[RatedLine], terms: ContractTerms, period: str, drawn_before: int = 0
) -> list[RatedLine]:
    """The lines that terms add to a period's usage and storage lines, in order.

    `drawn_before` is what earlier periods took of the commitment, in pico-units. Raises InvalidPeriod.
    """
    added: list[RatedLine] = []
    for tiers in terms.tiers:
        added += _tiered(lines, tiers, period)
    of_usage = [line for line in lines if line.kind == "usage"] + added
    for discount in terms.discounts:
        added += _discounted(of_usage, discount, period)
    net = total([*lines, *added])
    if terms.minimum is not None and net < terms.minimum.amount_pico:
        missing = terms.minimum.amount_pico - net
        text = f"Minimum of the period: what {_money(net)} lacks of {_money(terms.minimum.amount_pico)}"
        added.append(_line("minimum", text, missing, period))
    if terms.commitment is not None:
        added += _committed(terms.commitment, net, period, drawn_before)
    return added


def total(lines: Iterable[RatedLine]) -> int:
    """What lines come to, in pico-units."""
    return sum(line.exact_pico for line in lines)


def tiered_cost(tiers: Tiers, units: int) -> int:
    """What so many units of a period cost by steps, in pico-units."""
    return sum(of_step * step.price_micro for step, of_step in _by_step(tiers, units))


def drawn(commitment: Commitment, net: int, period: str, drawn_before: int) -> int:
    """What a period that comes to `net` takes of a commitment, in pico-units."""
    if not commitment.first <= period <= commitment.last:
        return 0
    return max(0, min(net, commitment.amount_pico - drawn_before))


def share(pico: int, basis_points: int) -> int:
    """So many hundredths of a percent of an amount, half-up (half away from zero) in pico-units."""
    part = (2 * abs(pico) * basis_points + 10_000) // 20_000
    return part if pico >= 0 else -part


def _by_step(tiers: Tiers, units: int) -> list[tuple[Step, int]]:
    if tiers.kind == "volume":
        return [(next(step for step in tiers.steps if step.up_to is None or units <= step.up_to), units)]
    found = []
    below = 0
    for step in tiers.steps:
        upper = units if step.up_to is None else min(units, step.up_to)
        if upper > below:
            found.append((step, upper - below))
            below = upper
    return found


def _tiered(lines: Iterable[RatedLine], tiers: Tiers, period: str) -> list[RatedLine]:
    """What steps make cheaper. Long prompts have their own prices, and late usage the steps of its own period."""
    mine = [
        line
        for line in lines
        if line.kind == "usage"
        and (line.model, line.meter, line.lane, line.context_from) == (tiers.model, tiers.meter, tiers.lane, 0)
        and line.corrects_period is None
    ]
    units = sum(line.units for line in mine)
    difference = tiered_cost(tiers, units) - total(mine)
    if units <= 0 or difference >= 0:
        return []
    steps = ", ".join(f"{of_step:,} at {amount(step.price_micro)}" for step, of_step in _by_step(tiers, units))
    text = f"{tiers.model}: {tiers.kind} prices of {tiers.meter}, {tiers.lane} lane: {steps}"
    return [_line("discount", text, difference, period, model=tiers.model)]


def _discounted(lines: Iterable[RatedLine], discount: Discount, period: str) -> list[RatedLine]:
    off = share(total(line for line in lines if not discount.models or line.model in discount.models),
                discount.basis_points)  # fmt: skip
    if not off:
        return []
    percent = f"{discount.basis_points // 100}.{discount.basis_points % 100:02d}"
    of = f" on {', '.join(discount.models)}" if discount.models else ""
    model = discount.models[0] if len(discount.models) == 1 else None
    return [_line("discount", f"Discount of {percent} %{of}", -off, period, model=model)]


def _committed(commitment: Commitment, net: int, period: str, drawn_before: int) -> list[RatedLine]:
    added = []
    if commitment.invoiced and period == commitment.first:
        text = f"Commitment for {commitment.first} to {commitment.last}"
        added.append(_line("commitment", text, commitment.amount_pico, period))
    used = drawn(commitment, net, period, drawn_before)
    if used:
        left = commitment.amount_pico - drawn_before - used
        added.append(_line("commitment", f"Paid by the commitment, of which {_money(left)} is left", -used, period))
    return added


def _line(kind: LineKind, text: str, pico: int, period: str, model: str | None = None) -> RatedLine:
    start, end = period_bounds(period)
    return RatedLine(kind=kind, description=text, model=model, exact_pico=pico, service_start=start, service_end=end)


def _money(pico: int) -> str:
    return f"{'-' if pico < 0 else ''}{amount(abs(pico) // MICRO)}"
