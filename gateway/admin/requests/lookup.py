"""Finds a request by any of its names: what the books, the holds, the history and this worker know of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

from msgspec import Struct

from billing.holds.records import Hold
from billing.reports.request_list import ListedEvent, find_event, owner_of_event
from gateway.errors import NotFound
from gateway.generation.generation_task import GenerationTask
from gateway.generation.request_history import request_id_of
from gateway.services import Gateway
from waterfall.record import Record


class KnownRequest(Struct, frozen=True):
    """What is known of a request of one project. Each may be missing: `event`, its usage event; `hold`, open or ended;
    `record`, its times; `task`, if it runs in this worker."""

    id: UUID
    tenant_id: UUID
    project_id: UUID
    event: ListedEvent | None = None
    adjustments: list[Any] = []
    hold: Hold | None = None
    record: Record | None = None
    task: GenerationTask | None = None


def no_such_request(name: str) -> NotFound:
    """The error for a request that is not there, or not to be seen."""
    return NotFound(f"There is no request {name[:80]!r}.")


async def find_request(gateway: Gateway, tenant_id: UUID, name: str, visible: Collection[UUID] | None) -> KnownRequest:
    """A tenant's request by its id or its response's, in one of these projects; None: in any. Raises NotFound,
    DatabaseUnavailable."""
    request_id = request_id_of(name)
    if request_id is None:
        raise no_such_request(name)
    known = await _known(gateway, tenant_id, request_id)
    if known is None or (visible is not None and known.project_id not in visible):
        raise no_such_request(name)
    return known


async def owner_of(gateway: Gateway, name: str) -> tuple[UUID, UUID] | None:
    """The tenant and project of a request, of whichever tenant: the caller decides who may see it. Raises
    DatabaseUnavailable."""
    request_id = request_id_of(name)
    if request_id is None:
        return None
    if (task := gateway.requests.find(request_id)) is not None:
        return task.prepared.payer.tenant_id, task.prepared.payer.project_id
    if (entry := gateway.waterfalls.waiting(request_id)) is not None:
        return entry.tenant_id, entry.project_id
    if (owner := await owner_of_event(gateway.services.database, request_id)) is not None:
        return owner
    if (row := await gateway.waterfalls.store.find(request_id)) is not None:
        return row.tenant_id, row.project_id
    hold = await gateway.services.holds.get(request_id)
    return None if hold is None else (hold.tenant_id, hold.project_id)


async def _known(gateway: Gateway, tenant_id: UUID, request_id: UUID) -> KnownRequest | None:
    event, adjustments = await find_event(gateway.services.database, tenant_id, request_id)
    hold = None if event is not None else await gateway.services.holds.get(request_id)
    if hold is not None and hold.tenant_id != tenant_id:
        hold = None
    task = gateway.requests.find(request_id)
    if task is not None and task.prepared.payer.tenant_id != tenant_id:
        task = None
    record, record_project = await _record(gateway, tenant_id, request_id)
    if event is not None:
        project_id: UUID | None = event.project_id
    elif hold is not None:
        project_id = hold.project_id
    else:
        project_id = record_project if task is None else task.prepared.payer.project_id
    if project_id is None:
        return None
    return KnownRequest(request_id, tenant_id, project_id, event, adjustments, hold, record, task)


async def _record(gateway: Gateway, tenant_id: UUID, request_id: UUID) -> tuple[Record | None, UUID | None]:
    """The times of a request, and its project."""
    if (entry := gateway.waterfalls.waiting(request_id)) is not None and entry.tenant_id == tenant_id:
        return entry.complete(), entry.project_id
    row = await gateway.waterfalls.store.find(request_id)
    if row is None or row.tenant_id != tenant_id:
        return None, None
    return row.record, row.project_id
