"""Members and invitations, of the platform, of a tenant and of a project: the same routes at each of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
from litestar import Request, Response, delete, get, post, put
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from gateway.admin.access import check_second_operator, principal_of, refusal, visible_project, visible_tenant
from gateway.admin.users.user_objects import (
    Email,
    InvitationList,
    LinkObject,
    MemberList,
    MemberObject,
    invitation_object,
    link_object,
    member_object,
    user_errors,
)
from gateway.endpoints.request_body import read_management_body
from gateway.errors import NotFound
from gateway.http.operations import describes
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.services import Gateway
from storage.database.public_ids import prefixed_id
from tenancy.rights.permissions import Permission, Role
from tenancy.users.identifiers import INVITATION_PREFIX, USER_PREFIX, user_public_id
from tenancy.users.members import Scope

_TENANT = "/admin/v1/tenants/{tenant:str}"
_PROJECT = f"{_TENANT}/projects/{{project:str}}"
_NO_STORE = {"cache-control": "no-store"}
_NEW = {"second_operator_required": 403}
_KEPT = {"last_owner": 409, "wrong_state": 409}
_SHOWN = 80
ScopeOf: TypeAlias = Callable[[Request[Any, Any, Any], Permission], Awaitable[Scope]]


class RoleChange(Struct, frozen=True, forbid_unknown_fields=True):
    """The role that a member is to have."""

    role: Role


class NewInvitation(Struct, frozen=True, forbid_unknown_fields=True):
    """Whom to invite, and to which role."""

    email: Email
    role: Role


_ROLE, _INVITATION = msgspec.json.Decoder(RoleChange), msgspec.json.Decoder(NewInvitation)


def member_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""

    async def platform(request: Request[Any, Any, Any], permission: Permission) -> Scope:
        if not principal_of(request).may(permission):
            raise refusal(permission)
        return Scope()

    async def tenant(request: Request[Any, Any, Any], permission: Permission) -> Scope:
        return Scope((await visible_tenant(gateway, request, request.path_params["tenant"], permission)).id)

    async def project(request: Request[Any, Any, Any], permission: Permission) -> Scope:
        names = request.path_params
        owner, found = await visible_project(gateway, request, names["tenant"], names["project"], permission)
        return Scope(owner.id, found.id)

    return [
        *_routes(gateway, "/admin/v1", "platform", platform),
        *_routes(gateway, _TENANT, "tenant", tenant),
        *_routes(gateway, _PROJECT, "project", project),
    ]


def _routes(gateway: Gateway, at: str, what: str, scope_of: ScopeOf) -> list[HTTPRouteHandler]:
    """The routes at one kind of scope. Their names, of which clients are generated, say which."""
    users, timeout = gateway.services.users, gateway.services.options.client_timeout

    def named(name: str) -> dict[str, Any]:
        return {"operation_id": f"admin_{name.format(what)}", "tags": ("members",)}

    @get(f"{at}/members", opt=demands("members.read") | describes(MemberList, **named("list_{}_members")))
    async def list_members(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Who has a role at this very scope. Roles at what contains it hold here too."""
        scope = await scope_of(request, "members.read")
        return json_response(
            MemberList(data=[member_object(one) for one in await users.members.at(scope)], has_more=False)
        )

    @put(
        f"{at}/members/{{user:str}}",
        opt=demands("members.write")
        | describes(MemberObject, body=RoleChange, errors=_KEPT | _NEW, **named("set_{}_member")),
    )
    async def set_member(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Give a user, by id, a role here in place of the one it has. It holds at the user's next request. Whom you do
        not see is invited instead. Only owners make owners, and nobody changes the own role."""
        scope = await scope_of(request, "members.write")
        if scope.tenant_id is None:
            await check_second_operator(gateway, "Giving a role at the platform")
        body = await read_management_body(request, timeout, _ROLE)
        user_id = _user_id(request)
        with user_errors():
            await users.members.set(principal_of(request), user_id, scope, body.role, users.clock())
        member = next(one for one in await users.members.at(scope) if one.user_id == user_id)
        return json_response(member_object(member))

    @delete(
        f"{at}/members/{{user:str}}",
        status_code=204,
        opt=demands(None, fresh=True) | describes(None, status=204, errors=_KEPT, **named("remove_{}_member")),
    )
    async def remove_member(request: Request[Any, Any, Any]) -> Response[None]:
        """Take a member's role here away, or leave. The last owner of the platform or of a tenant cannot leave."""
        user_id, principal = _user_id(request), principal_of(request)
        own = principal.public_id == user_public_id(user_id)
        scope = await scope_of(request, "models.read" if own else "members.write")
        with user_errors():
            await users.members.remove(principal, user_id, scope, own=own)
        return Response(None, status_code=204)

    @get(f"{at}/invitations", opt=demands("members.read") | describes(InvitationList, **named("list_{}_invitations")))
    async def list_invitations(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Invitations to this very scope that may still be accepted."""
        scope = await scope_of(request, "members.read")
        found = await users.links.invitations(scope, users.clock())
        return json_response(InvitationList(data=[invitation_object(one) for one in found], has_more=False))

    @post(
        f"{at}/invitations",
        status_code=201,
        opt=demands("members.write")
        | describes(LinkObject, status=201, body=NewInvitation, errors=_NEW, **named("create_{}_invitation")),
    )
    async def create_invitation(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Invite somebody by e-mail address. The answer has a one-time link, good for 7 days, to hand over; it takes
        the place of an earlier one. It says nothing of whether this is a user already."""
        scope = await scope_of(request, "members.write")
        if scope.tenant_id is None:
            await check_second_operator(gateway, "Inviting to the platform")
        body = await read_management_body(request, timeout, _INVITATION)
        with user_errors():
            inviting = users.links.invite(principal_of(request), body.email, body.role, scope, users.clock())
            return json_response(link_object(await inviting), 201, _NO_STORE)

    @delete(
        f"{at}/invitations/{{invitation:str}}",
        status_code=204,
        opt=demands("members.write") | describes(None, status=204, **named("withdraw_{}_invitation")),
    )
    async def withdraw_invitation(request: Request[Any, Any, Any]) -> Response[None]:
        """Withdraw an invitation."""
        scope = await scope_of(request, "members.write")
        reference = request.path_params["invitation"]
        identity = prefixed_id(reference, INVITATION_PREFIX)
        if identity is None:
            raise NotFound(f"There is no invitation {reference[:_SHOWN]!r}.")
        with user_errors():
            await users.links.withdraw(identity, scope, users.clock())
        return Response(None, status_code=204)

    return [list_members, set_member, remove_member, list_invitations, create_invitation, withdraw_invitation]


def _user_id(request: Request[Any, Any, Any]) -> UUID:
    reference = request.path_params["user"]
    identity = prefixed_id(reference, USER_PREFIX)
    if identity is None:
        raise NotFound(f"There is no user {reference[:_SHOWN]!r}.")
    return identity
