"""Refusals of prices and of changes of prices. Each message says what to do; nothing was written."""

from __future__ import annotations

from billing.money import InvalidPrice
from storage.reported_error import ReportedError


class PriceRefused(ReportedError, ValueError):
    """A refused change of prices; `field` is the field of the proposal that is wrong, if it is one."""

    field = ""


class UnusualPrice(InvalidPrice):
    """Prices that are probably mistaken: out of scale, or out of order. They can be forced with a reason."""

    def __init__(self, problems: list[InvalidPrice]) -> None:
        first, *more = problems
        others = "".join(f"; price of {problem.meter}: {problem.problem}" for problem in more)
        super().__init__(first.meter, f"{first.problem}{others}; use --force REASON if this is intended")
        self.problems = problems


class PriceInPast(PriceRefused):
    """Prices cannot begin in the past, since admitted requests have their price already."""

    field = "effective_at"


class EmptyInterval(PriceRefused):
    """Prices cannot end before they begin."""

    field = "effective_until"


class OverlappingPrices(PriceRefused):
    """Other prices apply in this interval already."""

    field = "effective_at"


class WrongCurrency(PriceRefused):
    """A book has one currency, and a tenant's book that of its money."""

    field = "currency"


class NothingToOverride(PriceRefused):
    """Overrides of prices that the base book does not have."""


class SamePerson(PriceRefused):
    """The author of a price sheet cannot approve it."""


class NotADraft(PriceRefused):
    """The sheet is no draft any more, so it cannot be approved; or it has begun, so it cannot be withdrawn."""


class UnknownSheet(ReportedError, LookupError):
    """No price sheet has this number."""

    def __init__(self, sheet: int) -> None:
        super().__init__(f"price sheet {sheet} does not exist; see `turnpike prices history`")
        self.sheet = sheet


class UnknownBook(ReportedError, LookupError):
    """No price book has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the price book {name!r} does not exist; see `turnpike prices books`")
        self.name = name


class UnknownPriceVersion(LookupError):
    """No price version has this id."""

    def __init__(self, version: int) -> None:
        super().__init__(f"price version {version} does not exist")
        self.version = version
