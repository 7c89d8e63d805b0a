"""`turnpike usage`: tokens by class and exact cost."""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time

from billing.money import format_pico
from billing.reports import usage_report
from billing.usage import METERS
from turnpike.admin_services import AdminServices
from turnpike.commands.running import table, with_admin_services
from turnpike.settings.settings import Settings


def usage(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike usage`."""
    month = arguments.period or time.strftime("%Y-%m", time.gmtime())

    async def work(admin: AdminServices) -> int:
        names = {tenant.id: tenant.name for tenant in await admin.tenancy.list_tenants()}
        wanted = (await admin.tenancy.tenant(arguments.tenant)).id if arguments.tenant else None
        projects = {
            project.id: project.name for tenant in names for project in await admin.tenancy.list_projects(tenant)
        }
        rows: list[dict[str, object]] = []
        for line in await usage_report.usage_by_project_and_model(admin.database, month, wanted):
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

    return with_admin_services(settings, work)


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
