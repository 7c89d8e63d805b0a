"""/admin/v1/tenants/{tenant}/refused-requests: what a tenant's keys asked for and did not get, and why."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from gateway.admin.access import PartOfTenant
from gateway.admin.operation import Query, operation
from gateway.admin.usage import project_filter
from gateway.errors import InvalidField
from gateway.generation.request_history import request_id_of
from gateway.http.policies import demands
from gateway.http.shapes import Instant, Page, PageQuery, ProjectId, show
from gateway.request_context import public_name
from gateway.services import Gateway
from tenancy.directory import Directory


class RefusedRequestObject(Struct, frozen=True, kw_only=True):
    """A request that was answered with an error before it ran: it was billed nothing. `key` is the key's public id,
    `route` the method and the route's path. A key of the tenant has no project. `message` is what the client was told,
    shortened; nothing of what it sent is kept beside that."""

    object: Literal["request.refused"] = "request.refused"
    id: str
    at: Instant
    project_id: ProjectId | None
    project: str | None
    key: str
    route: str
    status: int
    code: str
    message: str


class RefusedRequestList(Page[RefusedRequestObject], frozen=True):
    """Refused requests, the newest first: at most the last 1,000 of a tenant, for as long as waterfalls are kept."""


class RefusedRequestOperations:
    """Lists what was refused."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._store = gateway, gateway.refused_requests.store
        self._directory = Directory(gateway.services.database)

    @operation("GET", "/admin/v1/tenants/{tenant:str}/refused-requests", demands("requests.read"))
    async def list_refused_requests(
        self,
        tenant: PartOfTenant,
        page: PageQuery,
        project: Annotated[list[str] | None, Query("Only of this project, by id or name.", example="default")] = None,
        key: Annotated[list[str] | None, Query("Only of this key, by its public id.", example="k7WmXq2ZpR4t")] = None,
    ) -> RefusedRequestList:
        """What a tenant's keys asked for and were refused, newest first, of the projects that you may see. Of many a
        second some are left out. Refused requests of signed-in users and operators are not among them."""
        owner, visible = tenant
        projects = await project_filter(self._gateway, owner.id, project, visible)
        newest = None if page.after is None else request_id_of(page.after)
        if page.after is not None and newest is None:
            raise InvalidField("after", f"{page.after[:80]!r} is not the id of a request")
        rows = await self._store.page(owner.id, page.limit + 1, projects=projects, keys=key, after=newest)
        of_projects = {row.project_id for row in rows if row.project_id is not None}
        names = await self._directory.project_names(owner.id, of_projects) if of_projects else {}
        objects = [
            show(
                RefusedRequestObject,
                row,
                id=public_name(row.request_id),
                project=None if row.project_id is None else names.get(row.project_id),
            )
            for row in rows
        ]
        return RefusedRequestList.of(objects, page.limit)
