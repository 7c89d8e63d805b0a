"""/admin/v1/users: all users, for operators; and links by which a user resets its password or signs in."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import msgspec
from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from gateway.admin.access import check_may_change, check_second_operator, principal_of, refusal
from gateway.admin.users.user_objects import (
    LinkObject,
    Reason,
    UserList,
    UserObject,
    link_object,
    user_errors,
    user_object,
)
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.errors import Conflict, InvalidField, NotAllowed, NotFound
from gateway.http.operations import describes, page
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.services import Gateway
from storage.free_text import REASON, check_text
from tenancy.rights.principals import Principal
from tenancy.users.accounts import User
from tenancy.users.identifiers import user_public_id
from tenancy.users.roles import may_take_over

_describes = partial(describes, tags=("users",))
_USER = "/admin/v1/users/{user:str}"
_NO_STORE = {"cache-control": "no-store"}
_SHOWN = 80
_STATE = {"wrong_state": 409}
_SECOND = {"second_operator_required": 403}


class Why(Struct, frozen=True, forbid_unknown_fields=True):
    """Why, for the audit log."""

    reason: Reason = ""


class NewLink(Struct, frozen=True, forbid_unknown_fields=True):
    """What the link is for: to set another password, or to sign in without one, once."""

    kind: Literal["password_reset", "sign_in"] = "password_reset"
    reason: Reason = ""


_WHY, _LINK = msgspec.json.Decoder(Why), msgspec.json.Decoder(NewLink)


def user_routes(gateway: Gateway) -> list[HTTPRouteHandler]:  # noqa: PLR0915  # six routes
    """The routes, for one worker."""
    users, timeout = gateway.services.users, gateway.services.options.client_timeout

    async def seen(request: Request[Any, Any, Any], reference: str) -> User:
        """The user of a path, if the principal sees it: operators see all, others those with a role in their tenant.
        Raises NotFound."""
        principal = principal_of(request)
        with user_errors():
            try:
                user = await users.accounts.find(reference)
            except LookupError as error:
                raise _unknown(reference) from error
        if not _sees(principal, user):
            raise _unknown(reference)
        return user

    async def ruled(request: Request[Any, Any, Any], reference: str) -> User:
        """The user of a path, whom the principal may lock out or let in. Raises NotFound, NotAllowed (also
        SuspendedError)."""
        principal, user = principal_of(request), await seen(request, reference)
        for one in user.memberships:
            if one.tenant_id is not None:
                check_may_change(gateway, request, one.tenant_id)
        if not may_take_over(principal, user.memberships):
            raise NotAllowed("This user has roles that you may not give: an owner of all of them must do this.")
        return user

    async def check_taken_over(request: Request[Any, Any, Any], user: User) -> None:
        """While approvals are on, nobody alone becomes somebody else who has a role at the platform."""
        if principal_of(request).user != user_public_id(user.id) and any(
            one.tenant_id is None for one in user.memberships
        ):
            await check_second_operator(gateway, "Letting in a user who has a role at the platform")

    @get("/admin/v1/users", opt=demands("members.read") | _describes(UserList, query=page()))
    async def list_users(request: Request[Any, Any, Any]) -> Response[bytes]:
        """All users, by e-mail address; the cursor `after` is an e-mail address. For who has a role at the platform;
        others list the members of their tenants."""
        parameters = Parameters.of(request)
        limit, after = parameters.page_size(), parameters.text("after")
        parameters.reject_unknown()
        if not principal_of(request).may("members.read"):
            raise refusal("members.read")
        if after is not None and not after.isprintable():
            raise InvalidField("after", "not an e-mail address")
        found, more = await users.accounts.page(limit, after)
        return json_response(UserList(data=[user_object(user) for user in found], has_more=more))

    @get(_USER, opt=demands("members.read") | _describes(UserObject))
    async def get_user(request: Request[Any, Any, Any], user: FromPath[str]) -> Response[bytes]:
        """One user, by id or e-mail address. Of the roles, you see those where you may see members."""
        found, principal = await seen(request, user), principal_of(request)
        visible = tuple(
            one for one in found.memberships if principal.may("members.read", one.tenant_id, one.project_id)
        )
        return json_response(user_object(msgspec.structs.replace(found, memberships=visible)))

    @post(
        f"{_USER}/links",
        status_code=201,
        opt=demands("members.write")
        | _describes(LinkObject, status=201, body=NewLink, body_required=False, errors=_STATE | _SECOND),
    )
    async def create_user_link(request: Request[Any, Any, Any], user: FromPath[str]) -> Response[bytes]:
        """A one-time link for a user who has lost the password. Whoever holds it becomes this user, so you must be able
        to give all roles that it has. A second factor is asked for all the same."""
        body = await read_management_body(request, timeout, _LINK, default=b"{}")
        _check_reason(body.reason)
        found = await ruled(request, user)
        if found.disabled_at is not None:
            raise Conflict("The user is disabled.", code="wrong_state")
        await check_taken_over(request, found)
        with user_errors():
            link = await users.links.create(
                found.id, body.kind, users.clock(), by=principal_of(request), reason=body.reason
            )
        return json_response(link_object(link), 201, _NO_STORE)

    @post(
        f"{_USER}/disable",
        status_code=200,
        opt=demands("members.write")
        | _describes(UserObject, body=Why, body_required=False, errors=_STATE | {"last_owner": 409}),
    )
    async def disable_user(request: Request[Any, Any, Any], user: FromPath[str]) -> Response[bytes]:
        """Let a user sign in no more, and end its sessions at once."""
        body = await read_management_body(request, timeout, _WHY, default=b"{}")
        _check_reason(body.reason)
        found = await ruled(request, user)
        if principal_of(request).public_id == user_public_id(found.id):
            raise Conflict("Nobody disables the own account.", code="wrong_state")
        with user_errors():
            return json_response(user_object(await users.accounts.disable(found.id, users.clock(), reason=body.reason)))

    @post(
        f"{_USER}/enable",
        status_code=200,
        opt=demands("members.write") | _describes(UserObject, body=Why, body_required=False, errors=_STATE | _SECOND),
    )
    async def enable_user(request: Request[Any, Any, Any], user: FromPath[str]) -> Response[bytes]:
        """Let a disabled user sign in again."""
        body = await read_management_body(request, timeout, _WHY, default=b"{}")
        _check_reason(body.reason)
        found = await ruled(request, user)
        await check_taken_over(request, found)
        with user_errors():
            return json_response(user_object(await users.accounts.enable(found.id, reason=body.reason)))

    @post(
        f"{_USER}/revoke-sessions",
        status_code=200,
        opt=demands("members.write") | _describes(UserObject, body=Why, body_required=False, errors=_STATE),
    )
    async def end_user_sessions(request: Request[Any, Any, Any], user: FromPath[str]) -> Response[bytes]:
        """Sign a user out everywhere."""
        body = await read_management_body(request, timeout, _WHY, default=b"{}")
        _check_reason(body.reason)
        found = await ruled(request, user)
        await users.sessions.revoke_all(found.id, users.clock(), reason=body.reason)
        return json_response(user_object(found))

    return [list_users, get_user, create_user_link, disable_user, enable_user, end_user_sessions]


def _sees(principal: Principal, user: User) -> bool:
    return principal.may("members.read") or any(
        principal.may("members.read", one.tenant_id, one.project_id) for one in user.memberships
    )


def _check_reason(reason: str) -> None:
    with user_errors():
        check_text("reason", reason, REASON, empty=True)


def _unknown(reference: str) -> NotFound:
    return NotFound(f"There is no user {reference[:_SHOWN]!r}.")
