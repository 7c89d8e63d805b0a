"""Prices and price sheets as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from billing.calendar import format_instant
from billing.prices.grid import amount, difference, in_order
from billing.prices.price_books import BASE
from billing.prices.sheets import PriceSheet
from billing.prices.version import EVERY_LANE, Rows
from turnpike.api.actions import Object
from turnpike.command_context import print_table


def print_prices(rows: Rows, currency: str) -> None:
    """Print rows; columns that say the same in each row are left out."""
    columns = ("meter", "lane", "prompts from", f"{currency} per million")
    lines = [(*cell, amount(micro)) for cell, micro in in_order(rows)]
    shown = [n for n in range(4) if n in (0, 3) or any(line[n] not in (EVERY_LANE, 0) for line in lines)]
    print_table([columns[n] for n in shown], [[line[n] for n in shown] for line in lines])


def print_difference(before: Rows, after: Rows, currency: str) -> None:
    """Print what changes, or that nothing does."""
    changes = difference(before, after)
    if not changes:
        print("no price changes")
        return
    header = ("meter", "lane", "prompts from", "before", "after", f"change ({currency} per million)")
    print_table(header, [(*cell, _or_dash(old), _or_dash(new), _change(old, new)) for cell, old, new in changes])


def print_unchanged(before: Rows, after: Rows, currency: str) -> None:
    """Print which prices of the meters that change stay: those in other lanes and for other lengths of prompts."""
    changed = {cell for cell, _, _ in difference(before, after)}
    meters = {meter for meter, _, _ in changed}
    unchanged = {cell: micro for cell, micro in after.items() if cell not in changed and cell[0] in meters}
    if unchanged:
        print(f"stays ({currency} per million):")
        rows = [(*cell, amount(micro)) for cell, micro in in_order(unchanged)]
        print_table(("meter", "lane", "prompts from", "price"), rows)
    if any(cell[0] not in meters for cell in after):
        print("all other meters stay as they are")


def _or_dash(micro: int | None) -> str:
    return "-" if micro is None else amount(micro)


def _change(old: int | None, new: int | None) -> str:
    if old is None or new is None:
        return "new" if old is None else "gone"
    percent = "" if not old else f" ({(new - old) * 100 / old:+.1f} %)"
    return f"{'+' if new > old else '-'}{amount(abs(new - old))}{percent}"


def print_sheet(sheet: Object) -> None:
    """Print a sheet's model, state and time, as the API has them, and for a draft how it is approved."""
    book = "" if sheet["book"] == BASE else f" in the book {sheet['book']}"
    when = "from its approval on" if sheet["effective_at"] is None else f"from {sheet['effective_at']}"
    until = "" if sheet["effective_until"] is None else f" until {sheet['effective_until']}"
    print(f"{sheet['model']}{book}: price sheet {sheet['id']}, {sheet['state']}, {when}{until}")
    if sheet["state"] == "draft":
        print(
            f"somebody else brings it into force: `turnpike prices approve {sheet['id']} --operator-key-file FILE` "
            f"(or --by NAME, while approvals are off)"
        )


def sheet_fields(sheet: PriceSheet) -> Object:
    """What `print_sheet` says of a sheet."""
    return {
        **{"id": sheet.id, "model": sheet.model, "book": sheet.book.name, "state": sheet.state},
        "effective_at": None if sheet.effective_at is None else format_instant(sheet.effective_at),
        "effective_until": None if sheet.effective_until is None else format_instant(sheet.effective_until),
    }


def rows_of_cells(cells: Iterable[Object]) -> Rows:
    """Rows of prices as the API has them."""
    return {(cell["meter"], cell["lane"], cell["context_from"]): cell["price_micro"] for cell in cells}


def rows_of_difference(difference: Iterable[Object]) -> tuple[Rows, Rows]:
    """The rows before and after a difference as the API has it."""
    before, after = (
        {
            (cell["meter"], cell["lane"], cell["context_from"]): int(Decimal(cell[when]) * 1_000_000)
            for cell in difference
            if cell[when] is not None
        }
        for when in ("before", "after")
    )
    return before, after


def rows_as_json(model: str, currency: str, rows: Rows, **more: object) -> dict[str, object]:
    """Rows of prices as an object for JSON, with `more` keys before them."""
    prices = [
        {"meter": meter, "lane": lane, "context_from": tier, "price": amount(micro), "price_micro": micro}
        for (meter, lane, tier), micro in in_order(rows)
    ]
    return {"model": model, "currency": currency, **more, "prices": prices}
