"""Proofs of the routes of users: signing in, one's own account, members and invitations."""

from __future__ import annotations

import base64
import itertools
from typing import Any
from uuid import UUID

from sqlalchemy import delete, update

from audit_log.actors import acting_as
from storage.database.base import from_instant
from tenancy.principals import Membership, Principal
from tenancy.users.accounts import User
from tenancy.users.identifiers import invitation_public_id, session_public_id, user_public_id
from tenancy.users.links import Link, LinkKind
from tenancy.users.members import Scope
from tenancy.users.tables import Credential, UserSession
from tests.gateway.access.proofs import Call, proof
from tests.gateway.access.world import Place, World
from tests.gateway.browser import CLIENT, OWN, PASSWORD, TESTER, code_now, make_user

_numbers = itertools.count(1)


def _email() -> str:
    return f"new{next(_numbers)}@example.com"


async def _member(world: World, place: Place, *, password: bool = False) -> User:
    """A new user with a role in the place's tenant alone."""
    role = ("viewer", place.tenant_id, None)
    return await make_user(world.stack.users, _email(), role, password=PASSWORD if password else None)  # type: ignore[arg-type]


async def _link(world: World, user: User, kind: LinkKind) -> str:
    with acting_as(TESTER):
        return (await world.stack.users.links.create(user.id, kind, world.stack.users.clock())).token


async def _invite(world: World, scope: Scope) -> Link:
    users, owner = world.stack.users, Principal("command", UUID(int=1), "t", "t", (Membership("owner"),))
    with acting_as(TESTER):
        return await users.links.invite(owner, _email(), "viewer", scope, users.clock())


async def _own(world: World, place: Place) -> UUID:
    """The id of the user whose session the place has: as it was when it signed in, and without any credential."""
    users, session_id = world.stack.users, world.sessions[place.keys["session"]]
    now, mac = from_instant(users.clock()), users.sessions.token_mac(place.keys["session"].split()[1])
    as_made: dict[str, Any] = {"mac": mac, "previous_mac": None, "previous_until": None, "rotate": 0}
    async with world.stack.database.transaction() as session:
        row = await session.get_one(UserSession, session_id)
        again = as_made | {"revoked_at": None, "proven_at": now, "seen_at": now}
        await session.execute(update(UserSession).where(UserSession.id == session_id).values(**again))
        await session.execute(delete(Credential).where(Credential.user_id == row.user_id))
    users.authenticator._forget_all()
    return row.user_id


@proof("redeem_link_page")
async def _(world: World, place: Place) -> Call:
    return Call()


@proof("admin_sign_in")
async def _(world: World, place: Place) -> Call:
    user = await _member(world, place, password=True)
    return Call(body={"email": user.email, "password": PASSWORD}, headers=OWN)


@proof("admin_sign_in_by_link")
async def _(world: World, place: Place) -> Call:
    return Call(body={"token": await _link(world, await _member(world, place), "sign_in")}, headers=OWN)


@proof("admin_second_factor")
async def _(world: World, place: Place) -> Call:
    users, user = world.stack.users, await _member(world, place, password=True)
    with acting_as(TESTER):
        made = await users.second_factors.begin(user.id, users.clock())
        key = base64.b32decode(made.secret)
        await users.second_factors.confirm(user.id, code_now(key, -1), users.clock())
        step = await users.sign_in.with_password(user.email, PASSWORD, CLIENT)
    return Call(body={"code": code_now(key)}, headers={**OWN, "cookie": f"turnpike-step={step.token}"})


@proof("admin_accept_invitation")
async def _(world: World, place: Place) -> Call:
    link = await _invite(world, Scope(place.tenant_id))
    return Call(body={"token": link.token, "name": "New", "password": PASSWORD}, headers=OWN)


@proof("admin_redeem_password_reset")
async def _(world: World, place: Place) -> Call:
    token = await _link(world, await _member(world, place), "password_reset")
    return Call(body={"token": token, "password": PASSWORD}, headers=OWN)


@proof("admin_get_session", "admin_list_sessions", "admin_get_own_user", by="session")
async def _(world: World, place: Place) -> Call:
    return Call(tells=(user_public_id(await _own(world, place)),))


@proof("admin_sign_out", "admin_end_all_sessions", "admin_set_up_totp", "admin_remove_totp", by="session")
async def _(world: World, place: Place) -> Call:
    await _own(world, place)
    return Call()


@proof("admin_change_own_user", by="session")
async def _(world: World, place: Place) -> Call:
    await _own(world, place)
    return Call(body={"name": "Another"})


@proof("admin_change_password", by="session")
async def _(world: World, place: Place) -> Call:
    await _own(world, place)
    return Call(body={"new": PASSWORD})


@proof("admin_confirm_session", by="session")
async def _(world: World, place: Place) -> Call:
    return Call(body={"code": code_now(await _second_factor(world, await _own(world, place)))})


@proof("admin_renew_recovery_codes", by="session")
async def _(world: World, place: Place) -> Call:
    await _second_factor(world, await _own(world, place))
    return Call()


@proof("admin_confirm_totp", by="session")
async def _(world: World, place: Place) -> Call:
    users, user_id = world.stack.users, await _own(world, place)
    made = await users.second_factors.begin(user_id, users.clock())
    return Call(body={"code": code_now(base64.b32decode(made.secret))})


async def _second_factor(world: World, user_id: UUID) -> bytes:
    """The key of the user's new second factor."""
    users = world.stack.users
    with acting_as(TESTER):
        key = base64.b32decode((await users.second_factors.begin(user_id, users.clock())).secret)
        await users.second_factors.confirm(user_id, code_now(key, -1), users.clock())
    return key


@proof("admin_end_session", by="session")
async def _(world: World, place: Place) -> Call:
    users, user_id = world.stack.users, await _own(world, place)
    async with world.stack.database.transaction() as session:
        made = await users.sessions.create(session, user_id, "test", CLIENT, users.clock())
    return Call({"session": session_public_id(made.id)})


@proof("admin_list_users", by="operator_key", quiet="it takes a role at the platform")
async def _(world: World, place: Place) -> Call:
    return Call()


@proof("admin_list_platform_members", by="operator_key", quiet="it takes a role at the platform")
async def _(world: World, place: Place) -> Call:
    user = await make_user(world.stack.users, _email(), "viewer", password=None)
    return Call(tells=(user_public_id(user.id),))


@proof("admin_get_user", quiet="it takes a role where the user has one")
async def _(world: World, place: Place) -> Call:
    user = await _member(world, place)
    return Call({"user": user_public_id(user.id)}, tells=(user.email,))


@proof("admin_create_user_link", "admin_disable_user", "admin_enable_user", "admin_end_user_sessions")
async def _(world: World, place: Place) -> Call:
    return Call({"user": user_public_id((await _member(world, place)).id)}, body={})


@proof("admin_set_platform_member", by="operator_key")
async def _(world: World, place: Place) -> Call:
    user = await make_user(world.stack.users, _email(), "viewer", password=None)
    shared = frozenset({"user"})  # whoever has no role any more may be given one again
    return Call({"user": user_public_id(user.id)}, body={"role": "finance"}, shared=shared)


@proof("admin_remove_platform_member", by="operator_key")
async def _(world: World, place: Place) -> Call:
    user = await make_user(world.stack.users, _email(), "viewer", password=None)
    return Call({"user": user_public_id(user.id)})


@proof("admin_list_platform_invitations", by="operator_key", quiet="it takes a role at the platform")
async def _(world: World, place: Place) -> Call:
    return Call(tells=(invitation_public_id((await _invite(world, Scope())).id),))


@proof("admin_create_platform_invitation", by="operator_key")
async def _(world: World, place: Place) -> Call:
    return Call(body={"email": _email(), "role": "viewer"})


@proof("admin_withdraw_platform_invitation", by="operator_key")
async def _(world: World, place: Place) -> Call:
    return Call({"invitation": invitation_public_id((await _invite(world, Scope())).id)})


@proof("admin_list_tenant_members", quiet="it takes a role at the whole tenant")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, tells=((await _member(world, place)).email,))


@proof("admin_set_tenant_member")
async def _(world: World, place: Place) -> Call:
    user = user_public_id((await _member(world, place)).id)
    return Call({"tenant": place.tenant_name, "user": user}, body={"role": "finance"})


@proof("admin_remove_tenant_member")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name, "user": user_public_id((await _member(world, place)).id)})


@proof("admin_list_tenant_invitations", quiet="it takes a role at the whole tenant")
async def _(world: World, place: Place) -> Call:
    made = await _invite(world, Scope(place.tenant_id))
    return Call({"tenant": place.tenant_name}, tells=(invitation_public_id(made.id),))


@proof("admin_create_tenant_invitation")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, body={"email": _email(), "role": "viewer"})


@proof("admin_withdraw_tenant_invitation")
async def _(world: World, place: Place) -> Call:
    made = await _invite(world, Scope(place.tenant_id))
    return Call({"tenant": place.tenant_name, "invitation": invitation_public_id(made.id)})


def _project(place: Place) -> dict[str, str]:
    return {"tenant": place.tenant_name, "project": place.project_name}


async def _project_member(world: World, place: Place) -> User:
    role = ("viewer", place.tenant_id, place.project_id)
    return await make_user(world.stack.users, _email(), role, password=None)  # type: ignore[arg-type]


@proof("admin_list_project_members")
async def _(world: World, place: Place) -> Call:
    return Call(_project(place), tells=((await _project_member(world, place)).email,))


@proof("admin_set_project_member")
async def _(world: World, place: Place) -> Call:
    user = user_public_id((await _project_member(world, place)).id)
    return Call({**_project(place), "user": user}, body={"role": "developer"})


@proof("admin_remove_project_member")
async def _(world: World, place: Place) -> Call:
    return Call({**_project(place), "user": user_public_id((await _project_member(world, place)).id)})


@proof("admin_list_project_invitations")
async def _(world: World, place: Place) -> Call:
    made = await _invite(world, Scope(place.tenant_id, place.project_id))
    return Call(_project(place), tells=(invitation_public_id(made.id),))


@proof("admin_create_project_invitation")
async def _(world: World, place: Place) -> Call:
    return Call(_project(place), body={"email": _email(), "role": "viewer"})


@proof("admin_withdraw_project_invitation")
async def _(world: World, place: Place) -> Call:
    made = await _invite(world, Scope(place.tenant_id, place.project_id))
    return Call({**_project(place), "invitation": invitation_public_id(made.id)})
