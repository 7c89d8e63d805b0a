"""Prices as CSV for spreadsheets, written and read back exactly."""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterable

from billing.money import InvalidPrice
from billing.prices.errors import PriceRefused
from billing.prices.grid import amount, in_order, parse_rows
from billing.prices.version import EVERY_LANE, Cell, Rows

COLUMNS = ("model", "meter", "lane", "context_from", "price_per_million", "currency")
_TOKENS = re.compile(r"[0-9]{1,18}")


def write_csv(models: Iterable[tuple[str, str, Rows]]) -> str:
    """CSV with a header from (model, currency, rows); the lane `*` is every lane without rows of its own."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for model, currency, rows in models:
        writer.writerows((model, *cell, amount(micro), currency) for cell, micro in in_order(rows))
    return out.getvalue()


def read_csv(text: str) -> dict[str, tuple[str, dict[Cell, int]]]:
    """Currency and rows by model. Raises PriceRefused naming the line, InvalidPrice naming the meter."""
    # with newline="" the csv module ends lines itself, at a bare \r too
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline=""))
    try:
        names, lines = reader.fieldnames or (), list(reader)
    except csv.Error as error:
        raise PriceRefused(f"the CSV is wrong after line {reader.line_num}: {error}") from error
    if missing := [name for name in COLUMNS if name not in names]:
        raise PriceRefused(f"the CSV has no column {missing[0]!r}; it needs {', '.join(COLUMNS)}")
    cells: dict[str, dict[Cell, str]] = defaultdict(dict)
    currencies: dict[str, str] = {}
    for number, row in enumerate(lines, 2):
        given = {name: (row[name] or "").strip() for name in COLUMNS}
        if not _TOKENS.fullmatch(given["context_from"]):
            raise PriceRefused(f"line {number}: context_from is {given['context_from']!r}, not a number of tokens")
        model = given["model"]
        cell = (given["meter"], given["lane"] or EVERY_LANE, int(given["context_from"]))
        if cell in cells[model]:
            raise PriceRefused(f"line {number}: an earlier line has the price of {cell[0]} for this lane and tier")
        if currencies.setdefault(model, given["currency"]) != given["currency"]:
            raise PriceRefused(f"line {number}: {model} has prices in {currencies[model]} and {given['currency']}")
        cells[model][cell] = given["price_per_million"]
    found = {}
    for model, texts in cells.items():
        try:
            found[model] = (currencies[model], parse_rows(texts))
        except InvalidPrice as error:
            raise InvalidPrice(error.meter, f"{error.problem} (model {model})") from error
    return found
