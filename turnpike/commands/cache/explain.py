"""`turnpike cache explain`: why a request's prompt missed, or a project's prompts in a day."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from turnpike.command_context import admin_command, print_table
from turnpike.command_line import CommandError, CommandParser

if TYPE_CHECKING:
    from gateway.dialects.cache_explanation import CacheDay, CacheExplanation
    from turnpike.admin_services import AdminServices


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike cache explain`."""
    explain = parser.add_action("explain", "why prompts missed, to the token, and what it cost", explain_misses)
    explain.add_argument("--tenant", required=True, metavar="NAME", help="whose requests")
    what = explain.add_mutually_exclusive_group(required=True)
    what.add_argument("--request", metavar="ID", help="one request, by any of its ids: req_…, chatcmpl-…, msg_…")
    what.add_argument("--project", metavar="NAME", help="a project's requests in a day")
    explain.add_argument("--day", metavar="YYYY-MM-DD", help="with --project; default: today (UTC)")
    explain.add_format("json")


@admin_command
async def explain_misses(admin: AdminServices, arguments: argparse.Namespace) -> None:
    """`turnpike cache explain`."""
    tenant = (await admin.tenancy.tenant(arguments.tenant)).id
    if arguments.request is not None:
        await _explain_request(admin, tenant, arguments)
    else:
        await _explain_day(admin, tenant, arguments)


async def _explain_request(admin: AdminServices, tenant: UUID, arguments: argparse.Namespace) -> None:
    from gateway.dialects.cache_explanation import explanation_of
    from gateway.generation.request_history import priced, request_id_of
    from prompt_cache.history.store import History

    request_id = request_id_of(arguments.request)
    noted = None if request_id is None else await History(admin.database).get(tenant, None, request_id)
    if noted is None or noted.diagnosis is None:
        raise CommandError(f"{arguments.tenant} has no request {arguments.request} in the history: it keeps two days")
    shown = explanation_of(await priced(admin.prices, noted.record, noted.diagnosis))
    if arguments.format == "json":
        print(msgspec.json.encode(shown).decode())
    else:
        _print_request(shown)


async def _explain_day(admin: AdminServices, tenant: UUID, arguments: argparse.Namespace) -> None:
    from gateway.dialects.cache_explanation import cache_days
    from prompt_cache.history.store import History, day_of
    from turnpike.commands.invoices.records import parse_day

    day = parse_day(arguments.day, "--day").isoformat() if arguments.day else day_of(await admin.database.now())
    projects = {project.name: project.id for project in await admin.tenancy.list_projects(tenant)}
    if arguments.project not in projects:
        raise CommandError(f"{arguments.tenant} has no project {arguments.project}")
    days = cache_days(await History(admin.database).days(tenant, projects[arguments.project], day, day))
    if arguments.format == "json":
        print(msgspec.json.encode(days).decode())
        return
    if not days.data:
        print(f"nothing is known of {arguments.project} on {day}")
    for one in days.data:
        _print_day(one)


def _print_request(shown: CacheExplanation) -> None:
    cost = "" if shown.missed_cost is None else f", which cost {shown.missed_cost} {shown.currency} more than reading"
    print(f"{shown.request_id}, {shown.model}, {shown.created_at}")
    print(f"{shown.prompt_tokens} prompt tokens: {shown.read_tokens} read, {shown.missed_tokens} missed{cost}")
    if shown.nearest is not None:
        print(f"nearest earlier request: {shown.nearest}, which begins with the same {shown.common_tokens} tokens")
    if shown.misses:
        print()
        header = ("tokens", "from", "to", "cause", "path", "differs at", "against", "when", "cost")
        print_table(
            header,
            [
                (
                    m.tokens,
                    m.start,
                    m.end,
                    m.cause,
                    m.path,
                    "" if m.differs_at is None else m.differs_at,
                    m.against or "",
                    m.at or "",
                    m.cost or "",
                )
                for m in shown.misses
            ],
        )
        print()
    for cause, advice in {miss.cause: miss.advice for miss in shown.misses}.items():
        print(f"{cause}: {advice}")
    for miss in shown.misses:
        if miss.longer_ttl is not None:
            longer = miss.longer_ttl
            print(f"with ttl {longer.ttl}: {longer.premium} more for writing, {longer.saved} less for reading")
    if shown.recomputed:
        lost = sum(miss.tokens for miss in shown.recomputed)
        print(f"{lost} tokens were billed as read and computed again at no charge")


def _print_day(day: CacheDay) -> None:
    from gateway.dialects.cache_explanation import ADVICE

    print(f"{day.date}, {day.model}: {day.prompt_tokens} prompt tokens, {day.read_tokens} read")
    print(f"misses cost {day.missed_cost} {day.currency or ''} more than reading".rstrip())
    print_table(
        ("cause", "requests", "tokens", "share", "cost"),
        [
            (one.cause, one.requests, one.tokens, f"{100 * one.tokens / max(1, day.prompt_tokens):.1f}%", one.cost)
            for one in day.causes
        ],
    )
    dearest = next((one for one in day.causes if one.tokens), None)
    if dearest is not None:
        print(next(advice for cause, advice in ADVICE.items() if cause == dearest.cause))
