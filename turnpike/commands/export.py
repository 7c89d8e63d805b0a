"""`turnpike export`: write usage, costs, invoices or books to a file for finance."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from storage.free_text import counted
from turnpike.command_context import print_progress, tenant_id_of, this_month, with_admin_services
from turnpike.command_line import CommandError, CommandParser
from turnpike.settings.settings import Settings

if TYPE_CHECKING:
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike export`."""
    parser.runs(export_data)
    parser.add_argument(
        "dataset",
        metavar="DATASET",
        help="usage, costs, invoices, journal, general-ledger, datev, revenue, deferred, ageing, account, "
        "focus, focus-invoices, focus-periods, focus-commitments",
    )
    parser.add_argument("--period", help="month such as 2026-11; default: this month (UTC)")
    parser.add_argument("--tenant", help="one tenant alone")
    parser.add_argument("--seller", help="of one seller alone; general-ledger and datev")
    parser.add_argument("--format", default="csv", help="csv, jsonl, parquet or xlsx; default: csv")
    parser.add_argument("-o", "--output", metavar="FILE", help="file or folder; default: DATASET-PERIOD.FORMAT here")


def export_data(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike export DATASET`."""
    from billing.exports.datasets import ExportQuery
    from billing.exports.files import ExportOrder, dataset_of, export, format_of, manifest_path
    from billing.exports.journal import parse_account_codes

    dataset, form = dataset_of(arguments.dataset), format_of(arguments.format)
    period = arguments.period or this_month()
    codes = parse_account_codes(settings.account_codes)

    async def work(admin: AdminServices) -> None:
        query = ExportQuery(
            period=period,
            tenant_id=await tenant_id_of(admin, arguments.tenant),
            names=await admin.display_names(),
            account_codes=codes,
            provider=settings.provider_name,
            seller=await _seller(admin, arguments.seller, dataset.name),
            datev=settings.datev,
        )
        path = _path(arguments.output, f"{dataset.prefix}{dataset.name}-{period}.{form}")
        try:
            manifest = await export(admin.database, admin.prices, ExportOrder(dataset, form, query), path, _progress)
        except OSError as error:
            raise CommandError(f"-o: cannot write {path}: {error.strerror}") from error
        print_progress("")
        sums = ", ".join(
            f"{column} {amount} {currency}"
            for column, by_currency in manifest.sums.items()
            for currency, amount in by_currency.items()
        )
        print(f"{path}: {counted(manifest.rows, 'row')}{f', {sums}' if sums else ''}")
        print(f"{manifest_path(path)}: SHA-256 {manifest.sha256}")

    return with_admin_services(settings, work, long=True)


async def _seller(admin: AdminServices, seller: str | None, dataset: str) -> str:
    """The seller whose books they are; a batch for DATEV is of one. Raises CommandError."""
    from billing.invoices.parties.store import Parties

    sellers = [each.id for each in await Parties(admin.database).sellers()]
    if seller is not None and seller not in sellers:
        raise CommandError(f"--seller: there is no seller {seller}; `turnpike invoices seller show` names them")
    if dataset == "datev" and seller is None and len(sellers) > 1:
        raise CommandError(f"--seller: say whose books they are, one of {', '.join(sellers)}")
    return seller or ""


def _path(output: str | None, file_name: str) -> Path:
    path = Path(output or file_name)
    return path / file_name if path.is_dir() else path


async def _progress(rows: int) -> None:
    print_progress(counted(rows, "row"))
