"""Prices as people write them, in flags and model folders, made into rows of a price sheet."""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from billing.money import InvalidPrice
from model_files.model_documents import own_name
from turnpike.command_context import CURRENCY
from turnpike.command_line import CommandError, CommandParser

if TYPE_CHECKING:
    from fractions import Fraction

    from billing.prices.version import Cell

METER_WORDS = {
    "uncached": "prompt tokens that were computed",
    "read": "prompt tokens that were cached",
    "output": "output tokens",
    "write-5m": "prompt tokens written for 5 minutes",
    "write-30m": "… for 30 minutes",
    "write-1h": "… for an hour",
    "write-12h": "… for 12 hours",
    "write-24h": "… for 24 hours",
    "storage": "cached tokens stored for an hour, PRICE for a million token-hours",
    "resident": "an adapter that a replica keeps ready, PRICE for 1,000 hours",
}
"""A word of the command line for each meter; `read` is every class's read price."""
_CELL = re.compile(r"([a-z0-9_-]+)(?:@([a-z]+))?(?::(\d{1,12}))?", re.ASCII)


def add_cells(parser: CommandParser) -> None:
    """Take prices, by meter, by cell and by factor."""
    for word, text in METER_WORDS.items():
        parser.add_argument(f"--{word}", metavar="PRICE", help=text)
    parser.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="METER[@LANE][:FROM]=PRICE",
        help="one cell, such as output@batch=0.80 or uncached:200000=0.80",
    )
    parser.add_argument(
        "--derive",
        action="append",
        default=[],
        metavar="WHAT=FACTORx",
        help="make prices by a multiple: write-5m=1.25x (of uncached), batch=0.5x (a lane), 200000=2x (a context "
        "tier), batch:output=0.6x; written down as prices, refused if that would round",
    )


def meters_of(word: str) -> list[str]:
    """The meters that a word stands for."""
    from billing.usage import LEASE_CLASSES

    return ["read_automatic", *(f"read_{c}" for c in LEASE_CLASSES)] if word == "read" else [word.replace("-", "_")]


def rows_of(prices: Mapping[str, str]) -> dict[Cell, int]:
    """Rows of prices by word, the same in every lane and tier. Raises InvalidPrice."""
    from billing.prices.grid import parse_rows
    from billing.prices.version import EVERY_LANE

    texts = {(meter, EVERY_LANE, 0): price for word, price in prices.items() for meter in meters_of(word)}
    return parse_rows(texts)


def rows_of_arguments(arguments: argparse.Namespace) -> dict[Cell, int]:
    """The rows that the arguments of `add_cells` say. Raises CommandError naming the flag."""
    from billing.prices.grid import derived, parse_factor, parse_rows
    from billing.prices.version import EVERY_LANE

    words = {word: getattr(arguments, word.replace("-", "_")) for word in METER_WORDS}
    rows: dict[Cell, int] = {}
    for word, price in words.items():
        if price is not None:
            with _named_as_typed(f"--{word} {price}"):
                rows |= rows_of({word: price})
    factors: dict[str, Fraction] = {}
    for text in arguments.derive:
        what, factor = _pair(text, "--derive", "WHAT=FACTORx")
        place, colon, word = what.rpartition(":")
        names = meters_of(word) if colon or word in METER_WORDS else [word]
        with _named_as_typed(f"--derive {text}"):
            factors |= {f"{place}{colon}{name}": parse_factor(factor, what) for name in names}
    try:
        rows = derived(rows, factors)
    except InvalidPrice as error:
        raise CommandError(f"--derive: {error}") from error
    for text in arguments.price:
        what, price = _pair(text, "--price", "METER[@LANE][:FROM]=PRICE")
        match = _CELL.fullmatch(what)
        if match is None:
            raise CommandError(f"--price {text}: {what!r} is not METER[@LANE][:FROM]")
        word, lane, context_from = match.group(1), match.group(2) or EVERY_LANE, int(match.group(3) or 0)
        with _named_as_typed(f"--price {text}"):
            rows |= parse_rows({(meter, lane, context_from): price for meter in meters_of(word)})
    return rows


@contextmanager
def _named_as_typed(what: str) -> Iterator[None]:
    """Name a price that is refused as it was typed."""
    try:
        yield
    except InvalidPrice as error:
        raise CommandError(f"{what}: {error.problem}") from error


def flag_of(meter: str) -> str:
    """The flag that sets a meter's price."""
    word = "read" if meter.startswith("read_") else meter.replace("_", "-")
    return f"--{word}" if word in METER_WORDS else "--price"


def folder_prices(folder: Path) -> tuple[str, str, dict[Cell, int]] | None:
    """Name, currency and rows of a model folder's `turnpike.toml`; None where it has no prices."""
    try:
        content: dict[str, Any] = tomllib.loads((folder / "turnpike.toml").read_text())
    except (FileNotFoundError, NotADirectoryError):  # a GGUF file has none
        return None
    except (OSError, ValueError) as error:
        raise CommandError(f"{folder / 'turnpike.toml'}: {error}") from error
    prices = {name: str(value) for name, value in content.get("prices", {}).items()}
    if not prices:
        return None
    currency = prices.pop("currency", CURRENCY)
    try:
        return str(content.get("name", own_name(folder))), currency, rows_of(prices)
    except InvalidPrice as error:
        raise CommandError(f"{folder / 'turnpike.toml'}: {error}") from error


def instant(arguments: argparse.Namespace, name: str) -> int | None:
    """An argument that is an instant; None if it was left out or says now. Raises CommandError naming it."""
    from billing.calendar import InvalidInstant, parse_instant

    text = getattr(arguments, name)
    if text in (None, "now"):
        return None
    try:
        return parse_instant(text)
    except InvalidInstant as error:
        raise CommandError(f"--{name}: {error}") from error


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise CommandError(f"{option} {text}: write {form}")
    return name, value
