"""`turnpike invoices draft|finalize`: for one tenant, or for everybody who has something to be billed."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from uuid import UUID

import msgspec

from billing.invoices.document import Document
from billing.invoices.drafting import draft
from billing.invoices.errors import InvoiceRefused, NoProfile
from billing.invoices.finalizing import finalize
from billing.invoices.parties import InvalidParty, vat_warnings
from billing.invoices.party_store import Parties
from billing.invoices.records import Invoices
from billing.reports.usage_report import usage_by_project_and_model
from storage.free_text import counted
from turnpike.admin_services import AdminServices
from turnpike.commands.invoice_words import NOTHING_WRITTEN, parse_day, record_line, totals_line
from turnpike.commands.running import with_admin_services
from turnpike.failures import CommandError
from turnpike.settings.settings import Settings


def draft_invoices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices draft`: 1 if one of the tenants could not be drafted."""

    async def work(admin: AdminServices) -> int:
        names = await _project_names(admin)
        invoices = Invoices(admin.database)

        async def one(tenant_id: UUID, _used: bool) -> str:
            there = await invoices.draft(tenant_id, arguments.period) if arguments.all else None
            if there is not None and there.state != "draft":
                return record_line(there)
            record, document = await draft(
                admin.database, admin.prices, tenant_id, arguments.period, names, write=not arguments.dry_run
            )
            if document is None:
                raise _Skipped("nothing to bill")
            for warning in vat_warnings(document.seller, document.buyer):
                _warn(document, warning)
            return totals_line(document) + ("" if record else f" ({NOTHING_WRITTEN})")

        return await _for_each(admin, arguments, one)

    return with_admin_services(settings, work)


def finalize_invoices(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike invoices finalize`: 1 if one of the drafts could not be finalized."""
    issued = parse_day(arguments.issued, "--issued") if arguments.issued else None

    async def work(admin: AdminServices) -> int:
        invoices = Invoices(admin.database)

        async def one(tenant_id: UUID, used: bool) -> str:
            before = await invoices.draft(tenant_id, arguments.period)
            if arguments.all and before is None:
                if used:
                    raise InvoiceRefused(
                        f"there is usage and no draft; `turnpike invoices draft --all --period {arguments.period}` "
                        "says why"
                    )
                raise _Skipped("no draft")
            record = await finalize(
                admin.database, admin.prices, tenant_id, arguments.period, issued, write=not arguments.dry_run
            )
            if not arguments.dry_run:
                return record_line(record)
            if before is not None and before.state != "draft":
                return f"{record_line(record)} ({NOTHING_WRITTEN})"
            unnumbered = msgspec.structs.replace(record, number=None)  # whose number it is, the real run decides
            return f"{record_line(unnumbered)} ({NOTHING_WRITTEN}; its number is given at finalizing)"

        return await _for_each(admin, arguments, one)

    return with_admin_services(settings, work)


async def _for_each(
    admin: AdminServices, arguments: argparse.Namespace, one: Callable[[UUID, bool], Awaitable[str]]
) -> int:
    """Do it for one tenant or for all that are concerned; who fails is said, and keeps nobody else from being done.

    `one` is told the tenant, and whether it used anything in the period.
    """
    names = {tenant.id: tenant.name for tenant in await admin.tenancy.list_tenants()}
    if arguments.tenant:
        tenant = await admin.tenancy.tenant(arguments.tenant)
        try:
            print(f"{tenant.name}, {arguments.period}: {await one(tenant.id, True)}")
        except _Skipped as error:
            print(f"{tenant.name}, {arguments.period}: {error}")
        except NoProfile as error:
            raise CommandError(f"{tenant.name}: {error}") from error
        return 0
    used = {row.tenant_id for row in await usage_by_project_and_model(admin.database, arguments.period)}
    concerned = used | set(await Parties(admin.database).buyers())
    print(f"{arguments.period}: {counted(len(concerned), 'tenant')}", file=sys.stderr)
    failed, skipped = 0, Counter[str]()
    for n, tenant_id in enumerate(sorted(concerned, key=lambda each: names.get(each, str(each))), 1):
        name = names.get(tenant_id, str(tenant_id))
        _progress(f"{n} of {len(concerned)}: {name}")
        try:
            told = await one(tenant_id, tenant_id in used)
        except _Skipped as error:
            skipped[str(error)] += 1
            told = str(error)
        except (InvoiceRefused, InvalidParty) as error:
            failed += 1
            _progress("")
            print(f"{name}: {error}", file=sys.stderr)
            continue
        _progress("")
        print(f"{name}, {arguments.period}: {told}", flush=True)
    done = len(concerned) - failed - skipped.total()
    would = "would be " if arguments.dry_run else ""
    counts = [
        f"{counted(done, 'tenant')} {would}done",
        *(f"{n} with {why}" for why, n in skipped.items()),
        f"{failed} refused",
    ]
    print(f"{arguments.period}: {', '.join(counts)}", file=sys.stderr)
    return 1 if failed else 0


class _Skipped(Exception):
    """There is nothing to do for a tenant, and why."""


def _warn(document: Document, warning: str) -> None:
    print(f"{document.buyer.name}: {warning}", file=sys.stderr)


def _progress(text: str) -> None:
    """Where somebody watches."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


async def _project_names(admin: AdminServices) -> dict[UUID, str]:
    tenants = await admin.tenancy.list_tenants()
    return {project.id: project.name for each in tenants for project in await admin.tenancy.list_projects(each.id)}
