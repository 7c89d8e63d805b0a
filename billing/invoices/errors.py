"""Why something is not done to an invoice, each as one clear line; then nothing is written."""

from __future__ import annotations


class InvoiceRefused(ValueError):
    """What was asked for cannot be done to this invoice. The others say why."""


class UnknownInvoice(InvoiceRefused):
    """There is no invoice of this number, or more than one legal entity has it."""


class NoProfile(InvoiceRefused):
    """A seller or a tenant's billing profile is missing."""


class WrongState(InvoiceRefused):
    """The invoice is in a state from which this is not possible; `instead` is what is, if anything."""

    def __init__(self, name: str, state: str, wanted: str, instead: str = "") -> None:
        said = f"{name} is {state.replace('_', ' ')}"
        refused = " already" if wanted == state else f": it cannot become {wanted.replace('_', ' ')}"
        super().__init__(f"{said}{refused}{instead and f'; {instead}'}")
        self.state = state
        self.wanted = wanted


class PeriodNotClosed(InvoiceRefused):
    """An invoice of a period that is still open would miss what is yet to come."""


class DraftOutdated(InvoiceRefused):
    """What the draft says is not what the books say now: draft again and look at it."""


class NumberRefused(InvoiceRefused):
    """A number or an issue date that does not come after the last of its series."""


class AmountRefused(InvoiceRefused):
    """A payment or a credit that is not positive, or more than is left."""
