"""Import of LiteLLM's price file (`model_prices_and_context_window.json`), exactly, with checks for mistakes in it.

Its keys are component × lane × tier, its values USD per token as floating-point numbers. They are read from their text:
`1e-06` is one micro-dollar per token, and a price that is not a whole number of micro-units per million is refused.
`above_200k_tokens` means more than 200,000, so the tier begins at 200,001. `priority` is the interactive lane; `flex`
and `batches` are both the batch lane and must agree.

Entries are sometimes wrong by powers of ten (16 of them in 2026-08). So proportions within an entry are checked too,
beside the checks of every sheet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec

from billing.money import MICRO, InvalidPrice
from billing.prices.errors import PriceRefused
from billing.prices.grid import READS, amount, check_rows, label, unusual
from billing.prices.version import EVERY_LANE, Cell

_COMPONENTS = {
    "input_cost_per_token": "uncached",
    "output_cost_per_token": "output",
    "cache_read_input_token_cost": "read",
    "cache_creation_input_token_cost": "write_5m",
    "cache_creation_input_token_cost_above_1hr": "write_1h",
}
_LANES = {"priority": "interactive", "flex": "batch", "batches": "batch"}
_KEY = re.compile(
    f"({'|'.join(sorted(_COMPONENTS, key=len, reverse=True))})"
    rf"(?:_above_(\d+)k_tokens)?(?:_({'|'.join(_LANES)}))?(?:_above_(\d+)k_tokens)?",
    re.ASCII,
)
_IS_COST = re.compile(r"cost|pric", re.ASCII)
_PROPORTION = 100
"""An output token may cost from a tenth of an uncached one to this many; a lane or tier at most a tenth of this many
times the standard price."""


class Imported(msgspec.Struct, frozen=True):
    """One entry: its rows, or the reasons to refuse it; cost keys without a meter of ours; and assumptions made."""

    rows: dict[Cell, int]
    refused: list[str]
    unknown: list[str]
    assumed: list[str]


def read_file(text: str) -> dict[str, dict[str, Any]]:
    """The entries by name, with their numbers as exact decimals. Raises PriceRefused."""
    try:
        found = json.loads(
            text, parse_float=Decimal, parse_int=Decimal, parse_constant=_not_a_number, object_pairs_hook=_no_repeats
        )
    except (ValueError, RecursionError) as error:
        raise PriceRefused(f"the file is not LiteLLM's price file: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(entry, dict) for entry in found.values()):
        raise PriceRefused("the file is not LiteLLM's price file, which is an object of objects")
    return found


def _not_a_number(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number")


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has {repeated!r} twice")
    return found


def read_entry(entry: dict[str, Any], ignored: Collection[str] = ()) -> Imported:
    """The rows of one entry, without the keys in `ignored`."""
    refused: list[str] = []
    unknown: list[str] = []
    said: dict[Cell, tuple[str, int]] = {}
    for name, value in entry.items():
        match = _KEY.fullmatch(name)
        if name in ignored or value is None or (match is None and not _IS_COST.search(name)):
            continue
        if match is None or (match.group(2) and match.group(4)):
            unknown.append(name)
            continue
        component, tier, lane = match.group(1), match.group(2) or match.group(4), match.group(3)
        cell = (_COMPONENTS[component], _LANES[lane] if lane else EVERY_LANE, int(tier) * 1000 + 1 if tier else 0)
        micro = _micro(name, value)
        if isinstance(micro, str):
            refused.append(micro)
        elif cell in said and said[cell][1] != micro:
            refused.append(f"{said[cell][0]} and {name} differ, and both are {label(cell)}; --ignore one of them")
        else:
            said[cell] = (name, micro)
    rows, assumed = _without_gaps({cell: micro for cell, (_, micro) in said.items()})
    if not refused:
        refused = _doubts(rows)
    return Imported(rows, refused, sorted(unknown), assumed)


def _micro(name: str, value: Any) -> int | str:
    """Micro-units per million of a price per token, or the reason to refuse it."""
    if not isinstance(value, Decimal):
        return f"{name} is {value!r}, not a number"
    micro = Fraction(value) * MICRO * MICRO
    if micro < 0:
        return f"{name} is negative"
    if micro.denominator != 1:
        return f"{name} is {value} per token, which has more than 6 decimal places per million; set the price yourself"
    return micro.numerator


def _without_gaps(said: dict[Cell, int]) -> tuple[dict[Cell, int], list[str]]:
    """The full grid, and the assumptions made: a missing cell has the price of `*`, or of the tier from 0."""
    assumed: list[str] = []
    lanes = [EVERY_LANE, *sorted({lane for _, lane, _ in said} - {EVERY_LANE})]
    tiers = sorted({0, *(tier for _, _, tier in said)})
    meters = {meter for meter, _, _ in said}
    grid: dict[Cell, int] = {}
    for meter in sorted(meters):
        for lane in lanes:
            for tier in tiers:
                nearest = ((meter, lane, tier), (meter, EVERY_LANE, tier), (meter, lane, 0), (meter, EVERY_LANE, 0))
                found = next((cell for cell in nearest if cell in said), None)
                if found is None:
                    continue
                grid[meter, lane, tier] = said[found]
                if found != nearest[0]:
                    assumed.append(f"{label(nearest[0])} as {label(found)}")
    reads = {(lane, tier): micro for (meter, lane, tier), micro in grid.items() if meter == "read"}
    if not reads:
        reads = {(lane, tier): micro for (meter, lane, tier), micro in grid.items() if meter == "uncached"}
        assumed.append("cached input costs as much as input")
    rows = {cell: micro for cell, micro in grid.items() if cell[0] != "read"}
    rows |= {(meter, lane, tier): micro for (lane, tier), micro in reads.items() for meter in READS}
    return rows, assumed


def _doubts(rows: dict[Cell, int]) -> list[str]:
    """Reasons to refuse rows: gaps, prices out of scale or order, and proportions that nobody charges."""
    try:
        check_rows(rows, whole=True)
    except InvalidPrice as error:
        return [str(error)]
    found = [str(problem) for problem in unusual(rows)]
    for (meter, lane, tier), micro in rows.items():
        plain = rows[meter, EVERY_LANE, 0]
        uncached = rows["uncached", lane, tier]
        if meter == "output" and uncached and not uncached <= 10 * micro <= 10 * _PROPORTION * uncached:
            found.append(f"{label((meter, lane, tier))} at {amount(micro)} beside input at {amount(uncached)}")
        if plain and not plain * 10 <= micro * _PROPORTION <= plain * 10 * _PROPORTION:
            found.append(f"{label((meter, lane, tier))} at {amount(micro)} beside {amount(plain)} in general")
    return found
