"""What operators type and scripts test: commands, flags, settings, exit codes."""

from __future__ import annotations

import argparse
import errno
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from billing.accounts.adjustments import InvalidAdjustment, UnknownEvent
from billing.accounts.balances import CurrencyMismatch, InvalidGrant
from billing.accounts.budgets import InvalidBudget, UnknownBudget
from billing.accounts.idempotency import IdempotencyConflict
from billing.calendar import InvalidPeriod
from billing.exports.datasets import InvalidExport
from billing.invoices.errors import InvoiceRefused
from billing.invoices.parties.parties import InvalidParty
from billing.invoices.rendering.pdf import NotPrintable
from billing.ledger.wallet import RefundRefused
from billing.money import InvalidMoney, InvalidPrice
from billing.periods.periods import PeriodOpen
from billing.platform_settings import InvalidPlatformSetting
from billing.prices import PriceMissing
from billing.prices.errors import PriceRefused, UnknownBook, UnknownSheet
from billing.rating.terms import InvalidTerms
from billing.rating.usage_lines import CostMismatch
from billing.replica_journals.lost_journals import JournalAnswers, UnknownJournal
from billing.spool.gateway_epochs import EpochAlive, GatewayNameTaken, UnknownEpoch
from billing.usage import InvalidUsage
from engine.errors import DiskFull, EngineError, EngineFailed, StartError
from gateway.served_models.registry import ModelWithoutPrice
from gateway.served_models.served_model import ModelFolderError
from protocol.addresses import AddressError
from storage.bus import InvalidRedisUrl
from storage.database.database import DatabaseUnavailable, InvalidDatabaseUrl
from storage.database.migrate import SchemaMismatch
from storage.free_text import InvalidText
from tenancy.repositories import NameTaken, NoSuchRecord
from tests.goldens import golden
from turnpike import logs
from turnpike.cli import build_parser, main
from turnpike.command_line import CommandError
from turnpike.processes.children import ChildFailed
from turnpike.settings import loading
from turnpike.settings.data_folder import DataFolderError, DataFolderFull, NoData
from turnpike.settings.secrets import SecretsError
from turnpike.settings.settings import SettingError, Settings
from webhooks.endpoints import InvalidWebhook, WebhookNotFound

FAILURES: dict[str, type[BaseException]] = {
    "address of a replica is invalid": AddressError,
    "adjustment is invalid": InvalidAdjustment,
    "adjusted event is unknown": UnknownEvent,
    "budget is invalid": InvalidBudget,
    "budget is unknown": UnknownBudget,
    "child process failed": ChildFailed,
    "command failed": CommandError,
    "cost does not match": CostMismatch,
    "currency does not match": CurrencyMismatch,
    "data folder is unusable": DataFolderError,
    "data folder's disk is full": DataFolderFull,
    "data is missing": NoData,
    "database URL is invalid": InvalidDatabaseUrl,
    "database is away": DatabaseUnavailable,
    "engine cannot work": EngineError,
    "engine cannot start": StartError,
    "engine failed": EngineFailed,
    "engine's disk is full": DiskFull,
    "epoch is alive": EpochAlive,
    "epoch is unknown": UnknownEpoch,
    "export is invalid": InvalidExport,
    "gateway name is taken": GatewayNameTaken,
    "grant is invalid": InvalidGrant,
    "idempotency key was used for something else": IdempotencyConflict,
    "invoice is refused": InvoiceRefused,
    "invoice is not printable": NotPrintable,
    "journal answers": JournalAnswers,
    "journal is unknown": UnknownJournal,
    "model folder is unusable": ModelFolderError,
    "model has no price": ModelWithoutPrice,
    "money is invalid": InvalidMoney,
    "name is taken": NameTaken,
    "party is invalid": InvalidParty,
    "period is invalid": InvalidPeriod,
    "period is open": PeriodOpen,
    "platform setting is invalid": InvalidPlatformSetting,
    "price is invalid": InvalidPrice,
    "price is missing": PriceMissing,
    "price is refused": PriceRefused,
    "price book is unknown": UnknownBook,
    "price sheet is unknown": UnknownSheet,
    "Redis URL is invalid": InvalidRedisUrl,
    "refund is refused": RefundRefused,
    "schema does not match": SchemaMismatch,
    "secrets are unusable": SecretsError,
    "setting is invalid": SettingError,
    "tenant, project or key is unknown": NoSuchRecord,
    "contract terms are invalid": InvalidTerms,
    "text is invalid": InvalidText,
    "usage is invalid": InvalidUsage,
    "webhook is invalid": InvalidWebhook,
    "webhook is unknown": WebhookNotFound,
    "interrupted from the keyboard": KeyboardInterrupt,
    "reader of the output is gone": BrokenPipeError,
    "a bug": ZeroDivisionError,
}
"""What a command may fail with. What they are called here stays when a class is renamed."""


def test_commands_and_their_flags() -> None:
    golden.check("commands", dict(_leaves(build_parser(), "turnpike")))


def _leaves(parser: argparse.ArgumentParser, name: str) -> list[tuple[str, Any]]:
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if groups:
        (group,) = groups
        return [leaf for word, below in group.choices.items() for leaf in _leaves(below, f"{name} {word}")]
    return [(name, _arguments(parser))]


def _arguments(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Each flag, and each positional argument by its place, with what is not argparse's default. Help is not frozen."""
    frozen = {}
    positional = 0
    for action in parser._actions:
        positional += not action.option_strings
        said = {
            "action": type(action).__name__.strip("_").removesuffix("Action").lower(),
            "default": action.default,
            "choices": action.choices and list(action.choices),
            "nargs": action.nargs,
            "const": action.const,
            "required": action.required,
            "type": action.type in (int, float) and getattr(action.type, "__name__", None),
            "hidden": action.help == argparse.SUPPRESS,
        }
        defaults: tuple[Any, ...] = (None, False, "store")
        frozen[", ".join(action.option_strings) or f"argument {positional}"] = {
            key: value for key, value in said.items() if value not in defaults or (key == "nargs" and value == 0)
        }
    return frozen


def test_settings() -> None:
    hints = get_type_hints(Settings, include_extras=True)
    frozen = {}
    for field in msgspec.structs.fields(Settings):
        meta = loading.describe(field.name)
        frozen[field.name] = {
            "flag": loading.flag_name(field.name),
            "environment": loading.environment_name(field.name),
            "default": field.default,
            "type": _type_name(get_args(hints[field.name])[0]),
            "at least": meta.ge,
            "at most": meta.le,
            "roles": list((meta.extra or {})["roles"]),
        }
    golden.check("settings", frozen)


def _type_name(kind: Any) -> Any:
    return list(get_args(kind)) or kind.__name__


def _exit_code(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int | str:
    def fail() -> str:
        raise error

    monkeypatch.setattr(loading, "reference", fail)
    try:
        return main(["settings", "--markdown"])
    except SystemExit as left:
        return str(left.code)
    except type(error):
        return "traceback"


@pytest.fixture(autouse=True)
def no_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave logging as it is: a command sends it to the stderr of this test, which the tests after it do not have."""
    monkeypatch.setattr(logs, "configure", lambda *_: None)


def test_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    codes = {}
    for name, kind in FAILURES.items():
        error = kind.__new__(kind, "why")  # not by its arguments, which are no promise
        codes[name] = _exit_code(error, monkeypatch)
    codes["disk is full"] = _exit_code(OSError(errno.ENOSPC, "No space left on device"), monkeypatch)
    golden.check("exit_codes", codes)


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["settings", "--no-such-flag"]])
def test_a_wrong_command_line_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
