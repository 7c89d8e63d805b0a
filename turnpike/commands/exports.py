"""`turnpike export …`: a period's usage, costs, books and invoices as files for finance."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from billing.exports.datasets import Asked
from billing.exports.files import Order, dataset_of, export, format_of, manifest_path
from billing.exports.journal import parse_account_codes
from storage.plurals import counted
from turnpike.commands.running import with_office
from turnpike.exporting import names
from turnpike.failures import CommandError
from turnpike.office import Office
from turnpike.settings import Settings


def export_data(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike export DATASET`."""
    dataset, form = dataset_of(arguments.dataset), format_of(arguments.format)
    period = arguments.period or time.strftime("%Y-%m", time.gmtime())
    codes = parse_account_codes(settings.account_codes)

    async def work(office: Office) -> int:
        tenant = (await office.tenancy.tenant(arguments.tenant)).id if arguments.tenant else None
        asked = Asked(
            period=period,
            tenant_id=tenant,
            names=await names(office.tenancy),
            account_codes=codes,
            provider=settings.provider_name,
        )
        path = _path(arguments.output, f"{dataset.name}-{period}.{form}")
        try:
            manifest = await export(office.database, office.prices, Order(dataset, form, asked), path, _shown)
        except OSError as error:
            raise CommandError(f"-o: cannot write {path}: {error.strerror}") from error
        _clear()
        sums = ", ".join(
            f"{column} {amount} {currency}"
            for column, by_currency in manifest.sums.items()
            for currency, amount in by_currency.items()
        )
        print(f"{path}: {counted(manifest.rows, 'row')}{f', {sums}' if sums else ''}")
        print(f"{manifest_path(path)}: SHA-256 {manifest.sha256}")
        return 0

    return with_office(settings, work)


def _path(output: str | None, usual: str) -> Path:
    path = Path(output or usual)
    return path / usual if path.is_dir() else path


async def _shown(rows: int) -> None:
    """Progress, where somebody watches."""
    if sys.stderr.isatty():
        print(f"\r{counted(rows, 'row')}", end="", file=sys.stderr, flush=True)


def _clear() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
