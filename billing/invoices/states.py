"""The states of an invoice and the transitions between them."""

from __future__ import annotations

from typing import Literal

from billing.invoices.errors import WrongState

InvoiceState = Literal["draft", "finalized", "partially_paid", "paid", "credited", "void", "uncollectible"]

TRANSITIONS: dict[InvoiceState, tuple[InvoiceState, ...]] = {
    "draft": ("finalized",),
    "finalized": ("partially_paid", "paid", "credited", "void", "uncollectible"),
    "partially_paid": ("partially_paid", "paid", "credited", "uncollectible"),
    "uncollectible": ("uncollectible", "paid", "credited"),
    "paid": ("credited",),
    "credited": (),
    "void": (),
}
"""State → states that may follow. An uncollectible invoice may still be paid; a void number stays void. An invoice is
`credited` when credit notes have taken back all of it."""


def check_transition(name: str, state: InvoiceState, wanted: InvoiceState) -> InvoiceState:
    """The wanted state, if it may follow. Raises WrongState."""
    if wanted not in TRANSITIONS[state]:
        raise WrongState(name, state, wanted)
    return wanted


def settled_state(name: str, state: InvoiceState, *, left: int, settled: bool) -> InvoiceState:
    """The state with `left` minor units to pay, after something was paid or credited (`settled`). Raises WrongState."""
    if left == 0:
        return check_transition(name, state, "paid")
    if state == "uncollectible":
        return state
    return check_transition(name, state, "partially_paid") if settled else state
