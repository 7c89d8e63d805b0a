"""`turnpike export …`: a period's usage, costs, books and invoices as files for finance."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from billing.exports.datasets import ExportQuery
from billing.exports.files import ExportOrder, dataset_of, export, format_of, manifest_path
from billing.exports.journal import parse_account_codes
from storage.free_text import counted
from turnpike.admin_services import AdminServices, names
from turnpike.commands.running import with_admin_services
from turnpike.failures import CommandError
from turnpike.settings.settings import Settings


def export_data(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike export DATASET`."""
    dataset, form = dataset_of(arguments.dataset), format_of(arguments.format)
    period = arguments.period or time.strftime("%Y-%m", time.gmtime())
    codes = parse_account_codes(settings.account_codes)

    async def work(admin: AdminServices) -> int:
        tenant = (await admin.tenancy.tenant(arguments.tenant)).id if arguments.tenant else None
        asked = ExportQuery(
            period=period,
            tenant_id=tenant,
            names=await names(admin.tenancy),
            account_codes=codes,
            provider=settings.provider_name,
        )
        path = _path(arguments.output, f"{dataset.name}-{period}.{form}")
        try:
            manifest = await export(admin.database, admin.prices, ExportOrder(dataset, form, asked), path, _shown)
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

    return with_admin_services(settings, work)


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
