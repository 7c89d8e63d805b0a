"""Errors of payments."""

from __future__ import annotations

from storage.reported_error import ReportedError


class PaymentsOff(ReportedError):
    """No payment provider is set up."""

    def __init__(self) -> None:
        super().__init__("no payment provider is set up here; see docs/payments.md")


class NotConnected(ReportedError):
    """The tenant is not connected to the provider, or its customer is not made yet."""

    def __init__(self, problem: str = "") -> None:
        super().__init__(problem or "the tenant is not connected to the payment provider; connect it first")


class UnknownPayment(ReportedError, ValueError):
    """There is no such top-up, receipt, refund, dispute or task."""


class PaymentRefused(ReportedError, ValueError):
    """What was asked for cannot be done with this payment."""


class InvalidTopUp(ReportedError, ValueError):
    """An amount or a threshold that is out of bounds; `field` names it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem
