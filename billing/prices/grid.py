"""The grid of a price sheet: parsing prices, resolving multipliers, and the checks that every sheet passes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import pairwise

import msgspec

from billing.money import MICRO, PICO, InvalidPrice, format_pico, parse_price
from billing.prices.version import ALWAYS_PRICED, EVERY_LANE, HOURLY, LANES, STORAGE, Cell, Rows
from billing.usage import AUTOMATIC, LEASE_CLASSES, METERS

LOWEST_PRICE, HIGHEST_PRICE = 100, 10_000 * MICRO
"""Usual prices: 0.0001 to 10,000 units of currency per million. A price of exactly 0 means free."""
READS = tuple(f"read_{name}" for name in (AUTOMATIC, *LEASE_CLASSES))
WRITES = tuple(f"write_{name}" for name in LEASE_CLASSES)

_FACTOR = re.compile(r"(\d{1,6}(?:\.\d{1,12})?)x", re.ASCII)


def label(cell: Cell) -> str:
    """A cell in words: "output, batch lane, prompts from 200000 tokens"."""
    meter, lane, context_from = cell
    in_lane = "" if lane == EVERY_LANE else f", {lane} lane"
    return meter + in_lane + (f", prompts from {context_from} tokens" if context_from else "")


def in_order(rows: Rows) -> list[tuple[Cell, int]]:
    """The rows ordered by lane (`*` first), tier and meter."""
    lanes = {lane: n for n, lane in enumerate((EVERY_LANE, *LANES))}
    meters = {meter: n for n, meter in enumerate((*METERS, *HOURLY))}
    return sorted(rows.items(), key=lambda row: (lanes.get(row[0][1], 9), row[0][2], meters.get(row[0][0], 99)))


def digest(rows: Rows) -> str:
    """The SHA-256 of rows; their order does not matter."""
    return hashlib.sha256(msgspec.json.encode(sorted((*cell, micro) for cell, micro in rows.items()))).hexdigest()


def parse_rows(texts: Mapping[Cell, str]) -> dict[Cell, int]:
    """Rows from decimal prices per million. Raises InvalidPrice naming the meter."""
    return {cell: parse_price(text, cell[0]) for cell, text in texts.items()}


def parse_factor(text: str, of: str) -> Fraction:
    """A multiplier such as 1.25x. Raises InvalidPrice naming `of`."""
    match = _FACTOR.fullmatch(text)
    if match is None:
        raise InvalidPrice(of, f"{text!r} is not a multiplier such as 1.25x")
    return Fraction(match.group(1))


def times(micro: int, factor: Fraction, meter: str) -> int:
    """A price × a multiplier, exactly. Raises InvalidPrice if it would have to be rounded to a micro-unit."""
    product = micro * factor
    if product.denominator != 1:
        multiplier = format_pico(int(factor * PICO)).rstrip("0").rstrip(".")  # _FACTOR has no more places than that
        raise InvalidPrice(meter, f"{amount(micro)} × {multiplier} has more than 6 decimal places; give the price")
    return product.numerator


def check_rows(rows: Rows, *, whole: bool) -> None:
    """Raise InvalidPrice naming the meter unless the rows are valid: as a whole grid (`whole`), or as overrides."""
    for (meter, lane, context_from), micro in rows.items():
        if meter in HOURLY:
            _check_hourly(meter, lane, context_from, micro)
            continue
        if meter not in METERS:
            raise InvalidPrice(meter, "there is no such meter")
        if lane not in (EVERY_LANE, *LANES):
            raise InvalidPrice(meter, f"there is no lane {lane!r}; lanes are {', '.join(LANES)}")
        if context_from < 0:
            raise InvalidPrice(meter, f"a context tier cannot begin at {context_from} tokens")
    if not whole:
        if not rows:
            raise InvalidPrice("any meter", "a sheet needs at least one price")
        return
    _check_complete(rows)


def _check_complete(rows: Rows) -> None:
    for meter in ALWAYS_PRICED:
        if (meter, EVERY_LANE, 0) not in rows:
            raise InvalidPrice(meter, "it is missing, and any request may use it")
    meters = {meter for meter, _, _ in rows}
    lanes = {lane for _, lane, _ in rows}  # hourly meters add none: their lane is `*`
    tiers = {context_from for _, _, context_from in rows}
    for meter in METERS:
        for lane in lanes:
            for context_from in sorted(tiers):
                if meter in meters and (meter, lane, context_from) not in rows:
                    raise InvalidPrice(meter, f"missing: {label((meter, lane, context_from))}; a grid has no gaps")


def _check_hourly(meter: str, lane: str, context_from: int, micro: int) -> None:
    if (lane, context_from) != (EVERY_LANE, 0):
        raise InvalidPrice(meter, "it has one price for all lanes and context tiers")
    if meter == STORAGE and micro % 3600:
        raise InvalidPrice(
            STORAGE, f"{amount(micro)} is not a multiple of 0.0036, so a token-second has no whole price"
        )


def unusual(rows: Rows) -> list[InvalidPrice]:
    """Prices of a whole grid that are probably mistaken: out of scale, or higher than a price they should be below."""
    return [*_out_of_scale(rows), *_out_of_order(rows)]


def _out_of_scale(rows: Rows) -> Iterator[InvalidPrice]:
    for cell, micro in in_order(rows):
        if micro and not LOWEST_PRICE <= micro <= HIGHEST_PRICE:
            problem = f"{amount(micro)} per million is outside 0.0001 to 10000 ({label(cell)})"
            yield InvalidPrice(cell[0], problem)


def _out_of_order(rows: Rows) -> Iterator[InvalidPrice]:
    """Prices that break the usual order.

    read ≤ uncached ≤ write, a shorter class's write ≤ a longer class's, batch ≤ standard ≤ interactive.
    """

    def dearer(cheap: Cell, dear: Cell) -> Iterator[InvalidPrice]:
        if cheap in rows and dear in rows and rows[cheap] > rows[dear]:
            yield InvalidPrice(
                cheap[0],
                f"{label(cheap)} at {amount(rows[cheap])} is dearer than {label(dear)} at {amount(rows[dear])}",
            )

    for lane in (EVERY_LANE, *LANES):
        for tier in sorted({context_from for _, _, context_from in rows}):
            written = [(m, lane, tier) for m in ("uncached", *WRITES) if (m, lane, tier) in rows]
            for read in READS:
                yield from dearer((read, lane, tier), ("uncached", lane, tier))
            for cheap, dear in pairwise(written):
                yield from dearer(cheap, dear)
    for meter, lane, tier in [cell for cell, _ in in_order(rows)]:
        standard = (meter, "standard" if (meter, "standard", tier) in rows else EVERY_LANE, tier)
        if lane == "batch":
            yield from dearer((meter, lane, tier), standard)
        elif lane == "interactive":
            yield from dearer(standard, (meter, lane, tier))


def difference(before: Rows, after: Rows) -> list[tuple[Cell, int | None, int | None]]:
    """The cells whose prices differ, with the price before and after (None: no price)."""
    cells = [cell for cell, _ in in_order({**before, **after})]
    return [(cell, before.get(cell), after.get(cell)) for cell in cells if before.get(cell) != after.get(cell)]


def derived(rows: Rows, factors: Mapping[str, Fraction]) -> dict[Cell, int]:
    """The rows, with cells added that are exact multiples of them.

    A factor's name is what it makes: a meter (× the uncached price), a context tier by its lower bound (× the prices of
    the tier from 0), or a lane (× the prices of `*`). A tier or a lane can name one meter: `batch:output`. Raises
    InvalidPrice.
    """
    found = dict(rows)
    meters = {name: factor for name, factor in factors.items() if name in METERS}
    for meter, factor in meters.items():
        if (uncached := found.get(("uncached", EVERY_LANE, 0))) is None:
            raise InvalidPrice(meter, "it is to be a multiple of the uncached price, which is missing")
        found[meter, EVERY_LANE, 0] = times(uncached, factor, meter)
    others = {name: factor for name, factor in factors.items() if name not in meters}
    tiers = {name: factor for name, factor in others.items() if name.partition(":")[0].isdecimal()}
    lanes = {name: factor for name, factor in others.items() if name not in tiers}
    for which in (tiers, lanes):
        source = dict(found)
        for place in dict.fromkeys(name.partition(":")[0] for name in which):
            if place not in LANES and not (place.isascii() and place.isdecimal()):
                raise InvalidPrice(place, f"neither a meter, nor a lane ({', '.join(LANES)}), nor a number of tokens")
            for (meter, lane, tier), micro in source.items():
                if lane == EVERY_LANE and meter not in HOURLY and (which is lanes or tier == 0):
                    factor = which.get(f"{place}:{meter}", which.get(place, Fraction(1)))
                    cell = (meter, place, tier) if which is lanes else (meter, lane, int(place))
                    found[cell] = times(micro, factor, meter)
        for name in which:
            if ":" in name and name.partition(":")[2] not in {meter for meter, _, _ in source}:
                raise InvalidPrice(name.partition(":")[2], "it has no price to be multiplied")
    return found


def amount(micro: int) -> str:
    """A price as a decimal string per million: 400000 → "0.40"."""
    whole, rest = divmod(micro, MICRO)
    places = f"{rest:06d}".rstrip("0").ljust(2, "0")
    return f"{whole}.{places}"
