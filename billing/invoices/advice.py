"""Advice on caching: plain rules over the figures of the savings statement, with what each is worth.

- Written and never read: from a fifth of what was written on.
- A class that costs more than it saves: what is written costs `write_extra` more than plain input, and each time that
  all of it is read `once_read` less. It pays from `write_extra / once_read` reads of each written token on.
- A shorter class: what the same writes would have cost there, and how many tokens may miss and be written again until
  that is used up. Whether they would have missed is not in the books, so the number is given and not a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable

from billing.invoices.document import ClassSavings, ModelSavings, Savings
from billing.invoices.minor_units import format_grouped, format_minor, minor_unit, rounded

MOST = 6
"""Pieces of advice on a statement, those that are worth most."""
_UNREAD_PERCENT = 20
_SHORTEST = "5m"


def advice(classes: Iterable[ClassSavings], currency: str) -> list[str]:
    """Sentences, what is worth most first; none that is worth less than a minor unit of the currency."""
    found = [
        each
        for one in classes
        for each in (_never_read(one, currency) or _at_a_loss(one, currency), _shorter(one, currency))
        if each is not None
    ]
    worth = [(pico, text) for pico, text in found if rounded(pico, minor_unit(currency)) > 0]
    return [text for _, text in sorted(worth, key=lambda each: -each[0])[:MOST]]


def summary(savings: Savings, currency: str) -> list[str]:
    """The statement in a few lines of text."""
    sums = {name: sum(int(getattr(model, name)) for model in savings.models) for name in ("prompt", "read", "written")}
    if not (sums["read"] or sums["written"]):
        return []
    share = rounded(sums["read"] * 1000, sums["prompt"]) if sums["prompt"] else 0
    lines = [
        f"cache: saved {_money(saved_pico(savings.models), currency)}; "
        f"{share // 10}.{share % 10} % of the prompt tokens were read from it"
    ]
    if unread := sum(int(one.unread) for one in savings.classes):
        cost = _money(sum(int(one.unread_cost) for one in savings.classes), currency)
        lines.append(f"cache: at least {unread:,} of {sums['written']:,} written tokens were never read ({cost})")
    return lines + [f"advice: {text}" for text in savings.advice]


def saved_pico(models: Iterable[ModelSavings]) -> int:
    """What the cache saved for these models, in pico-units: every page rounds this one figure, once."""
    return sum(int(model.uncached) - int(model.cost) for model in models)


def length(name: str) -> str:
    """A class in words: "5m" → "5 min"."""
    return f"{name[:-1]} {'min' if name.endswith('m') else 'h'}"


def _never_read(one: ClassSavings, currency: str) -> tuple[int, str] | None:
    unread, written, extra = int(one.unread), int(one.written), int(one.unread_extra)
    if unread * 100 < written * _UNREAD_PERCENT or extra <= 0:
        return None
    return extra, (
        f"{one.project}, {one.model}: at least {unread:,} of the {written:,} tokens written for {length(one.name)} "
        f"({unread * 100 // written} %) were never read. Writing them cost {_money(int(one.unread_cost), currency)}, "
        f"{_money(extra, currency)} more than plain input: mark for caching only what is sent again in time."
    )


def _at_a_loss(one: ClassSavings, currency: str) -> tuple[int, str] | None:
    loss = int(one.write_extra) - int(one.read_saved)
    written, once = int(one.written), int(one.once_read)
    if loss <= 0 or written <= 0 or once <= 0:
        return None
    return loss, (
        f"{one.project}, {one.model}: caching for {length(one.name)} cost {_money(loss, currency)} more than it saved. "
        f"Each written token was read {_times(int(one.read), written)} times; it pays from "
        f"{_times(int(one.write_extra), once, up=True)} times on."
    )


def _shorter(one: ClassSavings, currency: str) -> tuple[int, str] | None:
    saved = int(one.write_cost) - int(one.shorter_cost)
    read, again = int(one.read), int(one.again)
    if one.name == _SHORTEST or saved <= 0 or read <= 0 or again <= 0:
        return None
    spare = saved * int(one.written) // again
    start = (
        f"{one.project}, {one.model}: written for {length(_SHORTEST)} instead of {length(one.name)}, the same "
        f"{int(one.written):,} tokens would have cost {_money(saved, currency)} less. "
    )
    if spare >= read:
        return saved, f"{start}That pays even if none of the {read:,} tokens read had been there any more."
    return saved, (
        f"{start}That pays if at most {spare:,} of the {read:,} tokens read came later than {length(_SHORTEST)} after "
        "their last use."
    )


def _money(pico: int, currency: str) -> str:
    minor = rounded(pico, minor_unit(currency))
    if pico > 0 and not minor:
        return f"less than {currency} {format_minor(1, currency)}"
    return f"{currency} {format_grouped(minor, currency)}"


def _times(part: int, whole: int, *, up: bool = False) -> str:
    hundredths = -(-part * 100 // whole) if up else part * 100 // whole
    return f"{hundredths // 100}.{hundredths % 100:02d}"
