"""Errors of the rooms behind /admin/v1, as errors of the request; and amounts and ids as requests write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from uuid import UUID

from billing.accounts.adjustments import InvalidAdjustment, UnknownEvent
from billing.accounts.balances import CurrencyMismatch, InvalidGrant
from billing.accounts.budgets import InvalidBudget, UnknownBudget
from billing.accounts.idempotency import IdempotencyConflict
from billing.calendar import InvalidInstant, InvalidPeriod, parse_instant
from billing.invoices.errors import (
    AmountRefused,
    DocumentRefused,
    DraftOutdated,
    InvoiceRefused,
    NoProfile,
    NotExpressible,
    NumberRefused,
    PeriodNotClosed,
    ReferenceTaken,
    UnknownInvoice,
    WrongState,
)
from billing.ledger.wallet import RefundRefused
from billing.money import InvalidMoney, format_pico, minor_digits, parse_amount
from billing.payments.bank.statements import StatementRefused
from billing.payments.errors import InvalidTopUp, NotConnected, PaymentRefused, PaymentsOff, UnknownPayment
from billing.payments.provider import ProviderRefused, ProviderUnavailable
from billing.periods.periods import PeriodOpen
from billing.platform_settings import InvalidPlatformSetting
from billing.prices.errors import PriceRefused, UnknownBook
from billing.prices.version import PriceMissing
from billing.rating.terms import InvalidTerms
from billing.spool.gateway_epochs import EpochAlive, UnknownEpoch
from billing.usage import InvalidUsage
from gateway.errors import Conflict, GatewayError, InvalidField, InvalidRequest, NotFound, Unavailable
from storage.database.database import DatabaseUnavailable
from storage.free_text import InvalidText
from storage.reported_error import ReportedError
from tenancy.repositories import NameTaken, NoSuchRecord

_KINDS: tuple[tuple[type[ReportedError], type[GatewayError], str], ...] = (
    (NameTaken, Conflict, "name_taken"),
    (NoSuchRecord, NotFound, "not_found"),
    (UnknownBudget, NotFound, "not_found"),
    (UnknownEvent, NotFound, "not_found"),
    (UnknownInvoice, NotFound, "not_found"),
    (UnknownEpoch, NotFound, "not_found"),
    (EpochAlive, Conflict, "epoch_alive"),
    (IdempotencyConflict, Conflict, "idempotency_conflict"),
    (RefundRefused, Conflict, "refund_refused"),
    (CurrencyMismatch, Conflict, "wrong_currency"),
    (PeriodOpen, Conflict, "period_open"),
    (PeriodNotClosed, Conflict, "period_open"),
    (WrongState, Conflict, "wrong_state"),
    (DocumentRefused, Conflict, "wrong_state"),
    (ReferenceTaken, Conflict, "idempotency_conflict"),
    (DraftOutdated, Conflict, "draft_outdated"),
    (NoProfile, Conflict, "no_billing_profile"),
    (NotExpressible, Conflict, "not_expressible"),
    (NumberRefused, Conflict, "number_refused"),
    (AmountRefused, InvalidRequest, "invalid_amount"),
    (InvoiceRefused, Conflict, "invoice_refused"),
    (InvalidGrant, InvalidRequest, "invalid_grant"),
    (InvalidBudget, InvalidRequest, "invalid_budget"),
    (InvalidAdjustment, InvalidRequest, "invalid_adjustment"),
    (InvalidUsage, InvalidRequest, "invalid_adjustment"),
    (InvalidMoney, InvalidRequest, "invalid_amount"),
    (InvalidPeriod, InvalidRequest, "invalid_period"),
    (InvalidPlatformSetting, InvalidRequest, "invalid_value"),
    (PriceMissing, Conflict, "price_missing"),
    (UnknownBook, NotFound, "unknown_book"),
    (PriceRefused, InvalidRequest, "price_refused"),
    (PaymentsOff, Conflict, "payments_off"),
    (NotConnected, Conflict, "not_connected"),
    (UnknownPayment, NotFound, "not_found"),
    (PaymentRefused, Conflict, "payment_refused"),
    (StatementRefused, InvalidRequest, "statement_refused"),
    (ProviderRefused, Conflict, "provider_refused"),
)
_MOST_MINOR = 10**15
"""What each error becomes, the first that fits, with its code."""


@contextmanager
def refusals(fields: Mapping[str, str] | None = None, *, body: str = "$.") -> Iterator[None]:
    """Turn reported errors into errors of the request. `fields`: a service's name of a field -> the path of it in the
    body, where they differ. `body`: the path of the struct whose fields the others name."""
    try:
        yield
    except DatabaseUnavailable:
        raise
    except ProviderUnavailable as error:
        raise Unavailable(
            "The payment provider does not answer now; try again.", code="provider_unavailable"
        ) from error
    except (InvalidText, InvalidTerms, InvalidTopUp) as error:
        path = (fields or {}).get(error.field, f"{body}{error.field}")
        raise InvalidField(path, error.problem) from error
    except ReportedError as error:
        for kind, becomes, code in _KINDS:
            if isinstance(error, kind):
                raise becomes(_sentence(error), code=code) from error
        raise InvalidRequest(_sentence(error), code="refused") from error


def amount_at(path: str, text: str, *, zero: bool = False) -> int:
    """Pico-units of a decimal string in the body. `zero`: 0 is allowed. Raises InvalidField."""
    if zero and text and not text.strip("0."):
        return 0
    try:
        return parse_amount(text)
    except InvalidMoney as error:
        raise InvalidField(path, str(error), code="invalid_amount") from error


def minor_at(path: str, text: str, currency: str) -> int:
    """Minor units of a decimal amount. Raises InvalidField."""
    digits = minor_digits(currency)
    try:
        scaled = Decimal(text[:40]).scaleb(digits)
    except InvalidOperation as error:
        raise InvalidField(path, f"{text[:40]!r} is not an amount such as 25.00", code="invalid_amount") from error
    if not scaled.is_finite() or scaled != scaled.to_integral_value() or abs(scaled) >= _MOST_MINOR:
        problem = f"{text[:40]!r} is not an amount of {currency}, which has {digits} decimal places"
        raise InvalidField(path, problem, code="invalid_amount")
    return int(scaled)


def instant_at(path: str, text: str | None) -> int | None:
    """The instant in the body, in microseconds since the Unix epoch; None for none. Raises InvalidField."""
    try:
        return None if text is None else parse_instant(text)
    except InvalidInstant as error:
        raise InvalidField(path, str(error)) from error


def uuid_at(path: str, text: str | None, prefix: str = "") -> UUID | None:
    """The id in the body, with or without its prefix; None for none. Raises InvalidField."""
    try:
        return None if text is None else UUID(text.removeprefix(prefix))
    except ValueError as error:
        raise InvalidField(path, f"{text[:80] if text else ''!r} is not a UUID") from error


def money(pico: int | None) -> str | None:
    """An amount as a decimal string with 12 places; None for none."""
    return None if pico is None else format_pico(pico)


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."
