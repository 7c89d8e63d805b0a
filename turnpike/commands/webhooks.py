"""`turnpike webhooks`: manage webhook endpoints and see their deliveries."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from turnpike.command_context import print_table, with_admin_services
from turnpike.command_line import Command, CommandError, CommandParser
from turnpike.settings.data_folder import read_secrets
from turnpike.settings.settings import Settings

if TYPE_CHECKING:
    from turnpike.admin_services import AdminServices
    from webhooks.endpoints import WebhookEndpoints

WebhookWork: TypeAlias = "Callable[[WebhookEndpoints, UUID, argparse.Namespace], Awaitable[None]]"
"""Works on the endpoints of one tenant."""
_HOUR_S = 3600


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike webhooks …`."""

    def action(name: str, text: str, work: WebhookWork) -> CommandParser:
        made = parser.add_action(name, text, _command(work))
        made.add_argument("--tenant", metavar="NAME", required=True, help="whose endpoints they are")
        return made

    add = action("add", "add an endpoint; stdout has its secret alone", add_endpoint)
    add.add_argument("url", help="https, of a public address; see --webhook-allow-networks")
    add.add_argument("--topics", default="*", help="such as invoice.*,budget.threshold; default: %(default)s, all")
    add.add_argument("--description", default="", help="what the endpoint is for")
    listing = action("list", "the endpoints", list_endpoints)
    rotate = action("rotate", "a new secret on stdout; the old one signs too for a while", rotate_secret)
    rotate.add_argument(
        "--overlap", type=int, default=24, metavar="HOURS", help="how long the old one signs too; default: 24"
    )
    remove = action("remove", "send nothing more to an endpoint", remove_endpoint)
    enable = action("enable", "send to a disabled endpoint again", enable_endpoint)
    test = action("test", "queue a test message; the worker sends it", send_test)
    for of_one_endpoint in (rotate, remove, enable, test):
        of_one_endpoint.add_argument("endpoint", help="its id, from the list")
    deliveries = action("deliveries", "what was delivered, the newest first", list_deliveries)
    deliveries.add_argument("--endpoint", help="of one endpoint alone")
    deliveries.add_argument("--limit", type=int, default=20, help="how many; default: %(default)s")
    resend = action("resend", "send a delivery's message again", resend_delivery)
    resend.add_argument("delivery", help="its id, from the deliveries")
    listing.add_format("json")
    deliveries.add_format("json")


def _command(work: WebhookWork) -> Command:
    def command(settings: Settings, arguments: argparse.Namespace) -> int:
        from turnpike.admin_services import webhook_endpoints

        async def run(admin: AdminServices) -> None:
            tenant = await admin.tenancy.tenant(arguments.tenant)
            await work(webhook_endpoints(settings, admin.database, read_secrets(settings)), tenant.id, arguments)

        return with_admin_services(settings, run)

    return command


async def add_endpoint(endpoints: WebhookEndpoints, tenant_id: UUID, arguments: argparse.Namespace) -> None:
    """`turnpike webhooks add`."""
    topics = [topic.strip() for topic in arguments.topics.split(",")]
    endpoint, secret = await endpoints.add(tenant_id, arguments.url, topics, arguments.description)
    print(f"endpoint {endpoint.id}; its secret is shown once:", file=sys.stderr)
    print(secret)


async def list_endpoints(endpoints: WebhookEndpoints, tenant_id: UUID, arguments: argparse.Namespace) -> None:
    """`turnpike webhooks list`."""
    rows = [
        {"id": str(e.id), "url": e.url, "topics": ",".join(e.topics), "state": e.state, "reason": e.reason,
         "description": e.description}
        for e in await endpoints.list_all(tenant_id)
    ]  # fmt: skip
    _print_rows(rows, arguments.format)


async def rotate_secret(endpoints: WebhookEndpoints, tenant_id: UUID, arguments: argparse.Namespace) -> None:
    """`turnpike webhooks rotate`."""
    if arguments.overlap < 0:
        raise CommandError("--overlap: it is less than 0")
    secret = await endpoints.rotate(tenant_id, _id(arguments.endpoint), arguments.overlap * _HOUR_S)
    print(f"the old secret signs too for {arguments.overlap} h; the new one is shown once:", file=sys.stderr)
    print(secret)


async def remove_endpoint(endpoints: WebhookEndpoints, tenant_id: UUID, arguments: argparse.Namespace) -> None:
    """`turnpike webhooks remove`."""
    await endpoints.remove(tenant_id, _id(arguments.endpoint))


async def enable_endpoint(endpoints: WebhookEndpoints, tenant_id: UUID, arguments: argparse.Namespace) -> None:
    """`turnpike webhooks enable`."""
    await endpoints.enable(tenant_id, _id(arguments.endpoint))


async def send_test(endpoints: WebhookEndpoints, tenant_id: UUID, arguments: argparse.Namespace) -> None:
    """`turnpike webhooks test`."""
    delivery = await endpoints.send_test(tenant_id, _id(arguments.endpoint))
    print(
        f"delivery {delivery} is queued; a worker sends it. "
        f"See: `turnpike webhooks deliveries --tenant {arguments.tenant}`"
    )


async def list_deliveries(endpoints: WebhookEndpoints, tenant_id: UUID, arguments: argparse.Namespace) -> None:
    """`turnpike webhooks deliveries`."""
    endpoint_id = _id(arguments.endpoint) if arguments.endpoint else None
    rows = [
        {"id": str(d.id), "at": _time(d.created_at), "topic": d.topic, "state": d.state, "attempts": d.attempts,
         "status": "" if d.status is None else d.status,
         "next": _time(d.next_at) if d.state == "pending" else "", "error": d.error}
        for d in await endpoints.deliveries(tenant_id, endpoint_id, limit=arguments.limit)
    ]  # fmt: skip
    _print_rows(rows, arguments.format)


async def resend_delivery(endpoints: WebhookEndpoints, tenant_id: UUID, arguments: argparse.Namespace) -> None:
    """`turnpike webhooks resend`."""
    delivery = await endpoints.resend(tenant_id, _id(arguments.delivery))
    print(f"delivery {delivery.id} is queued again; a worker sends it")


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise CommandError(
            f"{text!r} is not an id; see `turnpike webhooks list --tenant NAME` "
            "or `turnpike webhooks deliveries --tenant NAME`"
        ) from error


def _print_rows(rows: Sequence[Mapping[str, object]], form: str) -> None:
    if form == "json":
        print(json.dumps(list(rows), indent=2))
    elif not rows:
        print("none")
    else:
        print_table(list(rows[0]), [list(row.values()) for row in rows])


def _time(instant: int) -> str:
    from storage.database.base import from_instant

    return from_instant(instant).isoformat(timespec="seconds")
