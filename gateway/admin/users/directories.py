"""/admin/v1/tenants/{tenant}/directory: the tenant's SCIM directory; and how people get into the tenant."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal
from uuid import UUID

from litestar import Response
from msgspec import Meta, Struct

from gateway.admin.access import project_named
from gateway.admin.operation import Call, operation
from gateway.admin.users.identity_sign_in import identity_errors
from gateway.errors import InvalidField, NotAllowed, NotFound
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.http.shapes import Instant, Page, PageQuery, ProjectId, UserId, show
from gateway.services import Gateway
from tenancy.identity.directories import DirectorySettings
from tenancy.identity.directory_people import Group, Person
from tenancy.rights.permissions import Role
from tenancy.tables import Tenant
from tenancy.users.identifiers import user_public_id
from tenancy.users.roles import may_give

_operation = partial(operation, tags=("identity",))
_READ, _WRITE = demands("members.read"), demands("members.write")
_DIRECTORY = "/admin/v1/tenants/{tenant:str}/directory"
_NO_STORE = {"cache-control": "no-store"}
_STATE = {"wrong_state": 409}
SCIM_PATH = "/scim/v2"


class DirectoryObject(Struct, frozen=True, kw_only=True):
    """A tenant's directory. `role`: of who made its token, beyond which it gives and takes nothing. `member_role`: what
    everybody active in it has; empty: groups alone give roles. `revoke_keys`: who leaves loses the keys that she made.
    `path`: where its SCIM client asks, below the address of the console."""

    object: Literal["directory"] = "directory"
    role: Role
    member_role: Literal["", "admin", "finance", "developer", "viewer"]
    revoke_keys: bool
    path: str = SCIM_PATH
    created_at: Instant
    used_at: Instant | None


class NewDirectoryObject(DirectoryObject, frozen=True, kw_only=True):
    """A tenant's directory with its token, which is shown this once."""

    token: str


class RemovedDirectory(Struct, frozen=True, kw_only=True):
    """The directory is no more."""

    object: Literal["directory"] = "directory"
    deleted: Literal[True] = True


class DirectoryChanges(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to change of a directory."""

    member_role: Literal["", "admin", "finance", "developer", "viewer"] | None = None
    revoke_keys: bool | None = None


class DirectoryPersonObject(Struct, frozen=True, kw_only=True):
    """A person of the directory. `user`: the account that is known to be this person's; null until the first sign-in by
    the tenant's identity provider."""

    object: Literal["directory_person"] = "directory_person"
    id: UUID
    user_name: str
    external_id: str
    email: str
    active: bool
    user: UserId | None
    changed_at: Instant


class DirectoryPersonList(Page[DirectoryPersonObject], frozen=True):
    """The people of the directory, by user name."""


class DirectoryGroupObject(Struct, frozen=True, kw_only=True):
    """A group of the directory. `role`: what its members have, at the tenant or at a project; empty: nothing."""

    object: Literal["directory_group"] = "directory_group"
    id: UUID
    name: str
    external_id: str
    members: int
    role: Literal["", "owner", "admin", "finance", "developer", "viewer"]
    project: ProjectId | None
    changed_at: Instant


class DirectoryGroupList(Page[DirectoryGroupObject], frozen=True):
    """The groups of the directory, by name."""


class GroupRoleChange(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the members of a group are to have, at the tenant or at a project; an empty role: nothing."""

    role: Literal["", "owner", "admin", "finance", "developer", "viewer"]
    project: str | None = None


class FormerKeyObject(Struct, frozen=True, kw_only=True):
    """A key that works, whose secret somebody has seen who has no role at the tenant any more."""

    object: Literal["former_key"] = "former_key"
    key: str
    name: str
    user: str


class FormerKeyList(Page[FormerKeyObject], frozen=True):
    """Keys to revoke or rotate, since who made them has left."""


class SignInPolicyObject(Struct, frozen=True, kw_only=True):
    """How people get into the tenant. `provider_only`: roles here hold only in sessions that the tenant's identity
    providers opened; `break_glass`: the owners whose password or passkey does all the same."""

    object: Literal["sign_in_policy"] = "sign_in_policy"
    provider_only: bool
    break_glass: list[Annotated[UserId, Meta(examples=["user_01934f6e0d2a7b3c8e51a9c4d7f60b12"])]]


class SignInPolicyChange(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How people are to get into the tenant. `break_glass`: ids of owners, better two."""

    provider_only: bool
    break_glass: list[Annotated[str, Meta(examples=["user_01934f6e0d2a7b3c8e51a9c4d7f60b12"])]]


class DirectoryOperations:
    """Manages tenants' directories, and how people get in."""

    errors = staticmethod(identity_errors)

    def __init__(self, gateway: Gateway) -> None:
        self._directories = gateway.services.identity.directories
        self._people = gateway.services.identity.directory
        self._users = gateway.services.users

    @_operation("GET", _DIRECTORY, _READ)
    async def get_directory(self, tenant: Tenant) -> DirectoryObject:
        """The tenant's directory. 404 if it has none."""
        return _shown(await self._directories.get(tenant.id))

    @_operation("POST", f"{_DIRECTORY}/token", _WRITE, status=201)
    async def create_directory_token(
        self, call: Call, tenant: Tenant
    ) -> Annotated[Response[bytes], NewDirectoryObject]:
        """Make a token for the tenant's SCIM client, in place of the one there was. It is shown this once, and gives no
        more than you may give."""
        settings, token = await self._directories.create_token(call.principal, tenant.id, self._users.clock())
        return json_response(show(NewDirectoryObject, settings, token=token, path=SCIM_PATH), 201, _NO_STORE)

    @_operation("PATCH", _DIRECTORY, _WRITE, errors=_STATE, example=DirectoryChanges(member_role="viewer"))
    async def change_directory(self, call: Call, tenant: Tenant, body: DirectoryChanges) -> DirectoryObject:
        """Change what everybody in the directory has, and whether who leaves loses the keys."""
        return _shown(
            await self._directories.change(
                call.principal, tenant.id, member_role=body.member_role, revoke_keys=body.revoke_keys
            )
        )

    @_operation("DELETE", _DIRECTORY, _WRITE)
    async def remove_directory(self, call: Call, tenant: Tenant) -> RemovedDirectory:
        """Forget the directory, with its token. Members keep the roles that it gave."""
        await self._directories.remove(call.principal, tenant.id)
        return RemovedDirectory()

    @_operation("GET", f"{_DIRECTORY}/people", _READ)
    async def list_directory_people(self, tenant: Tenant, page: PageQuery) -> DirectoryPersonList:
        """The people of the directory; the cursor `after` is how many to leave out."""
        start = _start(page)
        people, total = await self._people.people(tenant.id, {}, start, page.limit)
        return DirectoryPersonList(data=[_person(one) for one in people], has_more=total > start + page.limit)

    @_operation("GET", f"{_DIRECTORY}/groups", _READ)
    async def list_directory_groups(self, tenant: Tenant, page: PageQuery) -> DirectoryGroupList:
        """The groups of the directory; the cursor `after` is how many to leave out."""
        start = _start(page)
        groups, total = await self._people.groups(tenant.id, {}, start, page.limit)
        return DirectoryGroupList(data=[_group(one) for one in groups], has_more=total > start + page.limit)

    @_operation("PUT", f"{_DIRECTORY}/groups/{{group:str}}/role", _WRITE, example=GroupRoleChange(role="developer"))
    async def set_directory_group_role(
        self, call: Call, tenant: Tenant, group: str, body: GroupRoleChange
    ) -> DirectoryGroupObject:
        """Say what the members of a group have. It holds at each member's next request."""
        project = None if body.project is None else await project_named(call.gateway, tenant.id, body.project)
        if body.project is not None and project is None:
            raise InvalidField("$.project", f"there is no project {body.project[:80]!r}")
        try:
            group_id = UUID(group)
        except ValueError as error:
            raise NotFound(f"There is no group {group[:80]!r}.") from error
        place = None if project is None else project.id
        return _group(await self._people.set_group_role(call.principal, tenant.id, group_id, body.role, place))

    @_operation("GET", "/admin/v1/tenants/{tenant:str}/former-members-keys", demands("keys.read"))
    async def list_former_members_keys(self, tenant: Tenant) -> FormerKeyList:
        """Keys of the tenant that work, whose secret somebody has seen who has no role here any more: revoke or rotate
        them."""
        found = await self._directories.keys_of_former_members(tenant.id)
        return FormerKeyList(data=[show(FormerKeyObject, one) for one in found], has_more=False)

    @_operation("GET", "/admin/v1/tenants/{tenant:str}/sign-in-policy", _READ)
    async def get_sign_in_policy(self, tenant: Tenant) -> SignInPolicyObject:
        """How people get into the tenant."""
        return await self._policy(tenant)

    @_operation(
        "PUT",
        "/admin/v1/tenants/{tenant:str}/sign-in-policy",
        _WRITE,
        errors=_STATE,
        example=SignInPolicyChange(provider_only=True, break_glass=["user_01934f6e0d2a7b3c8e51a9c4d7f60b12"]),
    )
    async def set_sign_in_policy(self, call: Call, tenant: Tenant, body: SignInPolicyChange) -> SignInPolicyObject:
        """Let people into the tenant by its identity providers alone, or by passwords too. For owners. Each use of a
        break-glass account is logged as a warning and recorded."""
        if not may_give(call.principal, "owner", tenant.id, None):
            raise NotAllowed("Owners alone say how people get in.")
        changed = await self._directories.set_policy(
            tenant.id, provider_only=body.provider_only, break_glass=body.break_glass
        )
        for user_id in changed:
            await self._users.changes.announce(user_id)
        return await self._policy(tenant)

    async def _policy(self, tenant: Tenant) -> SignInPolicyObject:
        owners = await self._directories.break_glass_owners(tenant.id)
        return SignInPolicyObject(
            provider_only=await self._directories.provider_only(tenant.id),
            break_glass=[UserId(user_public_id(one)) for one in owners],
        )


def _start(page: PageQuery) -> int:
    if page.after is not None and not (page.after.isascii() and page.after.isdigit() and len(page.after) < 9):
        raise InvalidField("after", "not a number of objects to leave out")
    return int(page.after or 0)


def _shown(settings: DirectorySettings) -> DirectoryObject:
    return show(DirectoryObject, settings, path=SCIM_PATH)


def _person(one: Person) -> DirectoryPersonObject:
    return show(DirectoryPersonObject, one, user=one.user_id)


def _group(one: Group) -> DirectoryGroupObject:
    return show(DirectoryGroupObject, one, members=len(one.members), project=one.project_id)
