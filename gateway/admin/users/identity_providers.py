"""/admin/v1/identity-providers, of the platform and of tenants: the same routes at both; and what one's account is
known by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from litestar import Request, Response, delete, get, patch, post, put
from litestar.handlers import HTTPRouteHandler
from msgspec import Meta, Struct

from gateway.admin.access import check_second_operator, principal_of, project_named, refusal, visible_tenant
from gateway.admin.operation import Call, operation
from gateway.admin.users.identity_sign_in import (
    PasskeyObject,
    check_own_account,
    identity_errors,
    passkey_object,
)
from gateway.admin.users.user_objects import Name
from gateway.endpoints.request_body import read_management_body
from gateway.errors import InvalidField, NotAllowed, NotFound
from gateway.http.operations import describes
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.http.sessions import session_of
from gateway.http.shapes import Instant, Page, ProjectId, TenantId, show
from gateway.services import Gateway
from tenancy.directory import Directory
from tenancy.identity.providers import GroupRole, Provider, ProviderFields
from tenancy.identity.refusals import IdentityRefused
from tenancy.rights.permissions import Permission, Role
from tenancy.users.roles import may_give

_Text = Annotated[str, Meta(max_length=2_000)]
_Tenant: TypeAlias = UUID | None
Place: TypeAlias = Callable[[Request[Any, Any, Any], Permission], Awaitable[_Tenant]]
_STATE = {"wrong_state": 409}
_SECOND = {"second_operator_required": 403}
_SHOWN = 80


class ProviderGroup(Struct, frozen=True, forbid_unknown_fields=True):
    """The role that a group gives: at a project, a tenant, or without either where the provider is. `group`: its id as
    the provider's tokens say it."""

    group: Annotated[str, Meta(max_length=200)]
    role: Role
    tenant: str | None = None
    project: str | None = None


class ProviderGroupObject(Struct, frozen=True, kw_only=True):
    """The role that a group gives, and where."""

    group: str
    role: Role
    tenant: TenantId | None
    project: ProjectId | None


class IdentityProviderObject(Struct, frozen=True, kw_only=True):
    """An OpenID provider. `redirect_path` and `logout_path`, below the address of the console, are to be entered
    there."""

    object: Literal["identity_provider"] = "identity_provider"
    id: UUID
    name: str
    issuer: str
    client_id: str
    has_secret: bool
    scopes: str
    groups_claim: str
    acr_values: str
    owner_by_group: bool
    enabled: bool
    domains: list[Annotated[str, Meta(examples=["acme.example"])]]
    groups: list[ProviderGroupObject]
    redirect_path: str
    logout_path: str
    created_at: Instant


class IdentityProviderList(Page[IdentityProviderObject], frozen=True):
    """The providers of the platform or of a tenant, the oldest first."""


class NewIdentityProvider(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A provider to add. `client_secret`: empty for a public client. `groups_claim`: the claim that has the ids of
    groups. `acr_values`: one of them is demanded of a proof, separated by spaces."""

    name: Name
    issuer: _Text
    client_id: _Text
    client_secret: _Text = ""
    scopes: _Text = "openid email profile"
    groups_claim: _Text = "groups"
    acr_values: _Text = ""
    owner_by_group: bool = False


class IdentityProviderChanges(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to change of a provider. Its issuer stays: add another one."""

    name: Name | None = None
    client_id: _Text | None = None
    client_secret: _Text | None = None
    scopes: _Text | None = None
    groups_claim: _Text | None = None
    acr_values: _Text | None = None
    owner_by_group: bool | None = None
    enabled: bool | None = None


class ProviderGroups(Struct, frozen=True, forbid_unknown_fields=True):
    """All roles that groups give, in place of those of before."""

    groups: list[ProviderGroup]


class ProviderDomains(Struct, frozen=True, forbid_unknown_fields=True):
    """All domains of e-mail addresses that belong to who runs the provider."""

    domains: list[Annotated[str, Meta(max_length=253)]]


_ACME = NewIdentityProvider(name="Entra", issuer="https://login.example/v2.0", client_id="turnpike")
_NEW, _CHANGES = msgspec.json.Decoder(NewIdentityProvider), msgspec.json.Decoder(IdentityProviderChanges)
_GROUPS, _DOMAINS = msgspec.json.Decoder(ProviderGroups), msgspec.json.Decoder(ProviderDomains)


def identity_provider_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""

    async def platform(request: Request[Any, Any, Any], permission: Permission) -> _Tenant:
        if not principal_of(request).may(permission):
            raise refusal(permission)
        return None

    async def tenant(request: Request[Any, Any, Any], permission: Permission) -> _Tenant:
        return (await visible_tenant(gateway, request, request.path_params["tenant"], permission)).id

    return [
        *_routes(gateway, "/admin/v1", "platform", platform),
        *_routes(gateway, "/admin/v1/tenants/{tenant:str}", "tenant", tenant),
    ]


def _routes(  # noqa: PLR0915  # six routes
    gateway: Gateway, base: str, what: str, place: Place
) -> list[HTTPRouteHandler]:
    providers, users = gateway.services.identity.providers, gateway.services.users
    timeout, at = gateway.services.options.client_timeout, f"{base}/identity-providers"
    one = f"{at}/{{provider:str}}"

    def named(name: str) -> dict[str, Any]:
        return {"operation_id": f"admin_{name.format(what)}", "tags": ("identity",)}

    async def owned(request: Request[Any, Any, Any], doing: str) -> _Tenant:
        """Where an owner changes providers: who decides by whom people are let in may become any of them."""
        tenant_id = await place(request, "members.write")
        if not may_give(principal_of(request), "owner", tenant_id, None):
            raise NotAllowed("Owners alone change identity providers: they decide who is let in as whom.")
        if tenant_id is None:
            await check_second_operator(gateway, doing)
        return tenant_id

    @get(at, opt=demands("members.read") | describes(IdentityProviderList, **named("list_{}_identity_providers")))
    async def list_providers(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The identity providers by which people sign in here."""
        found = await providers.at(await place(request, "members.read"))
        return json_response(IdentityProviderList(data=[_shown(each) for each in found], has_more=False))

    @post(
        at,
        status_code=201,
        opt=demands("members.write")
        | describes(
            IdentityProviderObject,
            status=201,
            body=_ACME,
            errors=_STATE | _SECOND,
            **named("create_{}_identity_provider"),
        ),
    )
    async def add_provider(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Add an identity provider, which must answer. Enter `redirect_path` of the answer there."""
        tenant_id = await owned(request, "Adding an identity provider of the platform")
        body = await read_management_body(request, timeout, _NEW)
        fields = ProviderFields(**{name: getattr(body, name) for name in body.__struct_fields__ if name != "issuer"})
        with identity_errors():
            try:
                return json_response(_shown(await providers.add(tenant_id, body.issuer, fields, users.clock())), 201)
            except IdentityRefused as error:
                raise InvalidField("$.issuer", f"{error} ({error.reason}: {error.detail[:200]})") from error

    @patch(
        one,
        opt=demands("members.write")
        | describes(
            IdentityProviderObject,
            body=IdentityProviderChanges(enabled=False),
            errors=_SECOND,
            **named("change_{}_identity_provider"),
        ),
    )
    async def change_provider(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Change an identity provider, or switch it off."""
        tenant_id = await owned(request, "Changing an identity provider of the platform")
        body = await read_management_body(request, timeout, _CHANGES)
        fields = ProviderFields(**{name: getattr(body, name) for name in body.__struct_fields__})
        with identity_errors():
            return json_response(_shown(await providers.change(_provider_of(request), tenant_id, fields)))

    @delete(
        one,
        status_code=204,
        opt=demands("members.write") | describes(None, status=204, **named("remove_{}_identity_provider")),
    )
    async def remove_provider(request: Request[Any, Any, Any]) -> Response[None]:
        """Remove an identity provider, with who is linked to it, the roles that its groups gave, and the sessions that
        it opened."""
        tenant_id = await place(request, "members.write")
        if not may_give(principal_of(request), "owner", tenant_id, None):
            raise NotAllowed("Owners alone change identity providers: they decide who is let in as whom.")
        with identity_errors():
            for user_id in await providers.remove(_provider_of(request), tenant_id, users.clock()):
                await users.changes.announce(user_id)
        return Response(None, status_code=204)

    @put(
        f"{one}/groups",
        opt=demands("members.write")
        | describes(
            IdentityProviderObject,
            body=ProviderGroups([ProviderGroup("0c1f…", "developer")]),
            errors=_SECOND,
            **named("set_{}_identity_provider_groups"),
        ),
    )
    async def set_groups(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Say which roles the provider's groups give. It holds for each member from the next sign-in."""
        tenant_id = await place(request, "members.write")
        body = await read_management_body(request, timeout, _GROUPS)
        groups = [await _group(gateway, each, tenant_id, f"$.groups[{n}]") for n, each in enumerate(body.groups)]
        if any(each.tenant_id is None for each in groups):
            await check_second_operator(gateway, "Giving a group a role at the platform")
        with identity_errors():
            changing = providers.set_groups(principal_of(request), _provider_of(request), tenant_id, groups)
            return json_response(_shown(await changing))

    @put(
        f"{one}/domains",
        opt=demands("tenants.write")
        | describes(
            IdentityProviderObject,
            body=ProviderDomains(["acme.example"]),
            errors=_STATE,
            **named("set_{}_identity_provider_domains"),
        ),
    )
    async def set_domains(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Say which domains belong to who runs the provider: who signs in with a verified address of one gets an
        account. For operators, who have asked the domain's owner."""
        tenant_id = await place(request, "tenants.write")
        body = await read_management_body(request, timeout, _DOMAINS)
        with identity_errors():
            changing = providers.set_domains(_provider_of(request), tenant_id, body.domains, users.clock())
            return json_response(_shown(await changing))

    return [list_providers, add_provider, change_provider, remove_provider, set_groups, set_domains]


class LinkedIdentityObject(Struct, frozen=True, kw_only=True):
    """An identity provider that knows you. `tenant`: whose it is; null: the platform's."""

    object: Literal["linked_identity"] = "linked_identity"
    id: UUID
    provider: str
    tenant: TenantId | None
    email: str
    created_at: Instant
    used_at: Instant | None


class LinkedIdentityList(Page[LinkedIdentityObject], frozen=True):
    """The identity providers that know you, the oldest first."""


class PasskeyList(Page[PasskeyObject], frozen=True):
    """Your passkeys, the oldest first."""


class PasskeyName(Struct, frozen=True, forbid_unknown_fields=True):
    """What to call a passkey."""

    name: Name


_operation = partial(operation, tags=("users",))
_OWN, _PROVEN = demands(None, "session"), demands(None, "session", fresh=True)
_ME = "/admin/v1/users/me"
_BOUND = {"bound_session": 403}


class OwnIdentityOperations:
    """Shows and removes what one's account is known by."""

    errors = staticmethod(identity_errors)

    def __init__(self, gateway: Gateway) -> None:
        self._identity, self._clock = gateway.services.identity, gateway.services.users.clock

    @_operation("GET", f"{_ME}/identities", _OWN)
    async def list_own_identities(self, call: Call) -> LinkedIdentityList:
        """The identity providers that you may sign in by."""
        found = await self._identity.people.of_user(session_of(call.request.scope).session.user_id)
        return LinkedIdentityList(
            data=[show(LinkedIdentityObject, each, tenant=each.tenant_id) for each in found], has_more=False
        )

    @_operation("DELETE", f"{_ME}/identities/{{identity:str}}", _PROVEN, errors=_BOUND)
    async def unlink_own_identity(self, call: Call, identity: str) -> LinkedIdentityList:
        """Unlink an identity provider: sessions that it opened for you end. Answers those that are left."""
        check_own_account(call.request)
        user_id = session_of(call.request.scope).session.user_id
        await self._identity.people.unlink(user_id, _uuid(identity, "linked identity"), self._clock())
        return await self.list_own_identities(call)

    @_operation("GET", f"{_ME}/passkeys", _OWN)
    async def list_own_passkeys(self, call: Call) -> PasskeyList:
        """Your passkeys."""
        found = await self._identity.passkeys.of_user(session_of(call.request.scope).session.user_id)
        return PasskeyList(data=[passkey_object(each) for each in found], has_more=False)

    @_operation("PATCH", f"{_ME}/passkeys/{{passkey:str}}", _PROVEN, errors=_BOUND)
    async def rename_own_passkey(self, call: Call, passkey: str, body: PasskeyName) -> PasskeyObject:
        """Give a passkey another name."""
        check_own_account(call.request)
        user_id = session_of(call.request.scope).session.user_id
        return passkey_object(await self._identity.passkeys.rename(user_id, _uuid(passkey, "passkey"), body.name))

    @_operation("DELETE", f"{_ME}/passkeys/{{passkey:str}}", _PROVEN, errors=_BOUND)
    async def remove_own_passkey(self, call: Call, passkey: str) -> PasskeyList:
        """Remove a passkey: nobody signs in with it any more. Answers those that are left."""
        check_own_account(call.request)
        await self._identity.passkeys.remove(session_of(call.request.scope).session.user_id, _uuid(passkey, "passkey"))
        return await self.list_own_passkeys(call)


def _shown(provider: Provider) -> IdentityProviderObject:
    return show(
        IdentityProviderObject,
        provider,
        domains=list(provider.domains),
        groups=[
            show(ProviderGroupObject, each, group=each.group_id, tenant=each.tenant_id, project=each.project_id)
            for each in provider.groups
        ],
        redirect_path="/console/provider",
        logout_path=f"/oidc/{provider.id}/logout",
    )


async def _group(gateway: Gateway, one: ProviderGroup, tenant_id: _Tenant, path: str) -> GroupRole:
    """The group's role with ids in place of names. Raises InvalidField."""
    if one.tenant is not None:
        tenant = await Directory(gateway.services.database).tenant(one.tenant)
        if tenant is None or tenant_id not in (None, tenant.id):
            raise InvalidField(f"{path}.tenant", f"there is no tenant {one.tenant[:_SHOWN]!r} here")
        tenant_id = tenant.id
    if one.project is None:
        return GroupRole(one.group, one.role, tenant_id)
    project = None if tenant_id is None else await project_named(gateway, tenant_id, one.project)
    if project is None:
        raise InvalidField(f"{path}.project", f"there is no project {one.project[:_SHOWN]!r} there")
    return GroupRole(one.group, one.role, tenant_id, project.id)


def _provider_of(request: Request[Any, Any, Any]) -> UUID:
    return _uuid(request.path_params["provider"], "identity provider")


def _uuid(text: str, what: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise NotFound(f"There is no {what} {text[:_SHOWN]!r}.") from error
