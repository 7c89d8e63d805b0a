"""The request header `X-Turnpike-Receipt`: whether an answer has a receipt, whatever its project's policy says."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import InvalidField

HEADER = "X-Turnpike-Receipt"
_SAID = {"true": True, "1": True, "false": False, "0": False}


def parse_receipt_header(values: Sequence[str]) -> bool | None:
    """What the header says; None where it is absent. Raises InvalidRequest naming it."""
    if not values:
        return None
    said = {_SAID.get(value.strip().lower()) for value in values}
    if len(said) != 1 or None in said:
        raise InvalidField(HEADER, f"{', '.join(values)[:40]!r} is neither true nor false")
    return said.pop()
