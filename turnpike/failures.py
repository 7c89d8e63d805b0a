"""The failures that a command reports in one line, because they say themselves what is wrong and what to do."""

from __future__ import annotations


class CommandError(Exception):
    """A command cannot do what was asked; the message says why and what to do."""


def known() -> tuple[type[Exception], ...]:
    """Every such failure of every room. Imports the rooms, so it is called when something has failed."""
    from billing.adjustments import InvalidAdjustment, UnknownEvent  # noqa: PLC0415
    from billing.balances import CurrencyMismatch, InvalidGrant, RefundRefused  # noqa: PLC0415
    from billing.budgets.setting import InvalidBudget, UnknownBudget  # noqa: PLC0415
    from billing.epochs import EpochAlive, GatewayNameTaken, UnknownEpoch  # noqa: PLC0415
    from billing.exports.datasets import InvalidExport  # noqa: PLC0415
    from billing.identities import IdReused  # noqa: PLC0415
    from billing.invoices.failures import InvoiceRefused  # noqa: PLC0415
    from billing.invoices.parties import InvalidParty  # noqa: PLC0415
    from billing.invoices.pdf import NotPrintable  # noqa: PLC0415
    from billing.lost_journals import JournalAnswers, UnknownJournal  # noqa: PLC0415
    from billing.money import InvalidMoney, InvalidPrice  # noqa: PLC0415
    from billing.periods import PeriodOpen  # noqa: PLC0415
    from billing.platform_settings import InvalidPlatformSetting  # noqa: PLC0415
    from billing.prices import PriceMissing  # noqa: PLC0415
    from billing.prices.errors import PriceRefused, UnknownBook, UnknownSheet  # noqa: PLC0415
    from billing.rating.terms import InvalidTerms  # noqa: PLC0415
    from billing.rating.usage_lines import CostMismatch  # noqa: PLC0415
    from billing.usage import InvalidPeriod, InvalidUsage  # noqa: PLC0415
    from billing.webhooks.endpoints import InvalidWebhook, WebhookNotFound  # noqa: PLC0415
    from engine.errors import EngineError  # noqa: PLC0415
    from engine.protocol.addresses import AddressError  # noqa: PLC0415
    from gateway.conversation.served_model import ModelFolderError  # noqa: PLC0415
    from gateway.registry import ModelWithoutPrice  # noqa: PLC0415
    from gateway.tenancy.repositories import NameTaken, NotFound  # noqa: PLC0415
    from storage.bus import InvalidRedisUrl  # noqa: PLC0415
    from storage.database import DatabaseUnavailable, InvalidDatabaseUrl  # noqa: PLC0415
    from storage.free_text import InvalidText  # noqa: PLC0415
    from storage.migrate import SchemaMismatch  # noqa: PLC0415
    from turnpike.children import ChildFailed  # noqa: PLC0415
    from turnpike.data_folder import DataFolderError, NoData  # noqa: PLC0415
    from turnpike.secrets import SecretsError  # noqa: PLC0415
    from turnpike.settings import SettingError  # noqa: PLC0415

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
        IdReused,
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
        NotFound,
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
    from billing.epochs import GatewayNameTaken  # noqa: PLC0415
    from engine.errors import DiskFull, EngineFailed  # noqa: PLC0415
    from storage.database import DatabaseUnavailable  # noqa: PLC0415
    from turnpike.data_folder import DataFolderFull  # noqa: PLC0415

    return (DataFolderFull, DatabaseUnavailable, DiskFull, EngineFailed, GatewayNameTaken)
