"""Why a price or a change of prices is refused. Each says what to do; then nothing was written."""

from __future__ import annotations

from billing.money import InvalidPrice
from storage.reported_error import ReportedError


class PriceRefused(ReportedError, ValueError):
    """A change of prices that cannot be made; `field` says what of the proposal is wrong, if it is one thing."""

    field = ""


class UnusualPrice(InvalidPrice):
    """Prices that are most likely a slip: out of scale, or out of order. They can be forced, with a reason."""

    def __init__(self, problems: list[InvalidPrice]) -> None:
        first, *more = problems
        others = "".join(f"; price of {problem.meter}: {problem.problem}" for problem in more)
        super().__init__(first.meter, f"{first.problem}{others}; --force REASON if it is meant")
        self.problems = problems


class PriceInPast(PriceRefused):
    """Prices cannot begin before now: what was admitted has its price already."""

    field = "effective_at"


class EmptyInterval(PriceRefused):
    """Prices cannot end before they begin."""

    field = "effective_until"


class OverlappingPrices(PriceRefused):
    """There are prices for this interval already."""

    field = "effective_at"


class WrongCurrency(PriceRefused):
    """A book has one currency."""

    field = "currency"

    def __init__(self, book: str, wanted: str, found: str) -> None:
        super().__init__(f"the price book {book!r} is in {wanted}, not in {found}; make another book for {found}")
        self.wanted = wanted
        self.found = found


class NothingToOverride(PriceRefused):
    """A tenant's book overrides prices that its base does not have."""


class SamePerson(PriceRefused):
    """Who wrote prices cannot approve them."""


class NotADraft(PriceRefused):
    """A sheet that is no longer a draft cannot be approved, and one that has begun cannot be withdrawn."""


class UnknownSheet(ReportedError, LookupError):
    """There is no price sheet of this number."""

    def __init__(self, sheet: int) -> None:
        super().__init__(f"price sheet {sheet} does not exist; see `turnpike prices history`")
        self.sheet = sheet


class UnknownBook(ReportedError, LookupError):
    """There is no price book of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the price book {name!r} does not exist; see `turnpike prices books`")
        self.name = name


class UnknownPriceVersion(LookupError):
    """There is no price version of this id."""

    def __init__(self, version: int) -> None:
        super().__init__(f"price version {version} does not exist")
        self.version = version
