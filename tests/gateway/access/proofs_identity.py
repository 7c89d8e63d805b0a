"""Proofs of identity providers, passkeys and directories."""

from __future__ import annotations

import time
from uuid import UUID

from storage.database.base import from_instant, new_id
from tenancy.identity.provider_client import Metadata, _Kept
from tenancy.identity.tables import IdentityProvider, Passkey, UserIdentity
from tests.gateway.access.proofs import Call, proof
from tests.gateway.access.proofs_admin import fresh, made
from tests.gateway.access.proofs_users import _cookie, signed_in
from tests.gateway.access.world import Place, World
from tests.gateway.admin.authenticator import Authenticator
from tests.gateway.browser import Browser

_OWNERS = "owners alone decide by whom people are let in"


def _issuer(world: World) -> str:
    """The issuer of a provider that has answered: nobody asks it again."""
    issuer = f"https://{fresh('idp')}.example"
    pages = {name: f"{issuer}/{name}" for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")}
    client = world.stack.gateway.services.identity.sign_in._client
    client._kept[issuer] = _Kept(Metadata(issuer=issuer, **pages), time.monotonic())
    return issuer


async def _provider(world: World, tenant_id: UUID | None) -> str:
    row = IdentityProvider(
        id=new_id(), tenant_id=tenant_id, name=fresh("idp"), issuer=_issuer(world), client_id="turnpike", secret=None
    )
    row.scopes, row.groups_claim, row.acr_values, row.owner_by_group, row.enabled = "openid", "groups", "", 0, 1
    row.created_at = from_instant(world.stack.users.clock())
    identity = str(row.id)
    async with world.stack.database.transaction() as session:
        session.add(row)
    return identity


def _new(world: World) -> dict[str, str]:
    return {"name": fresh("idp"), "issuer": _issuer(world), "client_id": "turnpike"}


@proof("admin_create_tenant_identity_provider", quiet=_OWNERS)
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, body=_new(world))


@proof("admin_create_platform_identity_provider", by="operator_key", quiet=_OWNERS)
async def _(world: World, place: Place) -> Call:
    return Call(body=_new(world))


@proof("admin_list_tenant_identity_providers")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, tells=(await _provider(world, place.tenant_id),))


@proof("admin_list_platform_identity_providers", by="operator_key")
async def _(world: World, place: Place) -> Call:
    return Call(tells=(await _provider(world, None),))


@proof("admin_change_tenant_identity_provider", "admin_remove_tenant_identity_provider", quiet=_OWNERS)
async def _(world: World, place: Place) -> Call:
    path = {"tenant": place.tenant_name, "provider": await _provider(world, place.tenant_id)}
    return Call(path, body={"enabled": False})


@proof(
    "admin_change_platform_identity_provider",
    "admin_remove_platform_identity_provider",
    by="operator_key",
    quiet=_OWNERS,
)
async def _(world: World, place: Place) -> Call:
    return Call({"provider": await _provider(world, None)}, body={"enabled": False})


@proof("admin_set_tenant_identity_provider_groups")
async def _(world: World, place: Place) -> Call:
    path = {"tenant": place.tenant_name, "provider": await _provider(world, place.tenant_id)}
    return Call(path, body={"groups": [{"group": "g-1", "role": "viewer"}]})


@proof("admin_set_platform_identity_provider_groups", by="operator_key")
async def _(world: World, place: Place) -> Call:
    return Call({"provider": await _provider(world, None)}, body={"groups": [{"group": "g-1", "role": "viewer"}]})


@proof("admin_set_tenant_identity_provider_domains", by="operator_key")
async def _(world: World, place: Place) -> Call:
    path = {"tenant": place.tenant_name, "provider": await _provider(world, place.tenant_id)}
    return Call(path, body={"domains": [f"{fresh('d')}.example"]})


@proof("admin_set_platform_identity_provider_domains", by="operator_key")
async def _(world: World, place: Place) -> Call:
    return Call({"provider": await _provider(world, None)}, body={"domains": [f"{fresh('d')}.example"]})


async def _directory(world: World, place: Place) -> dict[str, str]:
    await made(world, place, f"/tenants/{place.tenant_name}/directory/token", {})
    return {"tenant": place.tenant_name}


@proof("admin_create_directory_token", "admin_get_directory", "admin_remove_directory")
async def _(world: World, place: Place) -> Call:
    return Call(await _directory(world, place))


@proof("admin_change_directory")
async def _(world: World, place: Place) -> Call:
    return Call(await _directory(world, place), body={"member_role": "viewer"})


@proof("admin_list_directory_people", "admin_list_directory_groups", "admin_list_former_members_keys")
async def _(world: World, place: Place) -> Call:
    return Call(await _directory(world, place))


@proof("admin_set_directory_group_role")
async def _(world: World, place: Place) -> Call:
    path = await _directory(world, place)
    people = world.stack.gateway.services.identity.directory
    group = await people.put_group(place.tenant_id, fresh("group"), "", [])
    return Call({**path, "group": str(group.id)}, body={"role": "viewer"})


@proof("admin_get_sign_in_policy")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name})


@proof("admin_set_sign_in_policy", quiet=_OWNERS)
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, body={"provider_only": False, "break_glass": []})


async def _at_home(world: World, place: Place) -> tuple[Browser, UUID]:
    """A signed-in user whose browser knows us by a name."""
    browser, _, user = await signed_in(world, place)
    return browser, user.id


@proof("admin_list_own_identities", "admin_list_own_passkeys", "admin_begin_passkey_proof", by="session")
async def _(world: World, place: Place) -> Call:
    return Call(signed_in=(await signed_in(world, place))[1])


@proof("admin_begin_new_passkey", by="session")
async def _(world: World, place: Place) -> Call:
    return Call(signed_in=(await signed_in(world, place))[1])


@proof("admin_unlink_own_identity", by="session")
async def _(world: World, place: Place) -> Call:
    browser, user_id = await _at_home(world, place)
    provider, identity = await _provider(world, place.tenant_id), new_id()
    async with world.stack.database.transaction() as session:
        session.add(
            UserIdentity(
                id=identity,
                user_id=user_id,
                provider_id=UUID(provider),
                issuer="https://idp.example",
                subject=fresh("s"),
                email="",
                created_at=from_instant(0),
            )
        )
    return Call({"identity": str(identity)}, signed_in=_cookie(browser))


@proof("admin_rename_own_passkey", "admin_remove_own_passkey", by="session")
async def _(world: World, place: Place) -> Call:
    browser, user_id = await _at_home(world, place)
    passkey = new_id()
    async with world.stack.database.transaction() as session:
        session.add(
            Passkey(
                id=passkey,
                user_id=user_id,
                credential_id=passkey.bytes,
                public_key=b"",
                counter=0,
                name="Laptop",
                created_at=from_instant(0),
            )
        )
    return Call({"passkey": str(passkey)}, body={"name": "Phone"}, signed_in=_cookie(browser))


@proof("admin_begin_provider_proof", by="session")
async def _(world: World, place: Place) -> Call:
    provider = await _provider(world, place.tenant_id)
    return Call(body={"provider": provider, "purpose": "link"}, signed_in=(await signed_in(world, place))[1])


async def _asked(world: World, place: Place, path: str) -> tuple[Browser, Authenticator, str, dict[str, str]]:
    """A browser that was asked for a passkey, with its cookies."""
    browser, _ = await _at_home(world, place)
    device = Authenticator("http://localhost")
    asked = await browser.post(path)
    cookies = {"cookie": f"turnpike={browser.token}; turnpike-proof={browser.http.cookies['turnpike-proof']}"}
    return browser, device, asked["options"].replace('"127.0.0.1"', '"localhost"'), cookies


@proof("admin_add_passkey", by="session")
async def _(world: World, place: Place) -> Call:
    _, device, options, cookies = await _asked(world, place, "/users/me/passkeys/challenge")
    at = {"host": "localhost", "origin": "http://localhost"}
    return Call(body={"credential": device.make(options), "name": "Laptop"}, signed_in=cookies, headers=at)


@proof("admin_confirm_by_passkey", by="session")
async def _(world: World, place: Place) -> Call:
    browser, device, options, _ = await _asked(world, place, "/users/me/passkeys/challenge")
    at = {"host": "localhost", "origin": "http://localhost", "x-turnpike-csrf": "1"}
    body = {"credential": device.make(options), "name": "Laptop"}
    await browser.call("POST", "/users/me/passkeys", body, status=201, headers=at)
    asked = await browser.post("/session/confirm/passkey/challenge")
    cookies = {"cookie": f"turnpike={browser.token}; turnpike-proof={browser.http.cookies['turnpike-proof']}"}
    credential = device.sign(asked["options"].replace('"127.0.0.1"', '"localhost"'))
    del at["x-turnpike-csrf"]
    return Call(body={"credential": credential}, signed_in=cookies, headers=at)
