"""`turnpike invoices draft` and `finalize`, for one tenant or for all who have something to be billed."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from billing.invoices.document import warnings_of
from billing.invoices.errors import InvoiceRefused, NoProfile
from billing.invoices.parties.parties import InvalidParty
from storage.free_text import counted
from turnpike.api.actions import add_work
from turnpike.command_context import admin_command, print_progress, with_admin_services
from turnpike.command_line import CommandError, CommandParser
from turnpike.commands.invoices import elsewhere
from turnpike.commands.invoices.records import NOTHING_WRITTEN, parse_day, record_line, totals_line
from turnpike.settings.settings import Settings

if TYPE_CHECKING:
    from turnpike.admin_services import AdminServices


class NothingToDo(Exception):
    """There is nothing to do for a tenant; the message says why."""


def add_arguments(parser: CommandParser) -> None:
    """Declare these actions of `turnpike invoices`."""
    draft = add_work(
        parser, "draft", "make the drafts of a period, or make them again", elsewhere.draft_invoice, draft_invoices
    )
    finalize = add_work(
        parser,
        "finalize",
        "number and seal the drafts of a closed period",
        elsewhere.finalize_invoice,
        finalize_invoices,
    )
    for action in (draft, finalize):
        tenants = action.add_mutually_exclusive_group(required=True)
        tenants.add_argument("--tenant", help="one tenant")
        tenants.add_argument("--all", action="store_true", help="everybody who has something to be billed")
        text = "month, such as 2026-11; default: last month (UTC)"
        action.add_argument("--month", "--period", dest="period", default=_last_month(), help=text)
        action.add_dry_run()
    finalize.add_argument("--issued", metavar="DATE", help="issue date such as 2026-12-01; default: today (UTC)")


def _last_month() -> str:
    return (datetime.now(UTC).replace(day=1) - timedelta(days=1)).strftime("%Y-%m")


@admin_command
async def draft_invoices(admin: AdminServices, arguments: argparse.Namespace) -> int:
    """`turnpike invoices draft`: 1 if one of the tenants could not be drafted."""
    from billing.invoices.drafting import draft
    from billing.invoices.store import Invoices

    projects = (await admin.display_names()).projects
    invoices = Invoices(admin.database)

    async def draft_one(tenant_id: UUID, _has_usage: bool) -> str:
        existing = await invoices.of_period(tenant_id, arguments.period) if arguments.all else None
        if existing is not None and existing.state != "draft":
            return record_line(existing)
        record, document = await draft(
            admin.database, admin.prices, tenant_id, arguments.period, projects, write=not arguments.dry_run
        )
        if document is None:
            raise NothingToDo("nothing to bill")
        for warning in warnings_of(document):
            print(f"{document.buyer.name}: {warning}", file=sys.stderr)
        return totals_line(document) + ("" if record else f" ({NOTHING_WRITTEN})")

    return await _for_each_tenant(admin, arguments, draft_one)


def finalize_invoices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices finalize`: 1 if one of the drafts could not be finalized."""
    from billing.invoices.finalizing import finalize
    from billing.invoices.store import Invoices

    issued = parse_day(arguments.issued, "--issued") if arguments.issued else None

    async def work(admin: AdminServices) -> int:
        invoices = Invoices(admin.database)

        async def finalize_one(tenant_id: UUID, has_usage: bool) -> str:
            before = await invoices.of_period(tenant_id, arguments.period)
            if arguments.all and before is None:
                if has_usage:
                    raise InvoiceRefused(
                        f"there is usage and no draft; `turnpike invoices draft --all --period {arguments.period}` "
                        "says why"
                    )
                raise NothingToDo("no draft")
            record = await finalize(
                admin.database, admin.prices, tenant_id, arguments.period, issued, write=not arguments.dry_run
            )
            if not arguments.dry_run:
                return record_line(record)
            if before is not None and before.state != "draft":
                return f"{record_line(record)} ({NOTHING_WRITTEN})"
            unnumbered = msgspec.structs.replace(record, number=None)  # the number is only taken at finalizing
            return f"{record_line(unnumbered)} ({NOTHING_WRITTEN}; its number is given at finalizing)"

        return await _for_each_tenant(admin, arguments, finalize_one)

    return with_admin_services(settings, work)


async def _for_each_tenant(
    admin: AdminServices, arguments: argparse.Namespace, run_one: Callable[[UUID, bool], Awaitable[str]]
) -> int:
    """Run for one tenant, or for all that have usage or a billing profile; 1 if one of them was refused.

    `run_one` takes the tenant and whether it has usage in the period. A refusal is printed; the others go on.
    """
    from billing.invoices.parties.store import Parties
    from billing.reports.usage_report import usage_by_project_and_model

    if arguments.tenant:
        tenant = await admin.tenancy.tenant(arguments.tenant)
        try:
            print(f"{tenant.name}, {arguments.period}: {await run_one(tenant.id, True)}")
        except NothingToDo as error:
            print(f"{tenant.name}, {arguments.period}: {error}")
        except NoProfile as error:
            raise CommandError(f"{tenant.name}: {error}") from error
        return 0
    with_usage = {row.tenant_id for row in await usage_by_project_and_model(admin.database, arguments.period)}
    tenant_ids = with_usage | set(await Parties(admin.database).buyers())
    names = {tenant_id: str(tenant_id) for tenant_id in tenant_ids} | await admin.tenant_names()
    print(f"{arguments.period}: {counted(len(tenant_ids), 'tenant')}", file=sys.stderr)
    failed, skipped = 0, Counter[str]()
    for n, tenant_id in enumerate(sorted(tenant_ids, key=names.__getitem__), 1):
        name = names[tenant_id]
        print_progress(f"{n} of {len(tenant_ids)}: {name}")
        try:
            result = await run_one(tenant_id, tenant_id in with_usage)
        except NothingToDo as error:
            skipped[str(error)] += 1
            result = str(error)
        except (InvoiceRefused, InvalidParty) as error:
            failed += 1
            print_progress("")
            print(f"{name}: {error}", file=sys.stderr)
            continue
        print_progress("")
        print(f"{name}, {arguments.period}: {result}", flush=True)
    done = len(tenant_ids) - failed - skipped.total()
    would = "would be " if arguments.dry_run else ""
    counts = [
        f"{counted(done, 'tenant')} {would}done",
        *(f"{n} with {why}" for why, n in skipped.items()),
        f"{failed} refused",
    ]
    print(f"{arguments.period}: {', '.join(counts)}", file=sys.stderr)
    return 1 if failed else 0
