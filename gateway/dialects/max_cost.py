"""`max_cost`: the field of ours, in every dialect, by which a client says what a request may cost at most."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from billing.money import InvalidMoney, parse_amount
from gateway.errors import InvalidField

PATH = "$.max_cost"
MaxCost: TypeAlias = Annotated[
    str,
    Meta(
        max_length=32,
        description="The most that this request may cost, as a decimal in the currency of the model's price. A request "
        "whose upper bound is above it is refused before any work; one without a limit of output tokens is shortened.",
        examples=["0.05"],
    ),
]


def parse_max_cost(text: str | None) -> int | None:
    """Pico-units. Raises InvalidField."""
    if text is None:
        return None
    try:
        return parse_amount(text)
    except InvalidMoney as error:
        raise InvalidField(PATH, str(error)) from error
