"""The arguments of `turnpike prices …` and `turnpike terms …`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from turnpike.commands.platform_arguments import add_second_operator
from turnpike.settings.settings import ADMIN

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
}
"""What people call the meters; `read` is every class's read price."""


def declare(tree: Any, command: Callable[[str, str], Any]) -> None:
    """Add both groups to the tree of commands."""
    _declare_prices(tree, command)
    _declare_terms(tree, command)


def _declare_prices(tree: Any, command: Callable[[str, str], Any]) -> None:
    prices = tree.group("prices", "what a model's tokens cost")

    def leaf(name: str, text: str, function: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = tree.leaf(prices, name, text, ADMIN, command("prices", function))
        return parser

    put = leaf("set", "prices of a model, from now on or from --at", "set_prices")
    put.add_argument("--from-model-folder", action="store_true", help="take the prices of the folder's turnpike.toml")
    _proposal(put)
    _proposal(leaf("draft", "prices of a model, for somebody else to approve", "draft_prices"))

    for name, text in (
        ("approve", "bring a draft into force; who wrote it cannot"),
        ("withdraw", "take back a draft, or what has not begun"),
    ):
        decide = leaf(name, text, f"{name}_prices")
        decide.add_argument("sheet", type=int, metavar="SHEET", help="number of the price sheet")
        _who(decide)
        decide.add_argument("--dry-run", action="store_true", help="check, write nothing")

    listing = leaf("list", "the prices in force", "list_prices")
    listing.add_argument("served_model", nargs="?", metavar="NAME", help="one served model alone")
    _whose(listing)
    listing.add_argument("--at", metavar="WHEN", help="in force then, such as 2027-01-01T00:00:00Z; default: now")
    listing.add_argument("--format", choices=["table", "csv", "json"], default="table")

    show = leaf("show", "one price sheet: prices, state, who did what", "show_prices")
    show.add_argument("sheet", type=int, metavar="SHEET")
    diff = leaf("diff", "what a price sheet changes", "diff_prices")
    diff.add_argument("sheet", type=int, metavar="SHEET")
    diff.add_argument("other", type=int, nargs="?", metavar="OTHER", help="compare with this one instead")
    history = leaf("history", "every price sheet, the newest first", "price_history")
    history.add_argument("served_model", nargs="?", metavar="NAME", help="one served model alone")
    history.add_argument("--book", metavar="BOOK", help="one price book alone")
    history.add_argument("--format", choices=["table", "json"], default="table")

    take = leaf("import", "prices from a CSV as `list` writes it, or from LiteLLM's price file", "import_prices")
    take.add_argument("file", metavar="FILE", help="….csv or ….json")
    take.add_argument(
        "--model-map",
        action="append",
        default=[],
        metavar="ENTRY=NAME",
        help="for LiteLLM's file: the entry with the prices of a served model; once for each",
    )
    take.add_argument(
        "--ignore", action="append", default=[], metavar="KEY", help="for LiteLLM's file: a key to leave out"
    )
    _whose(take)
    _when(take)
    _who(take)
    take.add_argument("--force", metavar="REASON", help="why unusual prices are meant")
    take.add_argument("--dry-run", action="store_true", help="check and show the difference, write nothing")

    leaf("books", "the price books", "list_books")
    book = leaf("book", "make a price book: a tenant's own over a base book, or a base book", "make_book")
    book.add_argument("name", metavar="BOOK")
    book.add_argument("--tenant", help="whose it is: what it does not say, the base book says")
    book.add_argument("--base", metavar="BOOK", default="base", help="the base of a tenant's book")
    book.add_argument("--currency", metavar="CODE", help="of a base book, such as EUR")
    add_second_operator(book)


def _declare_terms(tree: Any, command: Callable[[str, str], Any]) -> None:
    terms = tree.group("terms", "what tenants' contracts change about the list prices")
    put = tree.leaf(
        terms,
        "set",
        "all terms of a tenant, from a period on; see docs/prices.md",
        ADMIN,
        command("terms", "set_terms"),
    )
    put.add_tenant_first()
    put.add_argument("file", metavar="FILE", help="TOML with tiers, discounts, minimum, commitment; empty: list prices")
    put.add_argument("--from", dest="from_period", metavar="YYYY-MM", help="the first period; default: this one")
    put.add_argument("--dry-run", action="store_true", help="check, write nothing")
    _who(put)
    listing = tree.leaf(terms, "list", "terms by tenant and period", ADMIN, command("terms", "list_terms"))
    listing.add_tenant_first(optional=True)
    listing.add_argument("--format", choices=["table", "json"], default="table")


def _proposal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("served_model", nargs="?", metavar="NAME", help="name of the served model")
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
    parser.add_argument("--whole", action="store_true", help="in a tenant's book: take nothing from its base")
    parser.add_argument("--currency", metavar="CODE", help="refused if the book has another; default: the book's")
    _whose(parser)
    _when(parser)
    _who(parser)
    parser.add_argument("--force", metavar="REASON", help="why unusual prices are meant")
    parser.add_argument("--dry-run", action="store_true", help="check and show the difference, write nothing")


def _whose(parser: argparse.ArgumentParser) -> None:
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--book", metavar="BOOK", help="the price book; default: base")
    whose.add_argument("--tenant", help="the book that applies to this tenant")


def _when(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--at", metavar="WHEN", help="from then on, such as 2027-01-01T00:00:00Z; default: now")
    parser.add_argument("--until", metavar="WHEN", help="only until then; after it the earlier prices apply again")


def _who(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--by",
        metavar="WHO",
        help="who does this; default: whose key --operator-key-file holds, else USER@HOST. Only the key proves it; the "
        "USER@HOST that ran the command is kept beside it",
    )
    parser.add_argument("--reason", default="", help="why; kept in the log")
