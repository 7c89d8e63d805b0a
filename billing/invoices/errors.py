"""Refusals of invoicing: each is one line that says why, and nothing was written."""

from __future__ import annotations

from storage.reported_error import ReportedError


class InvoiceRefused(ReportedError, ValueError):
    """Something cannot be done to this invoice. Base of the refusals below."""


class UnknownInvoice(InvoiceRefused):
    """No invoice has this number, or several sellers have one."""


class NoProfile(InvoiceRefused):
    """A seller, or a tenant's billing profile, is missing."""


class WrongState(InvoiceRefused):
    """The invoice's state does not allow this. `instead` says what is possible, if anything is."""

    def __init__(self, name: str, state: str, wanted: str, instead: str = "") -> None:
        current = f"{name} is {state.replace('_', ' ')}"
        refused = " already" if wanted == state else f" and cannot become {wanted.replace('_', ' ')}"
        super().__init__(f"{current}{refused}{instead and f'; {instead}'}")
        self.state = state
        self.wanted = wanted


class DocumentRefused(InvoiceRefused):
    """What the document is, or what was paid of it, does not allow this."""


class ReferenceTaken(InvoiceRefused):
    """A payment of this reference was recorded with another amount."""


class PeriodNotClosed(InvoiceRefused):
    """The period, or an earlier one of the tenant, is still open: its invoice would miss later usage."""


class DraftOutdated(InvoiceRefused):
    """The draft differs from what would be drafted now. Draft it again and look at it."""


class NumberRefused(InvoiceRefused):
    """A number, or an issue date, that does not come after the last one of its series."""


class AmountRefused(InvoiceRefused):
    """A payment or credit that is not positive, or is more than what is left."""


class NotExpressible(InvoiceRefused):
    """EN 16931, or a profile of it, has no form for this document; `field` is what is missing or cannot be said."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"it cannot be an e-invoice, {field}: {problem}")
        self.field = field
        self.problem = problem
