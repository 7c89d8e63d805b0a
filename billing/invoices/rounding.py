"""Rounding to minor units: half away from zero, once, with the remainder carried to the next time.

So that a credit note is its invoice with the sign turned, what is negative rounds like what is positive.
"""

from __future__ import annotations

import msgspec


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
