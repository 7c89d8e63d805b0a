"""The states of an invoice, and which follows which."""

from __future__ import annotations

from typing import Literal

from billing.invoices.errors import WrongState

InvoiceState = Literal["draft", "finalized", "partially_paid", "paid", "void", "uncollectible"]

FOLLOWING: dict[InvoiceState, tuple[InvoiceState, ...]] = {
    "draft": ("finalized",),
    "finalized": ("partially_paid", "paid", "void", "uncollectible"),
    "partially_paid": ("partially_paid", "paid", "uncollectible"),
    "uncollectible": ("uncollectible", "paid"),
    "paid": (),
    "void": (),
}
"""From each state, those that may follow. What was given up may still be paid; a void number stays void."""


def follow(name: str, state: InvoiceState, wanted: InvoiceState) -> InvoiceState:
    """The wanted state, if it may follow. Raises WrongState."""
    if wanted not in FOLLOWING[state]:
        raise WrongState(name, state, wanted)
    return wanted


def after_settling(name: str, state: InvoiceState, *, left: int, something: bool) -> InvoiceState:
    """The state when this much is left to pay, and something has been paid or credited or not. Raises WrongState."""
    if left == 0:
        return follow(name, state, "paid")
    if state == "uncollectible":
        return state
    return follow(name, state, "partially_paid") if something else state
