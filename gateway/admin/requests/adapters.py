"""/admin/v1/tenants/{tenant}/adapters: adapters of a tenant's projects, as its people upload, see and delete them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal
from uuid import UUID

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Meta, Struct

from billing.calendar import format_instant, period_of
from billing.reports.usage_report import MonthRow, usage_by_project_and_model
from file_store.adapters import AdapterStore, StoredAdapter
from gateway.adapters.adapted_models import wire_name
from gateway.adapters.resident_adapters import replicas_with
from gateway.admin.access import PartOfTenant, principal_of, visible_project
from gateway.admin.operation import Query, operation
from gateway.admin.usage import project_filter
from gateway.admission.prepared_request import Payer
from gateway.dialects.usage_reports import Cost, costs_by_currency
from gateway.endpoints.adapter_uploads import (
    adapter_id,
    adapter_store,
    remove_adapter,
    unknown_adapter,
    upload_adapter,
)
from gateway.endpoints.adapters import AdapterForm
from gateway.errors import InvalidField
from gateway.http.operations import describes
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.http.shapes import Page, PageQuery
from gateway.services import Gateway
from storage.database.public_ids import prefixed_id, public_id
from tenancy.directory import Directory, project_public_id

ADAPTERS = "/admin/v1/tenants/{tenant:str}/adapters"
ID = "adapter_01934f6e0d2a7b3c8e51a9c4d7f60b12"
_NAME = {"adapter": ID}


class AdapterUse(Struct, frozen=True, kw_only=True):
    """What was asked of an adapter in a month (UTC), and what that costs. `ready_hours`: how long replicas kept it
    ready, added up, where that has a price."""

    month: Annotated[str, Meta(examples=["2026-11"])]
    requests: int
    input_tokens: int
    output_tokens: int
    ready_hours: float
    cost: list[Cost]


class TenantAdapterObject(Struct, frozen=True, kw_only=True):
    """An adapter. `model` is what requests ask for, `base` the served model that it changes. `digest`: the SHA-256 of
    what decides its results. `resident`: the replicas that have it ready, as this worker knows them; null where no
    replicas can be asked. `created_at` is null for one that was only checked, and is not kept."""

    object: Literal["tenant.adapter"] = "tenant.adapter"
    id: Annotated[str, Meta(examples=[ID])]
    project_id: str
    project: str | None
    model: Annotated[str, Meta(examples=["tiny:support"])]
    base: Annotated[str, Meta(examples=["tiny"])]
    name: Annotated[str, Meta(examples=["support"])]
    digest: Annotated[str, Meta(examples=["9f" * 32])]
    rank: Annotated[int, Meta(examples=[16])]
    alpha: Annotated[float, Meta(examples=[32.0])]
    targets: Annotated[list[str], Meta(examples=[["q_proj", "v_proj"]])]
    layers: int
    invocation_tokens: Annotated[list[int], Meta(examples=[[]])]
    bytes: int
    created_at: str | None
    resident: Annotated[list[str] | None, Meta(examples=[["replica-0"]])]
    use: AdapterUse


class TenantAdapterList(Page[TenantAdapterObject], frozen=True):
    """A tenant's adapters, the newest first."""


class TenantAdapterDeleted(Struct, frozen=True, kw_only=True):
    """An adapter that was deleted."""

    object: Literal["tenant.adapter"] = "tenant.adapter"
    id: Annotated[str, Meta(examples=[ID])]
    deleted: bool = True


class AdapterOperations:
    """Lists, shows and deletes adapters."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @operation("GET", ADAPTERS, demands("requests.read"))
    async def list_adapters(
        self,
        tenant: PartOfTenant,
        page: PageQuery,
        project: Annotated[list[str] | None, Query("Only of this project, by id or name.", example="default")] = None,
    ) -> TenantAdapterList:
        """The adapters of the tenant's projects that you may see, the newest first, with this month's use."""
        owner, visible = tenant
        projects = await project_filter(self._gateway, owner.id, project, visible)
        after = None if page.after is None else prefixed_id(page.after, "adapter_")
        if page.after is not None and after is None:
            raise InvalidField("after", f"{page.after[:80]!r} is not the id of an adapter")
        store = adapter_store(self._gateway)
        found = await store.page(owner.id, projects, limit=page.limit + 1, after=after)
        return TenantAdapterList.of(await _objects(self._gateway, owner.id, found), page.limit)

    @operation("GET", f"{ADAPTERS}/{{adapter:str}}", demands("requests.read"), path=_NAME)
    async def retrieve_adapter(self, tenant: PartOfTenant, adapter: str) -> TenantAdapterObject:
        """One adapter, without its content, with this month's use."""
        found = await _find(adapter_store(self._gateway), tenant, adapter)
        (shown,) = await _objects(self._gateway, found.tenant_id, [found])
        return shown

    @operation("DELETE", f"{ADAPTERS}/{{adapter:str}}", demands("projects.write"), path=_NAME)
    async def delete_adapter(self, tenant: PartOfTenant, adapter: str) -> TenantAdapterDeleted:
        """Delete an adapter. Requests that run with it go on with it to their end."""
        found = await _find(adapter_store(self._gateway), tenant, adapter)
        if not await remove_adapter(self._gateway, found):
            raise unknown_adapter(adapter)
        return TenantAdapterDeleted(id=public_id("adapter", found.id))


def adapter_upload_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker. What they ask of the database is bounded here: an upload may take any time."""
    wait = gateway.questions.wait

    @post(
        "/admin/v1/tenants/{tenant:str}/projects/{project:str}/adapters",
        status_code=200,
        request_max_body_size=None,
        opt=demands("projects.write")
        | describes(
            TenantAdapterObject,
            body=AdapterForm(model="tiny", name="support", config="{}", file="{}"),
            body_type="multipart/form-data",
            errors={"invalid_form": 400, "conflict": 409, "model_not_found": 404},
        ),
    )
    async def upload_adapter_of_project(
        request: Request[Any, Any, Any], tenant: FromPath[str], project: FromPath[str]
    ) -> Response[bytes]:
        """Upload an adapter for a project, as a form. A process of its own checks it; it is sealed under the project's
        data key."""
        owner, of = await wait(visible_project(gateway, request, tenant, project, "projects.write"))
        principal = principal_of(request)
        payer = Payer(owner.id, of.id, principal.id, of.name, principal.public_id)
        made = await upload_adapter(gateway, payer, request)
        (shown,) = await wait(_objects(gateway, owner.id, [made]))
        return json_response(shown)

    return [upload_adapter_of_project]


async def _find(store: AdapterStore, tenant: PartOfTenant, name: str) -> StoredAdapter:
    (owner, visible), id_ = tenant, adapter_id(name)
    found = await store.get(owner.id, None, id_)
    if found is None or (visible is not None and found.project_id not in visible):
        raise unknown_adapter(name)
    return found


async def _objects(gateway: Gateway, tenant_id: UUID, found: Sequence[StoredAdapter]) -> list[TenantAdapterObject]:
    """Adapters of a tenant as answers have them."""
    if not found:
        return []
    database = gateway.services.database
    month = period_of(await database.now())
    rows: dict[tuple[UUID, str], list[MonthRow]] = {}
    for row in await usage_by_project_and_model(database, month, tenant_id):
        rows.setdefault((row.project_id, row.model), []).append(row)
    names = await Directory(database).project_names(tenant_id, {one.project_id for one in found})
    fleet = getattr(gateway.services, "fleet", None)  # a command on the data folder has none
    return [
        TenantAdapterObject(
            id=public_id("adapter", one.id),
            project_id=project_public_id(one.project_id),
            project=names.get(one.project_id),
            model=one.full_name,
            base=one.model,
            name=one.name,
            digest=one.digest,
            rank=one.facts.rank,
            alpha=one.facts.alpha,
            targets=list(one.facts.targets),
            layers=one.facts.layers,
            invocation_tokens=list(one.facts.invocation),
            bytes=one.bytes,
            created_at=format_instant(one.created_at) if one.created_at else None,
            resident=None if fleet is None else replicas_with(fleet.links, wire_name(one)),
            use=_use(month, rows.get((one.project_id, one.full_name), [])),
        )
        for one in found
    ]


def _use(month: str, rows: Sequence[MonthRow]) -> AdapterUse:
    return AdapterUse(
        month=month,
        requests=sum(row.requests for row in rows),
        input_tokens=sum(tokens for row in rows for meter, tokens in row.meters.items() if meter != "output"),
        output_tokens=sum(row.meters.get("output", 0) for row in rows),
        ready_hours=sum(row.resident for row in rows) / 1000,
        cost=costs_by_currency({row.currency: row.cost_pico for row in rows}),
    )
