"""/admin/v1/users: all users, for operators; and links by which a user resets its password or signs in."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from litestar import Response
from msgspec import Struct
from msgspec.structs import replace

from gateway.admin.access import check_may_change, check_second_operator, refusal
from gateway.admin.operation import Call, operation
from gateway.admin.users.user_objects import (
    LinkObject,
    Reason,
    UserList,
    UserObject,
    link_object,
    user_errors,
    user_object,
)
from gateway.errors import Conflict, InvalidField, NotAllowed, NotFound
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.http.shapes import PageQuery
from gateway.services import Gateway
from storage.free_text import REASON, check_text
from tenancy.rights.principals import Principal
from tenancy.users.accounts import User
from tenancy.users.identifiers import user_public_id
from tenancy.users.roles import may_take_over

_operation = partial(operation, tags=("users",))
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


class UserOperations:
    """Lists users, lets them in and locks them out."""

    errors = staticmethod(user_errors)

    def __init__(self, gateway: Gateway) -> None:
        self._users = gateway.services.users

    @_operation("GET", "/admin/v1/users", demands("members.read"))
    async def list_users(self, call: Call, page: PageQuery) -> UserList:
        """All users, by e-mail address; the cursor `after` is an e-mail address. For who has a role at the platform;
        others list the members of their tenants."""
        if not call.principal.may("members.read"):
            raise refusal("members.read")
        if page.after is not None and not page.after.isprintable():
            raise InvalidField("after", "not an e-mail address")
        users, more = await self._users.accounts.page(page.limit, page.after)
        return UserList(data=[user_object(user) for user in users], has_more=more)

    @_operation("GET", _USER, demands("members.read"))
    async def get_user(self, call: Call, user: str) -> UserObject:
        """One user, by id or e-mail address. Of the roles, you see those where you may see members."""
        account, may = await self._seen(call, user), call.principal.may
        visible = tuple(each for each in account.memberships if may("members.read", each.tenant_id, each.project_id))
        return user_object(replace(account, memberships=visible))

    @_operation(
        "POST", f"{_USER}/links", demands("members.write"), status=201, body_required=False, errors=_STATE | _SECOND
    )
    async def create_user_link(self, call: Call, user: str, body: NewLink) -> Annotated[Response[bytes], LinkObject]:
        """A one-time link for a user who has lost the password. Whoever holds it becomes this user, so you must be able
        to give all roles that it has. A second factor is asked for all the same."""
        account = await self._ruled(call, user, body.reason)
        if account.disabled_at is not None:
            raise Conflict("The user is disabled.", code="wrong_state")
        await _check_taken_over(call, account)
        link = await self._users.links.create(
            account.id, body.kind, self._users.clock(), by=call.principal, reason=body.reason
        )
        return json_response(link_object(link), 201, _NO_STORE)

    @_operation(
        "POST",
        f"{_USER}/disable",
        demands("members.write"),
        body_required=False,
        errors=_STATE | {"last_owner": 409},
    )
    async def disable_user(self, call: Call, user: str, body: Why) -> UserObject:
        """Let a user sign in no more, and end its sessions at once."""
        account = await self._ruled(call, user, body.reason)
        if call.principal.public_id == user_public_id(account.id):
            raise Conflict("Nobody disables the own account.", code="wrong_state")
        return user_object(await self._users.accounts.disable(account.id, self._users.clock(), reason=body.reason))

    @_operation("POST", f"{_USER}/enable", demands("members.write"), body_required=False, errors=_STATE | _SECOND)
    async def enable_user(self, call: Call, user: str, body: Why) -> UserObject:
        """Let a disabled user sign in again."""
        account = await self._ruled(call, user, body.reason)
        await _check_taken_over(call, account)
        return user_object(await self._users.accounts.enable(account.id, reason=body.reason))

    @_operation("POST", f"{_USER}/revoke-sessions", demands("members.write"), body_required=False, errors=_STATE)
    async def end_user_sessions(self, call: Call, user: str, body: Why) -> UserObject:
        """Sign a user out everywhere."""
        account = await self._ruled(call, user, body.reason)
        await self._users.sessions.revoke_all(account.id, self._users.clock(), reason=body.reason)
        return user_object(account)

    async def _seen(self, call: Call, reference: str) -> User:
        """The user of a path, if the principal sees it: operators see all, others those with a role in their tenant.
        Raises NotFound."""
        try:
            user = await self._users.accounts.find(reference)
        except LookupError as error:
            raise _unknown(reference) from error
        if not _sees(call.principal, user):
            raise _unknown(reference)
        return user

    async def _ruled(self, call: Call, reference: str, reason: str) -> User:
        """The user of a path, whom the principal may lock out or let in for this reason. Raises NotFound, NotAllowed
        (also SuspendedError), InvalidText."""
        check_text("reason", reason, REASON, empty=True)
        user = await self._seen(call, reference)
        for each in user.memberships:
            if each.tenant_id is not None:
                check_may_change(call.gateway, call.request, each.tenant_id)
        if not may_take_over(call.principal, user.memberships):
            raise NotAllowed("This user has roles that you may not give: an owner of all of them must do this.")
        return user


async def _check_taken_over(call: Call, user: User) -> None:
    """While approvals are on, nobody alone becomes somebody else who has a role at the platform."""
    at_platform = any(each.tenant_id is None for each in user.memberships)
    if at_platform and call.principal.user != user_public_id(user.id):
        await check_second_operator(call.gateway, "Letting in a user who has a role at the platform")


def _sees(principal: Principal, user: User) -> bool:
    return principal.may("members.read") or any(
        principal.may("members.read", one.tenant_id, one.project_id) for one in user.memberships
    )


def _unknown(reference: str) -> NotFound:
    return NotFound(f"There is no user {reference[:_SHOWN]!r}.")
