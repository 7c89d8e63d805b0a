"""Routes about one request beside its details: its waterfall, why its prompt missed, whose it is; and what runs now."""

from __future__ import annotations

import time
from typing import Literal

from msgspec import Struct

from gateway.admin.access import PartOfTenant, allowed_projects
from gateway.admin.operation import Call, operation
from gateway.admin.requests.lookup import KnownRequest, find_request, no_such_request, owner_of
from gateway.admin.requests.waterfall_objects import WaterfallObject, no_waterfall, waterfall_object
from gateway.dialects.cache_explanation import CacheExplanation, explanation_of
from gateway.errors import NotFound
from gateway.generation.generation_task import GenerationTask
from gateway.generation.request_history import request_id_of
from gateway.http.policies import demands
from gateway.http.shapes import Instant, ProjectId, TenantId
from gateway.request_context import public_name
from gateway.services import Gateway
from tenancy.directory import Directory

_DAY_US = 86_400_000_000
_SOON_US = 90_000_000
"""How long after its end the times of a request may still be on their way to the database."""
_EXAMPLE = {"name": "req_019aa1f00000700080000000000000aa"}


class RequestPlace(Struct, frozen=True, kw_only=True):
    """Whose a request is: where its details are, `/admin/v1/tenants/{tenant}/requests/{id}`."""

    object: Literal["request.place"] = "request.place"
    id: str
    tenant_id: TenantId
    tenant: str
    project_id: ProjectId


class RunningRequest(Struct, frozen=True, kw_only=True):
    """A request that runs in this worker. `phase`: reserving, running, retrying, stopping, lost, delivering.
    `elapsed_us`: since it was received. `output_tokens`: that reached the client."""

    object: Literal["request.running"] = "request.running"
    id: str
    project_id: ProjectId
    project: str
    key: str
    model: str
    lane: str
    phase: str
    received_at: Instant
    elapsed_us: int
    prompt_tokens: int
    output_tokens: int
    replica: str | None


class RunningRequestList(Struct, frozen=True, kw_only=True):
    """What this worker of the gateway runs, the oldest first; others run more. `worker`: its name."""

    object: Literal["list"] = "list"
    worker: str
    data: list[RunningRequest]
    has_more: bool


_MOST_RUNNING = 100
_ONE = "/admin/v1/tenants/{tenant:str}/requests/{name:str}"


class RequestWaterfallOperations:
    """Says where the time of a request went, why its prompt missed and whose it is, and what runs now."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._services = gateway, gateway.services

    @operation("GET", f"{_ONE}/waterfall", demands("requests.read"), path=_EXAMPLE)
    async def retrieve_waterfall(self, tenant: PartOfTenant, name: str) -> WaterfallObject:
        """Where each microsecond of a request went, and what each stage was billed. Of one that runs in this worker,
        until now."""
        owner, visible = tenant
        known = await find_request(self._gateway, owner.id, name, visible)
        request_id, event = public_name(known.id), known.event
        version = None if event is None else await self._services.prices.version(event.price_version)
        if known.record is not None:
            return waterfall_object(request_id, known.record, event, version)
        if known.task is not None:
            entry = known.task.entry
            return waterfall_object(request_id, entry.complete(), until=entry.marks.elapsed)
        return no_waterfall(request_id, _why(self._gateway, known), event, version)

    @operation("GET", f"{_ONE}/cache", demands("requests.read"), path=_EXAMPLE)
    async def explain_request(self, tenant: PartOfTenant, name: str) -> CacheExplanation:
        """What the cache did for one request, and why it missed."""
        owner, visible = tenant
        finding = await self._gateway.history.finding(owner.id, None, name)
        if finding is None or (visible is not None and finding.record.project_id not in visible):
            raise NotFound(f"There is no explanation of a request {name[:80]!r}: none of yours, or not kept any more.")
        return explanation_of(finding)

    @operation("GET", "/admin/v1/tenants/{tenant:str}/running-requests", demands("requests.read"))
    async def list_running_requests(self, tenant: PartOfTenant) -> RunningRequestList:
        """What this worker runs of a tenant's requests now, of the projects that you may see."""
        owner, visible = tenant
        running = [task for task in self._gateway.requests.of_tenant(owner.id)
                   if visible is None or task.prepared.payer.project_id in visible]  # fmt: skip
        data = [_running(task) for task in running[:_MOST_RUNNING]]
        return RunningRequestList(worker=self._services.name, data=data, has_more=len(running) > _MOST_RUNNING)

    @operation("GET", "/admin/v1/requests/{name:str}", demands("requests.read"), path=_EXAMPLE)
    async def find_a_request(self, call: Call, name: str) -> RequestPlace:
        """Whose a request is, by its `x-request-id`, among the tenants and projects that you may see."""
        place, request_id = await owner_of(self._gateway, name), request_id_of(name)
        if place is None or request_id is None:
            raise no_such_request(name)
        tenant_id, project_id = TenantId.of(place[0]), ProjectId.of(place[1])
        allowed = allowed_projects(call.principal, "requests.read", place[0])
        if allowed is not None and place[1] not in allowed:
            raise no_such_request(name)
        tenant = await Directory(self._services.database).tenant(tenant_id)
        if tenant is None:
            raise no_such_request(name)
        return RequestPlace(id=public_name(request_id), tenant_id=tenant_id, tenant=tenant.name, project_id=project_id)


def _why(gateway: Gateway, known: KnownRequest) -> str:
    """Why a request has no stages."""
    days = gateway.services.options.waterfall_days
    event = known.event
    if event is None:
        return "Its gateway has not told its stages: it runs in another worker, or its gateway died."
    if event.dimensions["source"] == "journal":
        return "Its gateway died before its stages were written; its usage comes from the replica's journal."
    if not days:
        return "Stages are not kept: the setting waterfall_keep_days is 0."
    age = time.time_ns() // 1000 - event.finished_at
    if age > days * _DAY_US:
        return f"Its stages are forgotten: they are kept for {days:g} days."
    if age < _SOON_US:
        return "Its stages are not written yet; look again in a moment."
    return "Its stages were left out: its gateway died, or could not reach the database for long."


def _running(task: GenerationTask) -> RunningRequest:
    prepared, entry = task.prepared, task.entry
    payer, attempts = prepared.payer, entry.record.attempts
    return RunningRequest(
        id=public_name(prepared.request_id),
        project_id=ProjectId.of(payer.project_id),
        project=payer.project,
        key=payer.key,
        model=prepared.model.name,
        lane=prepared.generation.lane,
        phase=task.state.phase,
        received_at=Instant(task.marks.received_at),
        elapsed_us=task.marks.elapsed,
        prompt_tokens=len(prepared.prompt.tokens),
        output_tokens=task.delivery.delivered,
        replica=attempts[-1].replica if attempts else None,
    )
