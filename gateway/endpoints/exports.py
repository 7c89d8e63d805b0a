"""Exports, below /v1 and /admin/v1: a tenant's administrator orders files of usage, costs and books."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response import File
from msgspec import Meta, Struct

from billing.exports.datasets import InvalidExport
from billing.exports.formats.writers import MEDIA_TYPES
from billing.exports.jobs import ExportJob, ExportNotFound, TooManyExports
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.endpoints.tenant_scope import OwnTenant, TenantScope
from gateway.errors import Conflict, InvalidField, NotFound, RateLimited, Unavailable
from gateway.http.operations import describes, files, page
from gateway.http.responses import json_response
from gateway.http.shapes import Page
from gateway.request_context import request_context
from gateway.services import Gateway
from storage.database.public_ids import public_id

_WAIT_S = 30


class ExportRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a new export."""

    dataset: str
    period: str
    format: str = "csv"


Manifest: TypeAlias = Annotated[
    msgspec.Raw,
    Meta(
        description="What the file has, how it was made, and its checksum.",
        extra_json_schema={"type": ["object", "null"], "additionalProperties": True},
        examples=[None],
    ),
]


class ExportObject(Struct, frozen=True, kw_only=True):
    """An export as its tenant sees it. Instants are in seconds since the Unix epoch. `ahead`: how many exports of all
    tenants are made before it, while it is queued. `expires_at`: until when its file is kept, once it is there."""

    id: Annotated[str, Meta(examples=["export_01934f6e0d2a7b3c8e51a9c4d7f60b12"])]
    object: Literal["export"] = "export"
    dataset: str
    period: str
    format: str
    status: str
    rows: int
    created_at: int
    started_at: int | None
    finished_at: int | None
    expires_at: int | None
    ahead: int | None
    error: str | None
    manifest: Manifest | None


class ExportList(Page[ExportObject], frozen=True):
    """A page of exports."""


_PATH = {"name": "export_01934f6e0d2a7b3c8e51a9c4d7f60b12"}
_FILE = "request_id,model,cost\r\nreq_01934f6e0d2a7b3c8e51a9c4d7f60b12,tiny,0.000412\r\n"
_DECODER = msgspec.json.Decoder(ExportRequest)


def export_routes(gateway: Gateway, at: TenantScope | None = None) -> list[HTTPRouteHandler]:
    """The routes, for one worker; `at`: where, below /v1 without it."""
    at = at or OwnTenant()
    jobs, client_timeout = gateway.services.exports, gateway.services.options.client_timeout

    async def shown(*found: ExportJob) -> list[ExportObject]:
        ahead = await jobs.ahead(found)
        return [_object(job, ahead.get(job.id), jobs.kept_until(job)) for job in found]

    async def find(request: Request[Any, Any, Any], name: str) -> ExportJob:
        try:
            return await jobs.get(await at.tenant(request, "exports.read"), _id(name))
        except ExportNotFound as error:
            raise NotFound(f"There is no export {name[:80]!r}.") from error

    @post(
        f"{at.base}/exports",
        status_code=202,
        opt=at.demands("exports.write")
        | describes(
            ExportObject, status=202, body=ExportRequest("usage", "2026-11"), errors={"rate_limit_exceeded": 429}
        ),
    )
    async def create_export(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Queue an export."""
        tenant, principal = (
            await at.tenant(request, "exports.write"),
            request_context(request.scope).authenticated_principal,
        )
        body = await read_management_body(request, client_timeout, _DECODER)
        try:
            job = await jobs.queue(tenant, principal.id, body.dataset, body.period, body.format)
        except InvalidExport as error:
            raise InvalidField(f"$.{error.field}", error.problem) from error
        except TooManyExports as error:
            raise RateLimited(f"{error}; wait until some are.", retry_after=_WAIT_S) from error
        return json_response((await shown(job))[0], 202)

    @get(f"{at.base}/exports", opt=at.demands("exports.read") | describes(ExportList, query=page()))
    async def list_exports(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The tenant's exports, newest first."""
        parameters = Parameters.of(request)
        limit, after = parameters.page_size(), parameters.text("after")
        parameters.reject_unknown()
        tenant = await at.tenant(request, "exports.read")
        found = await jobs.list(tenant, limit + 1, None if after is None else _id(after))
        return json_response(ExportList(data=await shown(*found[:limit]), has_more=len(found) > limit))

    @get(
        f"{at.base}/exports/{{name:str}}",
        opt=at.demands("exports.read") | describes(ExportObject, path=_PATH),
    )
    async def retrieve_export(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """One export: its status, and its manifest once it is done."""
        return json_response((await shown(await find(request, name)))[0])

    @get(
        f"{at.base}/exports/{{name:str}}/content",
        opt=at.demands("exports.read")
        | describes(
            files(*MEDIA_TYPES.values(), description="The file.", example=_FILE),
            path=_PATH,
            errors={"export_expired": 404, "export_not_ready": 409},
        ),
    )
    async def retrieve_export_content(request: Request[Any, Any, Any], name: FromPath[str]) -> File:
        """The file of a finished export."""
        job = await find(request, name)
        if job.state == "expired":
            raise NotFound("The file has expired and was removed; order the export again.", code="export_expired")
        if job.state != "done":
            raise Conflict(f"The export is {job.state}; its file is there once it is done.", code="export_not_ready")
        path = jobs.path(job)
        if not path.is_file():
            raise Unavailable("The file is not on this machine: gateways and workers must share TURNPIKE_EXPORT_DIR.")
        return File(path, filename=job.file_name, headers={"content-type": MEDIA_TYPES[job.format]})

    return [create_export, list_exports, retrieve_export, retrieve_export_content]


def _id(name: str) -> UUID:
    try:
        return UUID(name.removeprefix("export_"))
    except ValueError as error:
        raise NotFound(f"There is no export {name[:80]!r}.") from error


def _object(job: ExportJob, ahead: int | None, kept_until: int | None) -> ExportObject:
    return ExportObject(
        id=public_id("export", job.id),
        dataset=job.dataset,
        period=job.period,
        format=job.format,
        status=job.state,
        rows=job.rows,
        created_at=_unix_seconds(job.created_at) or 0,
        started_at=_unix_seconds(job.started_at),
        finished_at=_unix_seconds(job.finished_at),
        expires_at=_unix_seconds(kept_until),
        ahead=ahead,
        error=job.error,
        manifest=None if job.manifest is None else msgspec.Raw(job.manifest.encode()),
    )


def _unix_seconds(instant: int | None) -> int | None:
    return None if instant is None else instant // 1_000_000
