"""Prices in people's words made into rows, and rows shown to people."""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

from billing.calendar import InvalidInstant, parse_instant
from billing.money import InvalidPrice
from billing.prices.grid import amount, derived, difference, in_order, parse_factor, parse_rows
from billing.prices.version import EVERY_LANE, Cell, Rows
from billing.usage import CLASSES
from turnpike.commands.price_arguments import METER_WORDS
from turnpike.commands.running import CURRENCY, table
from turnpike.failures import CommandError

_CELL = re.compile(r"([a-z0-9_-]+)(?:@([a-z]+))?(?::(\d{1,12}))?", re.ASCII)


def meters_of(word: str) -> list[str]:
    """The meters that a word stands for: `read` is every class's."""
    return ["read_automatic", *(f"read_{c}" for c in CLASSES)] if word == "read" else [word.replace("-", "_")]


def rows_of(given: Mapping[str, str]) -> dict[Cell, int]:
    """Rows of prices by word, the same in every lane and tier. Raises InvalidPrice."""
    texts = {(meter, EVERY_LANE, 0): price for word, price in given.items() for meter in meters_of(word)}
    return parse_rows(texts)


def rows_asked_for(arguments: argparse.Namespace) -> dict[Cell, int]:
    """The rows that the arguments of `set` and `draft` say. Raises CommandError naming the flag."""
    words = {word: getattr(arguments, word.replace("-", "_")) for word in METER_WORDS}
    rows: dict[Cell, int] = {}
    for word, price in words.items():
        if price is not None:
            with _typed(f"--{word} {price}"):
                rows |= rows_of({word: price})
    factors: dict[str, Fraction] = {}
    for text in arguments.derive:
        what, factor = _pair(text, "--derive", "WHAT=FACTORx")
        place, colon, word = what.rpartition(":")
        names = meters_of(word) if colon or word in METER_WORDS else [word]
        with _typed(f"--derive {text}"):
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
        with _typed(f"--price {text}"):
            rows |= parse_rows({(meter, lane, context_from): price for meter in meters_of(word)})
    return rows


@contextmanager
def _typed(what: str) -> Iterator[None]:
    """A price that is refused is named as it was typed."""
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
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CommandError(f"{folder / 'turnpike.toml'}: {error}") from error
    given = {name: str(value) for name, value in content.get("prices", {}).items()}
    if not given:
        return None
    currency = given.pop("currency", CURRENCY)
    try:
        return str(content.get("name", folder.name)), currency, rows_of(given)
    except InvalidPrice as error:
        raise CommandError(f"{folder / 'turnpike.toml'}: {error}") from error


def instant(arguments: argparse.Namespace, name: str) -> int | None:
    """An argument that is an instant; None if it was left out or says now. Raises CommandError naming it."""
    text = getattr(arguments, name)
    if text in (None, "now"):
        return None
    try:
        return parse_instant(text)
    except InvalidInstant as error:
        raise CommandError(f"--{name}: {error}") from error


def price_table(rows: Rows, currency: str) -> None:
    """Print rows; columns that say the same in each row are left out."""
    columns = ("meter", "lane", "prompts from", f"{currency} per million")
    lines = [(*cell, amount(micro)) for cell, micro in in_order(rows)]
    shown = [n for n in range(4) if n in (0, 3) or any(line[n] not in (EVERY_LANE, 0) for line in lines)]
    table([columns[n] for n in shown], [[line[n] for n in shown] for line in lines])


def difference_table(before: Rows, after: Rows, currency: str) -> None:
    """Print what changes, or that nothing does."""
    changes = difference(before, after)
    if not changes:
        print("no price changes")
        return
    header = ("meter", "lane", "prompts from", "before", "after", f"change ({currency} per million)")
    table(header, [(*cell, _or_none(old), _or_none(new), _change(old, new)) for cell, old, new in changes])


def staying_table(before: Rows, after: Rows, currency: str) -> None:
    """Print what stays of the meters that change: their prices in other lanes and for other lengths of prompts."""
    changed = {cell for cell, _, _ in difference(before, after)}
    meters = {meter for meter, _, _ in changed}
    staying = {cell: micro for cell, micro in after.items() if cell not in changed and cell[0] in meters}
    if staying:
        print(f"stays ({currency} per million):")
        table(("meter", "lane", "prompts from", "price"), [(*cell, amount(micro)) for cell, micro in in_order(staying)])
    if any(cell[0] not in meters for cell in after):
        print("all other meters stay as they are")


def _or_none(micro: int | None) -> str:
    return "-" if micro is None else amount(micro)


def _change(old: int | None, new: int | None) -> str:
    if old is None or new is None:
        return "new" if old is None else "gone"
    percent = "" if not old else f" ({(new - old) * 100 / old:+.1f} %)"
    return f"{'+' if new > old else '-'}{amount(abs(new - old))}{percent}"


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise CommandError(f"{option} {text}: write {form}")
    return name, value
