"""The failures that a command reports in one line, because they say themselves what is wrong and what to do."""

from __future__ import annotations


class CommandError(Exception):
    """A command cannot do what was asked; the message says why and what to do."""


def known() -> tuple[type[Exception], ...]:
    """Every such failure of every room. Imports the rooms, so it is called when something has failed."""
    from billing.accounts.adjustments import InvalidAdjustment, UnknownEvent  # noqa: PLC0415
    from billing.accounts.balances import CurrencyMismatch, InvalidGrant, RefundRefused  # noqa: PLC0415
    from billing.accounts.budgets import InvalidBudget, UnknownBudget  # noqa: PLC0415
    from billing.accounts.idempotency import IdempotencyConflict  # noqa: PLC0415
    from billing.exports.datasets import InvalidExport  # noqa: PLC0415
    from billing.invoices.errors import InvoiceRefused  # noqa: PLC0415
    from billing.invoices.parties import InvalidParty  # noqa: PLC0415
    from billing.invoices.pdf import NotPrintable  # noqa: PLC0415
    from billing.money import InvalidMoney, InvalidPrice  # noqa: PLC0415
    from billing.periods.periods import PeriodOpen  # noqa: PLC0415
    from billing.platform_settings import InvalidPlatformSetting  # noqa: PLC0415
    from billing.prices import PriceMissing  # noqa: PLC0415
    from billing.prices.errors import PriceRefused, UnknownBook, UnknownSheet  # noqa: PLC0415
    from billing.rating.terms import InvalidTerms  # noqa: PLC0415
    from billing.rating.usage_lines import CostMismatch  # noqa: PLC0415
    from billing.replica_journals.lost_journals import JournalAnswers, UnknownJournal  # noqa: PLC0415
    from billing.spool.gateway_epochs import EpochAlive, GatewayNameTaken, UnknownEpoch  # noqa: PLC0415
    from billing.usage import InvalidPeriod, InvalidUsage  # noqa: PLC0415
    from engine.errors import EngineError  # noqa: PLC0415
    from gateway.served_models.registry import ModelWithoutPrice  # noqa: PLC0415
    from gateway.served_models.served_model import ModelFolderError  # noqa: PLC0415
    from protocol.addresses import AddressError  # noqa: PLC0415
    from storage.bus import InvalidRedisUrl  # noqa: PLC0415
    from storage.database.database import DatabaseUnavailable, InvalidDatabaseUrl  # noqa: PLC0415
    from storage.database.migrate import SchemaMismatch  # noqa: PLC0415
    from storage.free_text import InvalidText  # noqa: PLC0415
    from tenancy.repositories import NameTaken, NoSuchRecord  # noqa: PLC0415
    from turnpike.processes.children import ChildFailed  # noqa: PLC0415
    from turnpike.settings.data_folder import DataFolderError, NoData  # noqa: PLC0415
    from turnpike.settings.secrets import SecretsError  # noqa: PLC0415
    from turnpike.settings.settings import SettingError  # noqa: PLC0415
    from webhooks.endpoints import InvalidWebhook, WebhookNotFound  # noqa: PLC0415

    return (
        AddressError,
        ChildFailed,
        CommandError,
        CostMismatch,
        CurrencyMismatch,
        DatabaseUnavailable,
        DataFolderError,
        EngineError,
        EpochAlive,
        GatewayNameTaken,
        IdempotencyConflict,
        InvalidAdjustment,
        InvalidBudget,
        InvalidDatabaseUrl,
        InvalidExport,
        InvalidGrant,
        InvalidMoney,
        InvalidParty,
        InvalidPeriod,
        InvalidPlatformSetting,
        InvalidPrice,
        InvalidRedisUrl,
        InvalidTerms,
        InvalidText,
        InvalidUsage,
        InvalidWebhook,
        InvoiceRefused,
        JournalAnswers,
        ModelFolderError,
        ModelWithoutPrice,
        NameTaken,
        NoData,
        NoSuchRecord,
        NotPrintable,
        PeriodOpen,
        PriceMissing,
        PriceRefused,
        RefundRefused,
        SchemaMismatch,
        SecretsError,
        SettingError,
        UnknownEvent,
        UnknownBook,
        UnknownBudget,
        UnknownEpoch,
        UnknownJournal,
        UnknownSheet,
        WebhookNotFound,
    )


def temporary() -> tuple[type[Exception], ...]:
    """Those that may be gone when the same is tried again."""
    from billing.spool.gateway_epochs import GatewayNameTaken  # noqa: PLC0415
    from engine.errors import DiskFull, EngineFailed  # noqa: PLC0415
    from storage.database.database import DatabaseUnavailable  # noqa: PLC0415
    from turnpike.settings.data_folder import DataFolderFull  # noqa: PLC0415

    return (DataFolderFull, DatabaseUnavailable, DiskFull, EngineFailed, GatewayNameTaken)
