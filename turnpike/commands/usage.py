"""`turnpike usage`: tokens by class, drafts, cache storage, ready adapters and exact cost, by project and model."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from typing import TYPE_CHECKING

from billing.money import format_pico
from turnpike.command_context import admin_command, print_table, tenant_id_of, this_month
from turnpike.command_line import CommandParser

if TYPE_CHECKING:
    from turnpike.admin_services import AdminServices


_STORED, _RESIDENT = "stored_token_seconds", "resident_millihours"
"""Of cached prompts, and of adapters that replicas kept ready."""


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike usage`."""
    parser.runs(print_usage)
    parser.add_argument("--period", "--month", help="such as 2026-11; default: this month (UTC)")
    parser.add_argument("--tenant", help="one tenant alone")
    parser.add_format("csv", "json")


@admin_command
async def print_usage(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike usage`."""
    from billing.reports.usage_report import usage_by_project_and_model
    from billing.usage import METERS

    month = arguments.period or this_month()
    names = await admin.display_names()
    tenant_id = await tenant_id_of(admin, arguments.tenant)
    rows: list[dict[str, object]] = [
        {
            "tenant": names.tenants[line.tenant_id],
            "project": names.projects[line.project_id],
            "model": line.model,
            "requests": line.requests,
            **{meter: line.meters.get(meter, 0) for meter in METERS},
            "drafted": line.drafted,
            "accepted": line.accepted,
            _STORED: line.stored,
            _RESIDENT: line.resident,
            "currency": line.currency,
            "cost": format_pico(line.cost_pico),
        }
        for line in await usage_by_project_and_model(admin.database, month, tenant_id)
    ]
    _print_rows(month, rows, arguments.format)


def _print_rows(month: str, rows: list[dict[str, object]], form: str) -> None:
    from billing.usage import DRAFTS, METERS

    fixed = ["tenant", "project", "model", "requests", *METERS, *DRAFTS, _STORED, _RESIDENT, "currency", "cost"]
    if form == "json":
        print(json.dumps({"month": month, "rows": rows}, indent=2))
    elif form == "csv":
        writer = csv.DictWriter(sys.stdout, fixed, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    elif not rows:
        print(f"no usage in {month}")
    else:
        # Classes that nobody used are left out of the table; CSV and JSON have every column.
        seldom = {*METERS, *DRAFTS, _STORED, _RESIDENT}
        shown = [name for name in fixed if name not in seldom or any(row[name] for row in rows)]
        print_table(shown, [[row[name] for name in shown] for row in rows])
