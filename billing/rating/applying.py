"""Contract terms applied to a period's lines: pure functions, exact amounts, a fixed order.

The order: tiers, then discounts on the rest, then the minimum on the sum. What a commitment pays comes after them
(`billing.rating.commitments`). The discounts of a model add up, to all of its usage at most. Only a discount in basis
points can have a fraction of a pico-unit: what the discounts of a model have taken until then is rounded half-up, so
that all of them together never take more than there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from billing.calendar import period_bounds
from billing.money import round_half_up
from billing.prices.grid import amount
from billing.rating.lines import LineKind, RatedLine, money_text
from billing.rating.terms import FULL, ContractTerms, Discount, Step, Tiers


def apply_terms(lines: Sequence[RatedLine], terms: ContractTerms, period: str) -> list[RatedLine]:
    """The lines that tiers, discounts and the minimum add to a period's usage and storage lines, in order.

    Raises InvalidPeriod.
    """
    added: list[RatedLine] = []
    for tiers in _first_of_cells(terms.tiers):
        added += _tiered(lines, tiers, period)
    added += _discounted([line for line in lines if line.kind == "usage"] + added, terms.discounts, period)
    net = total([*lines, *added])
    days, of_days = (0, 0) if terms.minimum is None else terms.minimum.days(period)
    if terms.minimum is not None and days and net < (due := terms.minimum.due(period)):
        part = f" for {days} of {of_days} days" if terms.minimum.prorated and days < of_days else ""
        text = f"Minimum of the period{part}: what {money_text(net)} lacks of {money_text(due)}"
        added.append(_line("minimum", text, due - net, period))
    return added


def total(lines: Iterable[RatedLine]) -> int:
    """The sum of lines, in pico-units."""
    return sum(line.exact_pico for line in lines)


def total_before_minimum(lines: Iterable[RatedLine]) -> int:
    """What a commitment can pay of a period's lines: their sum without the minimum, in pico-units."""
    return total(line for line in lines if line.kind != "minimum")


def tiered_cost(tiers: Tiers, units: int) -> int:
    """The cost of a period's units by the steps, in pico-units."""
    return sum(of_step * step.price_micro for step, of_step in _by_step(tiers, units))


def share(pico: int, basis_points: int) -> int:
    """A share of an amount in hundredths of a percent, rounded half-up to pico-units."""
    return round_half_up(pico * basis_points, FULL)


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


def _first_of_cells(tiers: Iterable[Tiers]) -> list[Tiers]:
    """Of tiers for the same units the first: terms from before that was refused can have more."""
    return list({(one.model, one.meter, one.lane): one for one in reversed(list(tiers))}.values())[::-1]


def _discounted(lines: Iterable[RatedLine], discounts: Iterable[Discount], period: str) -> list[RatedLine]:
    """A line for each discount. What all take of a model is bounded by 100 %, whatever their sum."""
    sums: dict[str | None, int] = {}
    for line in lines:
        sums[line.model] = sums.get(line.model, 0) + line.exact_pico
    taken = dict.fromkeys(sums, 0)
    found = []
    for discount in discounts:
        off = 0
        for model, pico in sums.items():
            if discount.models and model not in discount.models:
                continue
            before, taken[model] = taken[model], min(FULL, taken[model] + discount.basis_points)
            off += share(pico, taken[model]) - share(pico, before)
        if off:
            percent = f"{discount.basis_points // 100}.{discount.basis_points % 100:02d}"
            on_models = f" on {', '.join(discount.models)}" if discount.models else ""
            model = discount.models[0] if len(discount.models) == 1 else None
            found.append(_line("discount", f"Discount of {percent} %{on_models}", -off, period, model=model))
    return found


def _line(kind: LineKind, text: str, pico: int, period: str, model: str | None = None) -> RatedLine:
    start, end = period_bounds(period)
    return RatedLine(kind=kind, description=text, model=model, exact_pico=pico, service_start=start, service_end=end)
