"""/admin/v1/limits: the rate limits of projects and of keys.

Operators see and change all of them, a tenant's administrators those of their own tenant.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal
from uuid import UUID

import msgspec
from litestar import Request, Response, delete, get, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.errors import InvalidField, InvalidRequest, NotFound
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.request_context import request_context
from gateway.services import Gateway
from storage.free_text import REASON, problem_of_text
from tenancy.permissions import Permission
from tenancy.rate_limits import InvalidLimit, Limits, LimitScope, LimitSubject, SubjectLimits
from tenancy.repositories import NoSuchRecord


class NewLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a change: all limits of the project or key; one that is absent or null is no limit. `reason` is
    recorded."""

    requests_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    reason: str = ""


class LimitsObject(Struct, frozen=True, kw_only=True):
    """The limits of a project, or of one of its keys. Input tokens that were read from the cache do not count."""

    object: Literal["rate_limits"] = "rate_limits"
    scope: LimitScope
    tenant_id: UUID
    tenant: str
    project_id: UUID
    project: str
    key: str | None
    requests_per_minute: int | None
    input_tokens_per_minute: int | None
    output_tokens_per_minute: int | None
    concurrent_requests: int | None


class LimitsList(Struct, frozen=True, kw_only=True):
    """Limits, by tenant and project: a project's own before those of its keys."""

    object: Literal["list"] = "list"
    data: list[LimitsObject]


class RemovedLimits(Struct, frozen=True, kw_only=True):
    """What a removal answers."""

    object: Literal["rate_limits.deleted"] = "rate_limits.deleted"
    deleted: bool = True


_NEW = msgspec.json.Decoder(NewLimits)


def limit_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    limits, wait = gateway.services.rate_limits, gateway.management_breakers.limits.wait
    client_timeout = gateway.services.options.client_timeout

    async def project_of(request: Request[Any, Any, Any], project_id: UUID, permission: Permission) -> LimitSubject:
        with _limit_errors("project"):
            return _permitted(request, await wait(limits.subject_of_project(project_id)), permission, "project")

    async def key_of(request: Request[Any, Any, Any], key: str, permission: Permission) -> LimitSubject:
        with _limit_errors("key"):
            return _permitted(request, await wait(limits.subject_of_key(key)), permission, "key")

    async def read(subject: LimitSubject) -> Response[bytes]:
        found = await wait(limits.get(subject))
        if found is None:
            raise NotFound("No limits are set.")
        return json_response(_object(found))

    async def change(request: Request[Any, Any, Any], subject: LimitSubject) -> Response[bytes]:
        body = await read_management_body(request, client_timeout, _NEW)
        if problem := problem_of_text(body.reason, REASON, empty=True):
            raise InvalidField("$.reason", problem)
        wanted = Limits(
            body.requests_per_minute,
            body.input_tokens_per_minute,
            body.output_tokens_per_minute,
            body.concurrent_requests,
        )
        with _limit_errors("project"):
            await wait(limits.set(subject, wanted, body.reason))
        return await read(subject)

    async def remove(subject: LimitSubject) -> Response[bytes]:
        if await wait(limits.remove(subject)) is None:
            raise NotFound("No limits are set.")
        return json_response(RemovedLimits())

    @get("/admin/v1/limits", opt=demands("limits.read"))
    async def list_limits(request: Request[Any, Any, Any]) -> Response[bytes]:
        """All limits that the caller may see, or those of one tenant or project."""
        parameters = Parameters.of(request)
        tenants, projects = parameters.ids("tenant_id"), parameters.ids("project_id")
        parameters.reject_unknown()
        principal = request_context(request.scope).authenticated_principal
        tenant, project = tenants[-1] if tenants else principal.tenant_id, projects[-1] if projects else None
        found = await wait(limits.list(tenant_id=tenant, project_id=project))
        return json_response(
            LimitsList(
                data=[_object(one) for one in found if principal.may("limits.read", one.tenant_id, one.project_id)]
            )
        )

    @get("/admin/v1/limits/projects/{project_id:uuid}", opt=demands("limits.read"))
    async def retrieve_project_limits(request: Request[Any, Any, Any], project_id: FromPath[UUID]) -> Response[bytes]:
        """The limits of a project."""
        return await read(await project_of(request, project_id, "limits.read"))

    @put("/admin/v1/limits/projects/{project_id:uuid}", opt=demands("limits.write"))
    async def set_project_limits(request: Request[Any, Any, Any], project_id: FromPath[UUID]) -> Response[bytes]:
        """Set all limits of a project."""
        return await change(request, await project_of(request, project_id, "limits.write"))

    @delete("/admin/v1/limits/projects/{project_id:uuid}", status_code=200, opt=demands("limits.write"))
    async def remove_project_limits(request: Request[Any, Any, Any], project_id: FromPath[UUID]) -> Response[bytes]:
        """Remove the limits of a project; its keys keep theirs."""
        return await remove(await project_of(request, project_id, "limits.write"))

    @get("/admin/v1/limits/keys/{key:str}", opt=demands("limits.read"))
    async def retrieve_key_limits(request: Request[Any, Any, Any], key: FromPath[str]) -> Response[bytes]:
        """The limits of a key, by its public id."""
        return await read(await key_of(request, key, "limits.read"))

    @put("/admin/v1/limits/keys/{key:str}", opt=demands("limits.write"))
    async def set_key_limits(request: Request[Any, Any, Any], key: FromPath[str]) -> Response[bytes]:
        """Set all limits of a key; those of its project apply beside them."""
        return await change(request, await key_of(request, key, "limits.write"))

    @delete("/admin/v1/limits/keys/{key:str}", status_code=200, opt=demands("limits.write"))
    async def remove_key_limits(request: Request[Any, Any, Any], key: FromPath[str]) -> Response[bytes]:
        """Remove the limits of a key."""
        return await remove(await key_of(request, key, "limits.write"))

    return [
        list_limits,
        retrieve_project_limits,
        set_project_limits,
        remove_project_limits,
        retrieve_key_limits,
        set_key_limits,
        remove_key_limits,
    ]


def _permitted(
    request: Request[Any, Any, Any], subject: LimitSubject, permission: Permission, kind: str
) -> LimitSubject:
    """The subject, if the caller may do this to it. Raises NotFound otherwise, as for one that does not exist."""
    principal = request_context(request.scope).authenticated_principal
    if not principal.may(permission, subject.tenant_id, subject.project_id):
        raise _no_such(kind)
    return subject


def _no_such(kind: str) -> NotFound:
    return NotFound(f"There is no such {kind}.")


@contextmanager
def _limit_errors(kind: str) -> Iterator[None]:
    try:
        yield
    except NoSuchRecord as error:
        raise _no_such(kind) from error
    except InvalidLimit as error:
        raise InvalidRequest(f"$.{error}.", path=f"$.{error.field}", code="invalid_value") from error


def _object(found: SubjectLimits) -> LimitsObject:
    return LimitsObject(
        scope=found.scope,
        tenant_id=found.tenant_id,
        tenant=found.tenant,
        project_id=found.project_id,
        project=found.project,
        key=found.key,
        **msgspec.structs.asdict(found.limits),
    )
