"""`turnpike webhooks …`: a tenant's endpoints, and what was delivered to them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from uuid import UUID

from storage.database.base import from_instant
from turnpike import admin_services
from turnpike.admin_services import AdminServices
from turnpike.commands.running import table, with_admin_services
from turnpike.failures import CommandError
from turnpike.settings.data_folder import read_secrets
from turnpike.settings.settings import Settings
from webhooks.endpoints import WebhookEndpoints

_HOUR_S = 3600


def _run(
    settings: Settings, arguments: argparse.Namespace, work: Callable[[WebhookEndpoints, UUID], Awaitable[None]]
) -> int:
    async def run(admin: AdminServices) -> int:
        tenant = await admin.tenancy.tenant(arguments.tenant)
        await work(admin_services.endpoints(settings, admin.database, read_secrets(settings)), tenant.id)
        return 0

    return with_admin_services(settings, run)


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise CommandError(
            f"{text!r} is not an id; see `turnpike webhooks list --tenant NAME` "
            "or `turnpike webhooks deliveries --tenant NAME`"
        ) from error


def add(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike webhooks add`."""

    async def work(endpoints: WebhookEndpoints, tenant_id: UUID) -> None:
        topics = [topic.strip() for topic in arguments.topics.split(",")]
        endpoint, secret = await endpoints.add(tenant_id, arguments.url, topics, arguments.description)
        print(f"endpoint {endpoint.id}; its secret is shown once:", file=sys.stderr)
        print(secret)

    return _run(settings, arguments, work)


def list_endpoints(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike webhooks list`."""

    async def work(endpoints: WebhookEndpoints, tenant_id: UUID) -> None:
        rows = [
            {"id": str(e.id), "url": e.url, "topics": ",".join(e.topics), "state": e.state, "reason": e.reason,
             "description": e.description}
            for e in await endpoints.known(tenant_id)
        ]  # fmt: skip
        _show(rows, arguments.format)

    return _run(settings, arguments, work)


def rotate(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike webhooks rotate`."""
    if arguments.overlap < 0:
        raise CommandError("--overlap: it is less than 0")

    async def work(endpoints: WebhookEndpoints, tenant_id: UUID) -> None:
        secret = await endpoints.rotate(tenant_id, _id(arguments.endpoint), arguments.overlap * _HOUR_S)
        print(f"the old secret signs too for {arguments.overlap} h; the new one is shown once:", file=sys.stderr)
        print(secret)

    return _run(settings, arguments, work)


def remove(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike webhooks remove`."""
    return _run(settings, arguments, lambda endpoints, tenant: endpoints.remove(tenant, _id(arguments.endpoint)))


def enable(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike webhooks enable`."""

    async def work(endpoints: WebhookEndpoints, tenant_id: UUID) -> None:
        await endpoints.enable(tenant_id, _id(arguments.endpoint))

    return _run(settings, arguments, work)


def test(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike webhooks test`."""

    async def work(endpoints: WebhookEndpoints, tenant_id: UUID) -> None:
        delivery = await endpoints.test(tenant_id, _id(arguments.endpoint))
        print(
            f"delivery {delivery} is queued; a worker sends it. "
            f"See: `turnpike webhooks deliveries --tenant {arguments.tenant}`"
        )

    return _run(settings, arguments, work)


def deliveries(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike webhooks deliveries`."""

    async def work(endpoints: WebhookEndpoints, tenant_id: UUID) -> None:
        of = _id(arguments.endpoint) if arguments.endpoint else None
        rows = [
            {"id": str(d.id), "at": _time(d.created_at), "topic": d.topic, "state": d.state, "attempts": d.attempts,
             "status": "" if d.status is None else d.status,
             "next": _time(d.next_at) if d.state == "pending" else "", "error": d.error}
            for d in await endpoints.deliveries(tenant_id, of, limit=arguments.limit)
        ]  # fmt: skip
        _show(rows, arguments.format)

    return _run(settings, arguments, work)


def resend(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike webhooks resend`."""

    async def work(endpoints: WebhookEndpoints, tenant_id: UUID) -> None:
        delivery = await endpoints.resend(tenant_id, _id(arguments.delivery))
        print(f"delivery {delivery.id} is queued again; a worker sends it")

    return _run(settings, arguments, work)


def _show(rows: Sequence[Mapping[str, object]], form: str) -> None:
    if form == "json":
        print(json.dumps(list(rows), indent=2))
    elif not rows:
        print("none")
    else:
        table(list(rows[0]), [list(row.values()) for row in rows])


def _time(instant: int) -> str:
    return from_instant(instant).isoformat(timespec="seconds")
