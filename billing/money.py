"""Money between text and integers, exactly: no rounding in either direction, and no floating point.

A price is an integer in micro-units of its currency per 1,000,000 units; an amount is an integer in pico-units. So
units × price is an amount with nothing in between.
"""

from __future__ import annotations

import re

import msgspec

from storage.reported_error import ReportedError

PICO = 10**12
MICRO = 10**6
MAX_PICO = 2**63 - 1
"""The largest amount of one event, hold or grant: 9.2 million units of currency."""

_DECIMAL = re.compile(r"(\d{1,12})(?:\.(\d{1,12}))?", re.ASCII)
_CURRENCY = re.compile(r"[A-Z]{3}", re.ASCII)


class InvalidMoney(ReportedError, ValueError):
    """Text that is not an amount of money, or an amount out of range."""


class InvalidPrice(ReportedError, ValueError):
    """A price that was refused; `meter` says which."""

    def __init__(self, meter: str, problem: str) -> None:
        super().__init__(f"price of {meter}: {problem}")
        self.meter = meter
        self.problem = problem


def format_pico(pico: int) -> str:
    """An amount as a decimal string with all its 12 places: 1230400 → "0.000001230400"."""
    whole, rest = divmod(abs(pico), PICO)
    return f"{'-' if pico < 0 else ''}{whole}.{rest:012d}"


def format_amount(pico: int) -> str:
    """An amount as people read it, exact, with two places or as many as it needs: 1230400 → "0.0000012304"."""
    whole, _, places = format_pico(pico).partition(".")
    return f"{whole}.{places.rstrip('0').ljust(2, '0')}"


def _scaled(text: str, places: int) -> int | None:
    """The decimal text × 10^places; None if it has more places than that or is no plain decimal number."""
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return None
    whole, rest = match.group(1), (match.group(2) or "").rstrip("0")
    return None if len(rest) > places else int(whole) * 10**places + int(rest.ljust(places, "0") or "0")


def parse_amount(text: str) -> int:
    """Pico-units of a positive decimal amount: "20.00" → 20 × 10¹². Raises InvalidMoney."""
    pico = _scaled(text, 12)
    if pico is None or not 0 < pico <= MAX_PICO:
        raise InvalidMoney(f"{text!r} is not a positive decimal amount of at most 12 places and 9 million units")
    return pico


def parse_price(text: str, meter: str = "a meter") -> int:
    """Micro-units per million of a decimal price per million: "0.40" → 400000. Raises InvalidPrice."""
    if text.startswith("-"):
        raise InvalidPrice(meter, f"{text} is negative")
    if _DECIMAL.fullmatch(text) is None:
        raise InvalidPrice(meter, f"{text!r} is not a plain decimal number")
    micro = _scaled(text, 6)
    if micro is None:
        raise InvalidPrice(meter, f"{text} has more than 6 decimal places")
    return micro


def check_currency(currency: str) -> str:
    """The currency, if it looks like a code of ISO 4217. Raises InvalidMoney."""
    if _CURRENCY.fullmatch(currency) is None:
        raise InvalidMoney(f"{currency!r} is not a currency code of three capital letters")
    return currency


def round_half_up(amount: int, unit: int) -> int:
    """How many units the amount is, rounded half-up (half away from zero)."""
    whole = (2 * abs(amount) + unit) // (2 * unit)
    return whole if amount >= 0 else -whole


class RoundedAmount(msgspec.Struct, frozen=True):
    """An amount in whole units, and the remainder in pico-units: at most half a unit in either direction."""

    amount: int
    carry: int


def round_with_carry(exact: int, carry: int, unit: int) -> RoundedAmount:
    """Whole units of an exact amount and what was carried to it; the rest is carried on.

    However often this is repeated, the sum of the amounts is the exact sum within half a unit.
    """
    amount = round_half_up(exact + carry, unit)
    return RoundedAmount(amount, exact + carry - amount * unit)


_BY_DIGITS = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}
_DIGITS = {currency: digits for digits, currencies in _BY_DIGITS.items() for currency in currencies.split()}
"""Digits of the minor unit by ISO 4217, where they are not 2."""


def minor_digits(currency: str) -> int:
    """Decimal places of the currency's minor unit: USD 2, JPY 0, KWD 3. Raises InvalidMoney."""
    return _DIGITS.get(check_currency(currency), 2)


def minor_unit(currency: str) -> int:
    """Pico-units of one minor unit: a cent is 10¹⁰. Raises InvalidMoney."""
    return PICO // int(10 ** minor_digits(currency))


def minor_to_pico(amount: int, currency: str) -> int:
    """Minor units as pico-units: 1 cent → 10¹⁰. Raises InvalidMoney."""
    return amount * minor_unit(currency)


def format_minor(amount: int, currency: str) -> str:
    """Minor units as a decimal string in the currency's own places: 123456 USD → "1234.56"."""
    digits = minor_digits(currency)
    text = str(abs(amount)).rjust(digits + 1, "0")
    sign = "-" if amount < 0 else ""
    return sign + (f"{text[:-digits]}.{text[-digits:]}" if digits else text)


def format_grouped(amount: int, currency: str) -> str:
    """Minor units as people read them: 123456 USD → "1,234.56", with a true minus sign."""
    whole, point, rest = format_minor(abs(amount), currency).partition(".")
    return f"{'−' if amount < 0 else ''}{int(whole):,}{point}{rest}"
