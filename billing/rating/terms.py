"""Contract terms: tiers, discounts, minimum and commitment of a tenant, applied at the end of each period.

Requests are held and posted at list prices. Terms only lower them, so that a hold stays an upper bound of a request's
cost. The exception is the minimum, which is charged at the end. Terms never lower a model's usage below zero: the same
units have one set of tiers, and the discounts of a model add up to 100 % at most.
"""

from __future__ import annotations

import re
from datetime import date, timedelta
from itertools import pairwise
from typing import Any, Literal

import msgspec

from billing.calendar import InvalidPeriod, check_period, count_months, period_bounds
from billing.money import InvalidMoney, InvalidPrice, parse_amount, parse_price, round_half_up
from billing.prices.version import LANES
from billing.usage import METERS
from storage.database.base import from_instant
from storage.free_text import REASON, InvalidText, check_text
from storage.reported_error import ReportedError

FULL = 10_000
"""100 % in basis points."""
_MOST_MONTHS = 120
_MOST_REFERENCE = 200
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


class InvalidTerms(ReportedError, ValueError):
    """Invalid terms; `field` is the field that is wrong."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class Step(msgspec.Struct, frozen=True):
    """Units up to `up_to` (None: all further units) at a price in micro-units per million."""

    price_micro: int
    up_to: int | None = None


class Tiers(msgspec.Struct, frozen=True, kw_only=True):
    """Prices by a period's units of one meter.

    `graduated`: each unit costs the price of its own step. `volume`: all units cost the price of the last unit's step.
    """

    kind: Literal["graduated", "volume"]
    model: str
    meter: str
    lane: str = "standard"
    steps: tuple[Step, ...]


class Discount(msgspec.Struct, frozen=True, kw_only=True):
    """Hundredths of a percent off the usage of some models, or of all (none named). Discounts of a model add up."""

    basis_points: int
    models: tuple[str, ...] = ()


class Minimum(msgspec.Struct, frozen=True):
    """The least sum of a period; what it lacks is charged, also without any use.

    It is in force from the day `first` to the day `last` (both included; "": since ever, for ever). A month in which it
    is in force for some days only owes their part, unless it is not `prorated`.
    """

    amount_pico: int
    first: str = ""
    last: str = ""
    prorated: bool = True

    def days(self, period: str) -> tuple[int, int]:
        """On how many days of a period it is in force, and how many the period has. Raises InvalidPeriod."""
        begin, end = (from_instant(instant).date() for instant in period_bounds(period))
        first = max(begin, date.fromisoformat(self.first)) if self.first else begin
        until = min(end, date.fromisoformat(self.last) + timedelta(days=1)) if self.last else end
        return max(0, (until - first).days), (end - begin).days

    def due(self, period: str) -> int:
        """The least sum of a period, in pico-units, rounded half-up. Raises InvalidPeriod."""
        days, of_days = self.days(period)
        part = days if self.prorated else of_days * bool(days)
        return round_half_up(self.amount_pico * part, of_days)


class CommitmentPayment(msgspec.Struct, frozen=True, kw_only=True):
    """Money that came for a commitment in another way than by one of its invoices."""

    amount_pico: int
    reference: str
    reason: str


class Commitment(msgspec.Struct, frozen=True, kw_only=True):
    """An amount for usage from `first` to `last` (both included); what is left then expires.

    A tenant's commitment is known by its first period: terms with the same one go on with it. It pays what was funded:
    by `payments`, and with `invoiced` by lines of invoices (`billing.rating.commitments`).
    """

    amount_pico: int
    first: str
    last: str
    invoiced: bool = True
    payments: tuple[CommitmentPayment, ...] = ()

    @property
    def paid_pico(self) -> int:
        """What was paid in another way than by invoices."""
        return sum(payment.amount_pico for payment in self.payments)

    def covers(self, period: str) -> bool:
        """Whether usage of a period can be paid by it."""
        return self.first <= period <= self.last


class ContractTerms(msgspec.Struct, frozen=True, kw_only=True):
    """All terms of a tenant's contract."""

    tiers: tuple[Tiers, ...] = ()
    discounts: tuple[Discount, ...] = ()
    minimum: Minimum | None = None
    commitment: Commitment | None = None


class _Step(msgspec.Struct, forbid_unknown_fields=True):
    price: str
    up_to: int | None = None


class _Tiers(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    kind: Literal["graduated", "volume"]
    model: str
    meter: str
    lane: str = "standard"
    steps: list[_Step]


class _Discount(msgspec.Struct, forbid_unknown_fields=True):
    basis_points: int
    models: list[str] = []


class _Minimum(msgspec.Struct, forbid_unknown_fields=True):
    amount: str
    first: str = ""
    last: str = ""
    prorated: bool = True


class _Payment(msgspec.Struct, forbid_unknown_fields=True):
    amount: str
    reference: str
    reason: str


class _Commitment(msgspec.Struct, forbid_unknown_fields=True):
    amount: str
    first: str
    last: str
    invoiced: bool = True
    payments: list[_Payment] = []


class _Written(msgspec.Struct, forbid_unknown_fields=True):
    tiers: list[_Tiers] = []
    discounts: list[_Discount] = []
    minimum: _Minimum | None = None
    commitment: _Commitment | None = None


def parse_terms(content: Any) -> ContractTerms:
    """Terms from the content of a TOML file, in which amounts and prices are decimal text. Raises InvalidTerms."""
    try:
        written = msgspec.convert(content, _Written)
    except msgspec.ValidationError as error:
        raise InvalidTerms("terms", str(error)) from error
    tiers = tuple(_tiers(f"tiers[{n}]", one) for n, one in enumerate(written.tiers))
    discounts = tuple(_discount(f"discounts[{n}]", discount) for n, discount in enumerate(written.discounts))
    terms = ContractTerms(
        tiers=tiers,
        discounts=discounts,
        minimum=None if written.minimum is None else _minimum(written.minimum),
        commitment=None if written.commitment is None else _commitment(written.commitment),
    )
    check_terms(terms)
    return terms


def check_terms(terms: ContractTerms) -> None:
    """Raise InvalidTerms if together these terms take more than there is, or say something twice."""
    _check_cells(terms.tiers)
    _check_discounts(terms.discounts)
    if terms.commitment is not None:
        _check_commitment(terms.commitment)


def _tiers(field: str, written: _Tiers) -> Tiers:
    if written.meter not in METERS:
        raise InvalidTerms(f"{field}.meter", f"there is no meter {written.meter!r}")
    if written.lane not in LANES:
        raise InvalidTerms(f"{field}.lane", f"there is no lane {written.lane!r}")
    steps = []
    for n, step in enumerate(written.steps):
        try:
            steps.append(Step(parse_price(step.price, written.meter), step.up_to))
        except InvalidPrice as error:
            raise InvalidTerms(f"{field}.steps[{n}].price", error.problem) from error
    bounds = [step.up_to for step in steps]
    if not bounds or bounds[-1] is not None or None in bounds[:-1]:
        raise InvalidTerms(f"{field}.steps", "each step but the last needs up_to, and the last has none")
    upper = [bound for bound in bounds if bound is not None]
    if any(bound <= 0 for bound in upper) or any(low >= high for low, high in pairwise(upper)):
        raise InvalidTerms(f"{field}.steps", "up_to must grow from step to step")
    return Tiers(kind=written.kind, model=written.model, meter=written.meter, lane=written.lane, steps=tuple(steps))


def _discount(field: str, written: _Discount) -> Discount:
    if not 0 < written.basis_points <= 10_000:
        raise InvalidTerms(f"{field}.basis_points", f"{written.basis_points} is not between 1 and 10000 (100 %)")
    return Discount(basis_points=written.basis_points, models=tuple(written.models))


def _check_cells(tiers: tuple[Tiers, ...]) -> None:
    """Raise InvalidTerms where two sets of tiers price the same units."""
    cells = [(one.model, one.meter, one.lane) for one in tiers]
    for n, cell in enumerate(cells):
        if cell in cells[:n]:
            raise InvalidTerms(f"tiers[{n}]", f"tiers[{cells.index(cell)}] price {' '.join(cell)} already")


def _check_discounts(discounts: tuple[Discount, ...]) -> None:
    """Raise InvalidTerms where the discounts of a model add up to more than all of it."""
    for n, discount in enumerate(discounts):
        before = discounts[: n + 1]
        for model in sorted(discount.models) or sorted({"", *(model for one in before for model in one.models)}):
            off = sum(one.basis_points for one in before if not one.models or model in one.models)
            if off > FULL:
                whose = f"of {model}" if model else "of all models"
                problem = f"the discounts {whose} add up to {off}, which is more than {FULL} (100 %)"
                raise InvalidTerms(f"discounts[{n}].basis_points", problem)


def _minimum(written: _Minimum) -> Minimum:
    for field, day in (("first", written.first), ("last", written.last)):
        if day and _DAY.fullmatch(day) is None:
            raise InvalidTerms(f"minimum.{field}", f"{day[:40]!r} is not a day such as 2027-01-15")
        try:
            date.fromisoformat(day or "2027-01-15")
        except ValueError as error:
            raise InvalidTerms(f"minimum.{field}", str(error)) from error
    if written.first and written.last and written.last < written.first:
        raise InvalidTerms("minimum.last", f"{written.last} is before {written.first}")
    return Minimum(_amount("minimum.amount", written.amount), written.first, written.last, written.prorated)


def _commitment(written: _Commitment) -> Commitment:
    try:
        first, last = check_period(written.first), check_period(written.last)
    except InvalidPeriod as error:
        raise InvalidTerms("commitment", str(error)) from error
    amount = _amount("commitment.amount", written.amount)
    payments = tuple(_payment(f"commitment.payments[{n}]", one) for n, one in enumerate(written.payments))
    return Commitment(amount_pico=amount, first=first, last=last, invoiced=written.invoiced, payments=payments)


def _check_commitment(commitment: Commitment) -> None:
    first, last = commitment.first, commitment.last
    if first > last:
        raise InvalidTerms("commitment.last", f"{last} is before {first}")
    if count_months(first, last) > _MOST_MONTHS:
        raise InvalidTerms("commitment.last", f"{first} to {last} is longer than {_MOST_MONTHS} months")
    references = [payment.reference for payment in commitment.payments]
    for n, reference in enumerate(references):
        if reference in references[:n]:
            raise InvalidTerms(f"commitment.payments[{n}].reference", f"{reference!r} is there twice")
    if commitment.paid_pico > commitment.amount_pico:
        raise InvalidTerms("commitment.payments", "they add up to more than the commitment")


def _payment(field: str, written: _Payment) -> CommitmentPayment:
    for name, text, most in (("reference", written.reference, _MOST_REFERENCE), ("reason", written.reason, REASON)):
        try:
            check_text(name, text, most)
        except InvalidText as error:
            raise InvalidTerms(f"{field}.{name}", error.problem) from error
    amount = _amount(f"{field}.amount", written.amount)
    return CommitmentPayment(amount_pico=amount, reference=written.reference, reason=written.reason)


def _amount(field: str, text: str) -> int:
    try:
        return parse_amount(text)
    except InvalidMoney as error:
        raise InvalidTerms(field, str(error)) from error
