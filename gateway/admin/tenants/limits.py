"""/admin/v1/limits: the rate limits of projects and of keys.

Operators see and change all of them, a tenant's administrators those of their own tenant.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from litestar import Request, Response, delete, get, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Meta, Struct

from gateway.admin.access import check_may_change, principal_of
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.errors import InvalidField, InvalidRequest, NotFound
from gateway.http.operations import describes, query
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.services import Gateway
from storage.database.public_ids import prefixed_id
from storage.free_text import REASON, problem_of_text
from tenancy.directory import PROJECT_PREFIX, TENANT_PREFIX, project_public_id, tenant_public_id
from tenancy.rate_limits import InvalidLimit, Limits, LimitScope, LimitSubject, SubjectLimits
from tenancy.repositories import NoSuchRecord
from tenancy.rights.permissions import Permission

_EXAMPLE_HEX = "01934f6e0d2a7b3c8e51a9c4d7f60b12"


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
    tenant_id: Annotated[str, Meta(examples=[f"{TENANT_PREFIX}{_EXAMPLE_HEX}"])]
    tenant: str
    project_id: Annotated[str, Meta(examples=[f"{PROJECT_PREFIX}{_EXAMPLE_HEX}"])]
    project: str
    key: str | None
    requests_per_minute: Annotated[int | None, Meta(examples=[600])]
    input_tokens_per_minute: Annotated[int | None, Meta(examples=[200000])]
    output_tokens_per_minute: Annotated[int | None, Meta(examples=[40000])]
    concurrent_requests: Annotated[int | None, Meta(examples=[32])]


class LimitsList(Struct, frozen=True, kw_only=True):
    """Limits, by tenant and project: a project's own before those of its keys."""

    object: Literal["list"] = "list"
    data: list[LimitsObject]


class RemovedLimits(Struct, frozen=True, kw_only=True):
    """What a removal answers."""

    object: Literal["rate_limits.deleted"] = "rate_limits.deleted"
    deleted: bool = True


_NEW = msgspec.json.Decoder(NewLimits)
_EXAMPLE = NewLimits(600, 200_000, 40_000, 32, "agreed with the customer")
_PROJECT = {"project": f"{PROJECT_PREFIX}{_EXAMPLE_HEX}"}


_WHY = query("reason", Annotated[str, Meta(max_length=REASON)], "Why; kept in the audit log.", example="trial ended")


def limit_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    limits = gateway.services.rate_limits
    client_timeout = gateway.services.options.client_timeout

    def permitted(
        request: Request[Any, Any, Any], subject: LimitSubject, permission: Permission, kind: str
    ) -> LimitSubject:
        """The subject, if the caller may do this to it. Raises NotFound otherwise, as for one that does not exist;
        SuspendedError."""
        if not principal_of(request).may(permission, subject.tenant_id, subject.project_id):
            raise _no_such(kind)
        check_may_change(gateway, request, subject.tenant_id)
        return subject

    async def project_of(request: Request[Any, Any, Any], project: str, permission: Permission) -> LimitSubject:
        project_id = prefixed_id(project, PROJECT_PREFIX)
        if project_id is None:
            raise _no_such("project")
        with _limit_errors("project"):
            return permitted(request, await limits.subject_of_project(project_id), permission, "project")

    async def key_of(request: Request[Any, Any, Any], key: str, permission: Permission) -> LimitSubject:
        with _limit_errors("key"):
            return permitted(request, await limits.subject_of_key(key), permission, "key")

    async def read(subject: LimitSubject) -> Response[bytes]:
        found = await limits.get(subject)
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
            await limits.set(subject, wanted, body.reason)
        return await read(subject)

    async def remove(request: Request[Any, Any, Any], subject: LimitSubject) -> Response[bytes]:
        if await limits.remove(subject, _reason_of(request)) is None:
            raise NotFound("No limits are set.")
        return json_response(RemovedLimits())

    @get(
        "/admin/v1/limits",
        opt=demands("limits.read")
        | describes(
            LimitsList,
            query=(
                query(
                    "tenant_id", str, "Only this tenant's: `tenant_<hex>`.", example=f"{TENANT_PREFIX}{_EXAMPLE_HEX}"
                ),
                query(
                    "project_id",
                    str,
                    "Only this project's, `project_<hex>`, and those of its keys.",
                    example=_PROJECT["project"],
                ),
            ),
        ),
    )
    async def list_limits(request: Request[Any, Any, Any]) -> Response[bytes]:
        """All limits that the caller may see, or those of one tenant or project."""
        parameters = Parameters.of(request)
        tenant, project = _id(parameters, "tenant_id", TENANT_PREFIX), _id(parameters, "project_id", PROJECT_PREFIX)
        parameters.reject_unknown()
        principal = principal_of(request)
        found = await limits.list(tenant_id=tenant or principal.tenant_id, project_id=project)
        return json_response(
            LimitsList(
                data=[_object(one) for one in found if principal.may("limits.read", one.tenant_id, one.project_id)]
            )
        )

    @get(
        "/admin/v1/limits/projects/{project:str}",
        opt=demands("limits.read") | describes(LimitsObject, path=_PROJECT),
    )
    async def retrieve_project_limits(request: Request[Any, Any, Any], project: FromPath[str]) -> Response[bytes]:
        """The limits of a project."""
        return await read(await project_of(request, project, "limits.read"))

    @put(
        "/admin/v1/limits/projects/{project:str}",
        opt=demands("limits.write") | describes(LimitsObject, body=_EXAMPLE, path=_PROJECT),
    )
    async def set_project_limits(request: Request[Any, Any, Any], project: FromPath[str]) -> Response[bytes]:
        """Set all limits of a project."""
        return await change(request, await project_of(request, project, "limits.write"))

    @delete(
        "/admin/v1/limits/projects/{project:str}",
        status_code=200,
        opt=demands("limits.write") | describes(RemovedLimits, query=(_WHY,), path=_PROJECT),
    )
    async def remove_project_limits(request: Request[Any, Any, Any], project: FromPath[str]) -> Response[bytes]:
        """Remove the limits of a project; its keys keep theirs."""
        return await remove(request, await project_of(request, project, "limits.write"))

    @get("/admin/v1/limits/keys/{key:str}", opt=demands("limits.read") | describes(LimitsObject))
    async def retrieve_key_limits(request: Request[Any, Any, Any], key: FromPath[str]) -> Response[bytes]:
        """The limits of a key, by its public id."""
        return await read(await key_of(request, key, "limits.read"))

    @put(
        "/admin/v1/limits/keys/{key:str}",
        opt=demands("limits.write") | describes(LimitsObject, body=_EXAMPLE),
    )
    async def set_key_limits(request: Request[Any, Any, Any], key: FromPath[str]) -> Response[bytes]:
        """Set all limits of a key; those of its project apply beside them."""
        return await change(request, await key_of(request, key, "limits.write"))

    @delete(
        "/admin/v1/limits/keys/{key:str}",
        status_code=200,
        opt=demands("limits.write") | describes(RemovedLimits, query=(_WHY,)),
    )
    async def remove_key_limits(request: Request[Any, Any, Any], key: FromPath[str]) -> Response[bytes]:
        """Remove the limits of a key."""
        return await remove(request, await key_of(request, key, "limits.write"))

    return [
        list_limits,
        retrieve_project_limits,
        set_project_limits,
        remove_project_limits,
        retrieve_key_limits,
        set_key_limits,
        remove_key_limits,
    ]


def _id(parameters: Parameters, name: str, prefix: str) -> UUID | None:
    """The id in a parameter, None if it is absent. Raises InvalidField."""
    text = parameters.text(name)
    found = None if text is None else prefixed_id(text, prefix)
    if text is not None and found is None:
        raise InvalidField(name, f"not an id such as {prefix}{_EXAMPLE_HEX}")
    return found


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
        tenant_id=tenant_public_id(found.tenant_id),
        tenant=found.tenant,
        project_id=project_public_id(found.project_id),
        project=found.project,
        key=found.key,
        **msgspec.structs.asdict(found.limits),
    )


def _reason_of(request: Request[Any, Any, Any]) -> str:
    """The reason in the query of a request without a body. Raises InvalidField."""
    parameters = Parameters.of(request)
    reason = parameters.text("reason") or ""
    parameters.reject_unknown()
    if problem := problem_of_text(reason, REASON, empty=True):
        raise InvalidField("reason", problem)
    return reason
