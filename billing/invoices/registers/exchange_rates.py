"""Exchange rates as the European Central Bank publishes them, for VAT in the currency of the country it is owed to.

Article 230 of Directive 2006/112/EC wants the VAT in the national currency of the member state, article 91 allows the
rates of the European Central Bank of the day on which VAT becomes chargeable. A rate that was recorded stays: an answer
that says something else of the same day is refused, and named.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Protocol

import msgspec
from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from billing.integrity.row_seals import seal_rows
from billing.invoices.document import Document, LocalTax
from billing.money import minor_unit
from billing.tables.invoices import exchange_rate
from storage.database.database import Database
from storage.reported_error import ReportedError

EURO = "EUR"
MOST_AGE = timedelta(days=10)
"""How old the last published rate may be: the bank publishes none on weekends and holidays."""
_CURRENCIES = {
    **{"CZ": "CZK", "DK": "DKK", "HU": "HUF", "PL": "PLN", "RO": "RON", "SE": "SEK"},
    **{"GB": "GBP", "CH": "CHF", "LI": "CHF", "NO": "NOK", "US": "USD"},
}
_EURO_COUNTRIES = frozenset(
    (
        *("AT", "BE", "BG", "CY", "DE", "EE", "ES", "FI", "FR", "GR", "HR"),
        *("IE", "IT", "LT", "LU", "LV", "MT", "NL", "PT", "SI", "SK"),
    )
)
_MOST = Decimal(10) ** 9
_PLACES = 10
"""Decimal places of a rate in a document."""


class RatesChanged(ReportedError):
    """A source says another rate of a day than was recorded."""


class PublishedRates(msgspec.Struct, frozen=True):
    """The rates of a day (YYYY-MM-DD): units of each currency for one euro, as decimal numbers in text."""

    day: str
    rates: Mapping[str, str]


class RateSource(Protocol):
    """Who publishes exchange rates: the European Central Bank in production, a script in tests."""

    name: str

    async def latest(self) -> PublishedRates:
        """The rates of the last day. Raises RegisterUnavailable."""


class InvalidRates(ReportedError, ValueError):
    """Rates that are none."""


async def record_rates(database: Database, source: RateSource) -> int:
    """Record what a source published last; how many rates were new.

    Raises RegisterUnavailable, InvalidRates, RatesChanged, DatabaseUnavailable; then nothing is recorded.
    """
    published = await source.latest()
    _check(published)
    async with database.transaction() as session:
        row = exchange_rate.c
        query = select(row.currency, row.rate).where(row.day == published.day)
        recorded = {one.currency: one.rate for one in await session.execute(query)}
        for currency, rate in published.rates.items():
            if currency in recorded and Decimal(recorded[currency]) != Decimal(rate):
                raise RatesChanged(
                    f"{source.name} says {rate} {currency} of {published.day}, {recorded[currency]} was recorded"
                )
        new = {currency: rate for currency, rate in published.rates.items() if currency not in recorded}
        if new:
            common = {"day": published.day, "source": source.name, "recorded_at": database.clock}
            values = [{**common, "currency": currency, "rate": rate} for currency, rate in new.items()]
            for one in values:
                await session.execute(insert(exchange_rate).values(one))
            await seal_rows(session, exchange_rate, row.day == published.day, row.currency.in_(list(new)))
        return len(new)


def _check(published: PublishedRates) -> None:
    try:
        date.fromisoformat(published.day)
    except ValueError:
        raise InvalidRates(f"day: {published.day[:40]!r} is not a day") from None
    for currency, text in published.rates.items():
        try:
            rate = Decimal(text)
        except InvalidOperation:
            rate = Decimal(0)
        if not (len(currency) == 3 and currency.isascii() and currency.isupper()):
            raise InvalidRates(f"currency: {currency[:10]!r} is none")
        if not rate.is_finite() or not 0 < rate < _MOST or len(text) > 30:
            raise InvalidRates(f"rate: {text[:40]!r} {currency} is no rate")


def currency_of(country: str) -> str | None:
    """The currency in which a country's VAT is stated; None where that is not known."""
    return EURO if country in _EURO_COUNTRIES else _CURRENCIES.get(country)


async def local_tax(session: AsyncSession, document: Document, day: str) -> LocalTax | None:
    """The VAT of a document in the currency of the seller's country, at the rate of a day; None where that is the
    document's, where there is no VAT, or where no rate of the days before was recorded."""
    wanted = currency_of(document.seller.country)
    if wanted is None or wanted == document.currency or not document.tax:
        return None
    rates = {EURO: (day, "1", "")}
    for currency in {wanted, document.currency} - {EURO}:
        found = await _rate_of(session, currency, day)
        if found is None:
            return None
        rates[currency] = found
    own, other = Fraction(rates[document.currency][1]), Fraction(rates[wanted][1])
    rate = Fraction(other.numerator * own.denominator, other.denominator * own.numerator)
    factor = rate * Fraction(minor_unit(document.currency), minor_unit(wanted))
    days = {rates[currency][0] for currency in (wanted, document.currency) if currency != EURO}
    source = next(rates[currency][2] for currency in (wanted, document.currency) if currency != EURO)
    return LocalTax(
        currency=wanted,
        tax=_rounded(document.tax * factor),
        rate=_decimal(rate),
        day=min(days),
        source=source,
    )


async def _rate_of(session: AsyncSession, currency: str, day: str) -> tuple[str, str, str] | None:
    row = exchange_rate.c
    oldest = (date.fromisoformat(day) - MOST_AGE).isoformat()
    last = select(func.max(row.day)).where(row.currency == currency, row.day <= day, row.day >= oldest)
    query = select(row.day, row.rate, row.source).where(row.currency == currency, row.day == last.scalar_subquery())
    found = (await session.execute(query)).one_or_none()
    return None if found is None else (found.day, found.rate, found.source)


def _rounded(value: Fraction) -> int:
    whole = (2 * abs(value.numerator) + value.denominator) // (2 * value.denominator)
    return whole if value >= 0 else -whole


def _decimal(value: Fraction) -> str:
    """A rate with ten decimal places, as documents state it; the tax is computed from the exact one."""
    whole, rest = divmod(_rounded(value * 10**_PLACES), 10**_PLACES)
    return f"{whole}.{rest:0{_PLACES}d}".rstrip("0").rstrip(".")
