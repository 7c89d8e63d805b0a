"""Amounts in a currency's smallest coin (its minor unit), as documents state them; exact amounts are pico-units."""

from __future__ import annotations

import msgspec

from billing.money import PICO, check_currency


def rounded(amount: int, unit: int) -> int:
    """How many units the amount is, rounded half-up (half away from zero)."""
    whole = (2 * abs(amount) + unit) // (2 * unit)
    return whole if amount >= 0 else -whole


class Carried(msgspec.Struct, frozen=True):
    """An amount in whole units, and the remainder in pico-units: at most half a unit in either direction."""

    amount: int
    carry: int


def carried(exact: int, carry: int, unit: int) -> Carried:
    """Whole units of an exact amount and what was carried to it; the rest is carried on.

    However often this is repeated, the sum of the amounts is the exact sum within half a unit.
    """
    amount = rounded(exact + carry, unit)
    return Carried(amount, exact + carry - amount * unit)


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
