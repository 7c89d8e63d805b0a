"""Contract terms applied to a period's lines: pure functions, exact amounts, a fixed order.

The order: tiers, then discounts on the rest, then the minimum on the sum, then what a commitment pays of it. Only a
discount in basis points can have a fraction of a pico-unit; it is rounded half-up, once for each discount.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from billing.calendar import period_bounds
from billing.money import MICRO, round_half_up
from billing.prices.grid import amount
from billing.rating.lines import LineKind, RatedLine
from billing.rating.terms import Commitment, ContractTerms, Discount, Step, Tiers


def apply_terms(
    lines: Sequence[RatedLine], terms: ContractTerms, period: str, drawn_before: int = 0
) -> list[RatedLine]:
    """The lines that terms add to a period's usage and storage lines, in order.

    `drawn_before` is what earlier periods drew from the commitment, in pico-units. Raises InvalidPeriod.
    """
    added: list[RatedLine] = []
    for tiers in terms.tiers:
        added += _tiered(lines, tiers, period)
    of_usage = [line for line in lines if line.kind == "usage"] + added
    for discount in terms.discounts:
        added += _discounted(of_usage, discount, period)
    net = total([*lines, *added])
    days, of_days = (0, 0) if terms.minimum is None else terms.minimum.days(period)
    if terms.minimum is not None and days and net < (due := terms.minimum.due(period)):
        part = f" for {days} of {of_days} days" if terms.minimum.prorated and days < of_days else ""
        text = f"Minimum of the period{part}: what {_money(net)} lacks of {_money(due)}"
        added.append(_line("minimum", text, due - net, period))
    if terms.commitment is not None:
        added += _committed(terms.commitment, net, period, drawn_before)
    return added


def total(lines: Iterable[RatedLine]) -> int:
    """The sum of lines, in pico-units."""
    return sum(line.exact_pico for line in lines)


def tiered_cost(tiers: Tiers, units: int) -> int:
    """The cost of a period's units by the steps, in pico-units."""
    return sum(of_step * step.price_micro for step, of_step in _by_step(tiers, units))


def drawn(commitment: Commitment, net: int, period: str, drawn_before: int) -> int:
    """What a period with the sum `net` draws from a commitment, in pico-units."""
    if not commitment.first <= period <= commitment.last:
        return 0
    return max(0, min(net, commitment.amount_pico - drawn_before))


def share(pico: int, basis_points: int) -> int:
    """A share of an amount in hundredths of a percent, rounded half-up to pico-units."""
    return round_half_up(pico * basis_points, 10_000)


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
    """The difference that steps make, if they make usage cheaper. Long prompts and late usage are left out."""
    counted = [
        line
        for line in lines
        if line.kind == "usage"
        and (line.model, line.meter, line.lane, line.context_from) == (tiers.model, tiers.meter, tiers.lane, 0)
        and line.corrects_period is None
    ]
    units = sum(line.units for line in counted)
    difference = tiered_cost(tiers, units) - total(counted)
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
    on_models = f" on {', '.join(discount.models)}" if discount.models else ""
    model = discount.models[0] if len(discount.models) == 1 else None
    return [_line("discount", f"Discount of {percent} %{on_models}", -off, period, model=model)]


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
