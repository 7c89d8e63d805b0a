"""Proofs of users, members, invitations and sessions."""

from __future__ import annotations

import base64

from tenancy.users.accounts import User
from tenancy.users.identifiers import user_public_id
from tests.gateway.access.proofs import Call, proof
from tests.gateway.access.proofs_admin import fresh, made
from tests.gateway.access.world import Place, World
from tests.gateway.browser import PASSWORD, TESTER, Browser, acting_as, add_totp, browser_of, code_now, make_user


async def a_user(world: World, place: Place) -> User:
    """A new user with a role in the place's tenant."""
    users = world.stack.gateway.services.users
    return await make_user(users, f"{fresh('u')}@example.com", ("viewer", place.tenant_id, None))


async def signed_in(world: World, place: Place) -> tuple[Browser, dict[str, str], User]:
    """A new user of the place in a browser, and the header with his cookie."""
    user = await a_user(world, place)
    browser = browser_of(world.stack)
    world.browsers.append(browser)
    await browser.sign_in(user.email)
    return browser, _cookie(browser), user


def _cookie(browser: Browser) -> dict[str, str]:
    return {"cookie": f"turnpike={browser.token}"}


@proof("admin_get_user", "admin_disable_user", "admin_end_user_sessions", by="operator_key")
async def _(world: World, place: Place) -> Call:
    return Call({"user": user_public_id((await a_user(world, place)).id)})


@proof("admin_enable_user", by="operator_key")
async def _(world: World, place: Place) -> Call:
    user = user_public_id((await a_user(world, place)).id)
    await made(world, place, f"/users/{user}/disable", {}, "operator_key")
    return Call({"user": user})


@proof("admin_create_user_link", by="operator_key")
async def _(world: World, place: Place) -> Call:
    return Call({"user": user_public_id((await a_user(world, place)).id)}, body={"kind": "password_reset"})


@proof("admin_list_users", by="operator_key")
async def _(world: World, place: Place) -> Call:
    return Call(query={"limit": 100}, tells=((await a_user(world, place)).email,))


@proof("admin_list_tenant_members")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, tells=((await a_user(world, place)).email,))


@proof("admin_set_tenant_member", "admin_remove_tenant_member", quiet="an owner is changed by owners only")
async def _(world: World, place: Place) -> Call:
    user = user_public_id((await a_user(world, place)).id)
    return Call({"tenant": place.tenant_name, "user": user}, body={"role": "developer"})


@proof("admin_set_project_member", "admin_remove_project_member")
async def _(world: World, place: Place) -> Call:
    user = user_public_id((await a_user(world, place)).id)
    path = f"/tenants/{place.tenant_name}/projects/{place.project_name}/members/{user}"
    await made(world, place, path, {"role": "viewer"}, method="PUT")
    names = {"tenant": place.tenant_name, "project": place.project_name, "user": user}
    return Call(names, body={"role": "developer"})


@proof("admin_set_platform_member", "admin_remove_platform_member", by="operator_key")
async def _(world: World, place: Place) -> Call:
    users = world.stack.gateway.services.users
    user = await make_user(users, f"{fresh('u')}@example.com", "viewer")
    return Call({"user": user_public_id(user.id)}, body={"role": "developer"})


async def _invited(world: World, place: Place, at: str, by: str = "admin_key") -> str:
    email = f"{fresh('i')}@example.com"
    await made(world, place, f"{at}/invitations", {"email": email, "role": "viewer"}, by)
    listed = await made(world, place, f"{at}/invitations", None, by, "GET")
    return str(next(one["id"] for one in listed["data"] if one["email"] == email))


@proof("admin_create_tenant_invitation")
async def _(world: World, place: Place) -> Call:
    return Call({"tenant": place.tenant_name}, body={"email": f"{fresh('i')}@example.com", "role": "viewer"})


@proof("admin_create_project_invitation")
async def _(world: World, place: Place) -> Call:
    names = {"tenant": place.tenant_name, "project": place.project_name}
    return Call(names, body={"email": f"{fresh('i')}@example.com", "role": "viewer"})


@proof("admin_create_platform_invitation", by="operator_key")
async def _(world: World, place: Place) -> Call:
    return Call(body={"email": f"{fresh('i')}@example.com", "role": "viewer"})


@proof("admin_withdraw_tenant_invitation")
async def _(world: World, place: Place) -> Call:
    invitation = await _invited(world, place, f"/tenants/{place.tenant_name}")
    return Call({"tenant": place.tenant_name, "invitation": invitation})


@proof("admin_withdraw_project_invitation")
async def _(world: World, place: Place) -> Call:
    invitation = await _invited(world, place, f"/tenants/{place.tenant_name}/projects/{place.project_name}")
    return Call({"tenant": place.tenant_name, "project": place.project_name, "invitation": invitation})


@proof("admin_withdraw_platform_invitation", by="operator_key")
async def _(world: World, place: Place) -> Call:
    return Call({"invitation": await _invited(world, place, "", "operator_key")})


@proof("admin_list_platform_members", "admin_list_platform_invitations", by="operator_key")
async def _(world: World, place: Place) -> Call:
    return Call()


@proof("admin_accept_invitation")
async def _(world: World, place: Place) -> Call:
    body = {"email": f"{fresh('i')}@example.com", "role": "viewer"}
    invitation = await made(world, place, f"/tenants/{place.tenant_name}/invitations", body)
    return Call(body={"token": invitation["token"], "name": "Ada", "password": PASSWORD})


@proof("admin_redeem_password_reset")
async def _(world: World, place: Place) -> Call:
    users = world.stack.gateway.services.users
    with acting_as(TESTER):
        link = await users.links.create((await a_user(world, place)).id, "password_reset", users.clock())
    return Call(body={"token": link.token, "password": f"{PASSWORD} again"})


@proof("admin_sign_in_by_link")
async def _(world: World, place: Place) -> Call:
    users = world.stack.gateway.services.users
    with acting_as(TESTER):
        link = await users.links.create((await a_user(world, place)).id, "sign_in", users.clock())
    return Call(body={"token": link.token})


@proof("admin_sign_in")
async def _(world: World, place: Place) -> Call:
    return Call(body={"email": (await a_user(world, place)).email, "password": PASSWORD})


@proof("admin_second_factor")
async def _(world: World, place: Place) -> Call:
    browser, _, user = await signed_in(world, place)
    key, _ = await add_totp(browser)
    await browser.call("DELETE", "/session", status=204)
    answer = await world.call("POST", "/admin/v1/session", {}, body={"email": user.email, "password": PASSWORD})
    step = answer.cookies["turnpike-step"]
    return Call(body={"code": code_now(key)}, headers={"cookie": f"turnpike-step={step}"})


@proof(
    "admin_sign_out",
    "admin_get_session",
    "admin_list_sessions",
    "admin_end_all_sessions",
    "admin_get_own_user",
    "admin_set_up_totp",
    by="session",
)
async def _(world: World, place: Place) -> Call:
    return Call(signed_in=(await signed_in(world, place))[1])


@proof("admin_confirm_session", by="session")
async def _(world: World, place: Place) -> Call:
    return Call(body={"password": PASSWORD}, signed_in=(await signed_in(world, place))[1])


@proof("admin_end_session", by="session")
async def _(world: World, place: Place) -> Call:
    browser, cookie, user = await signed_in(world, place)
    other = browser_of(world.stack)
    world.browsers.append(other)
    await other.sign_in(user.email)
    sessions = (await browser.get("/sessions"))["data"]
    session = next(one["id"] for one in sessions if not one.get("current"))
    return Call({"session": session}, signed_in=_cookie(browser) or cookie)


@proof("admin_change_own_user", by="session")
async def _(world: World, place: Place) -> Call:
    return Call(body={"name": "Ada"}, signed_in=(await signed_in(world, place))[1])


@proof("admin_change_password", by="session")
async def _(world: World, place: Place) -> Call:
    body = {"current": PASSWORD, "new": f"{PASSWORD} again"}
    return Call(body=body, signed_in=(await signed_in(world, place))[1])


@proof("admin_confirm_totp", by="session")
async def _(world: World, place: Place) -> Call:
    browser, _, _ = await signed_in(world, place)
    made_ = await browser.post("/users/me/totp", status=201)
    return Call(body={"code": code_now(base64.b32decode(made_["secret"]))}, signed_in=_cookie(browser))


@proof("admin_renew_recovery_codes", "admin_remove_totp", by="session")
async def _(world: World, place: Place) -> Call:
    browser, _, _ = await signed_in(world, place)
    await add_totp(browser)
    return Call(signed_in=_cookie(browser))
