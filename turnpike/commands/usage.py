"""`turnpike usage`: tokens by class and exact cost."""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time

from billing import reports
from billing.money import format_pico
from billing.usage import METERS
from turnpike.commands.running import table, with_office
from turnpike.office import Office
from turnpike.settings import Settings


def usage(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike usage`."""
    month = arguments.period or time.strftime("%Y-%m", time.gmtime())

    async def work(office: Office) -> int:
        names = {tenant.id: tenant.name for tenant in await office.tenancy.list_tenants()}
        wanted = (await office.tenancy.tenant(arguments.tenant)).id if arguments.tenant else None
        projects = {
            project.id: project.name for tenant in names for project in await office.tenancy.list_projects(tenant)
        }
        rows: list[dict[str, object]] = []
        for line in await reports.usage_by_project_and_model(office.database, month, wanted):
            meters = {meter: line.meters.get(meter, 0) for meter in METERS}
            rows.append(
                {
                    "tenant": names[line.tenant_id],
                    "project": projects[line.project_id],
                    "model": line.model,
                    "requests": line.requests,
                    **meters,
                    "currency": line.currency,
                    "cost": format_pico(line.cost_pico),
                }
            )
        _print_usage(month, rows, arguments.format)
        return 0

    return with_office(settings, work)


def _print_usage(month: str, rows: list[dict[str, object]], form: str) -> None:
    fixed = ["tenant", "project", "model", "requests", *METERS, "currency", "cost"]
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
        shown = [name for name in fixed if name not in METERS or any(row[name] for row in rows)]
        table(shown, [[row[name] for name in shown] for row in rows])
