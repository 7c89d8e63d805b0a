"""Members, invitations, resets and users over HTTP: who may do what to whom, and what takes effect when."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qs

import pytest

from tenancy.rights.key_limits import KeyLimits
from tenancy.users.identifiers import user_public_id
from tests.gateway.browser import PASSWORD, Browser, browser_of, make_user
from tests.gateway.stack import Stack

pytestmark = pytest.mark.slow

NEW = "an entirely new password"


def path_of(link: dict[str, Any]) -> tuple[str, str]:
    """The kind and the token in the path of a link."""
    ((kind, (token,)),) = parse_qs(link["path"].partition("#")[2]).items()
    return kind, token


async def signed_in(stack: Stack, email: str, *roles: Any) -> Browser:
    await make_user(stack.users, email, *roles)
    browser = browser_of(stack)
    await browser.sign_in(email)
    return browser


async def test_an_invitation_is_accepted_once(stack: Stack) -> None:
    async with await signed_in(stack, "ann@x.com", ("owner", stack.tenant.id, None)) as ann, browser_of(stack) as bob:
        at = "/tenants/demo"
        first = await ann.post(f"{at}/invitations", {"email": "bob@x.com", "role": "developer"}, 201)
        link = await ann.post(f"{at}/invitations", {"email": "Bob@X.com", "role": "viewer"}, 201)
        (listed,) = (await ann.get(f"{at}/invitations"))["data"]
        assert (listed["email"], listed["role"], listed["invited_by"]) == ("bob@x.com", "viewer", "ann@x.com")
        assert path_of(link) == ("invitation", link["token"])
        accept = {"token": link["token"], "name": "Bob", "password": PASSWORD}
        replaced = await bob.post("/invitations/accept", {**accept, "token": first["token"]}, 401)
        assert replaced["error"]["code"] == "link_not_valid"
        await bob.post("/invitations/accept", {**accept, "password": "short"}, 400)
        made = await bob.post("/invitations/accept", accept)
        assert [one["role"] for one in made["memberships"]] == ["viewer"]
        assert bob.token == ""
        await bob.post("/invitations/accept", accept, 401)
        await bob.sign_in("bob@x.com")
        await bob.get(f"{at}/members")
        await bob.post(f"{at}/invitations", {"email": "c@x.com", "role": "viewer"}, 403)
        assert [one["email"] for one in (await ann.get(f"{at}/members"))["data"]] == ["ann@x.com", "bob@x.com"]
        # One who is a user already accepts with its password, or signed in: nobody else can.
        more = await ann.post(f"{at}/projects/default/invitations", {"email": "bob@x.com", "role": "admin"}, 201)
        async with browser_of(stack) as other:
            await other.post("/invitations/accept", {"token": more["token"], "name": "Eve", "password": NEW}, 401)
        both = await bob.post("/invitations/accept", {"token": more["token"]})
        assert [one["role"] for one in both["memberships"]] == ["viewer", "admin"]


async def test_an_invitation_expires_and_is_withdrawn(stack: Stack) -> None:
    async with await signed_in(stack, "ann@x.com", "owner") as ann, browser_of(stack) as bob:
        link = await ann.post("/invitations", {"email": "bob@x.com", "role": "viewer"}, 201)
        accept = {"token": link["token"], "name": "Bob", "password": PASSWORD}
        stack.users.clock.ahead = 7 * 86_400 * 1_000_000
        assert await bob.status("POST", "/invitations/accept", accept) == 401
        stack.users.clock.ahead = 0
        (listed,) = (await ann.get("/invitations"))["data"]
        assert await ann.status("DELETE", f"/tenants/demo/invitations/{listed['id']}") == 404
        assert await ann.status("DELETE", f"/invitations/{listed['id']}") == 204
        assert await bob.status("POST", "/invitations/accept", accept) == 401


async def test_a_role_takes_effect_at_once_and_changes_the_token(stack: Stack) -> None:
    async with (
        await signed_in(stack, "ann@x.com", ("owner", stack.tenant.id, None)) as ann,
        await signed_in(stack, "bob@x.com", ("viewer", stack.tenant.id, None)) as bob,
    ):
        at, before = "/tenants/demo", bob.token
        bob_id = (await bob.get("/users/me"))["id"]
        await bob.post(f"{at}/invitations", {"email": "c@x.com", "role": "viewer"}, 403)
        await ann.call("PUT", f"{at}/members/{bob_id}", {"role": "admin"})
        await bob.post(f"{at}/invitations", {"email": "c@x.com", "role": "viewer"}, 201)
        assert bob.token not in ("", before)
        async with browser_of(stack) as late:  # a request on its way with the token before
            late.http.cookies.set("turnpike", before)
            await late.get("/session")
            stack.users.clock.ahead = 31_000_000
            stack.users.authenticator.cache.forget_all()
            await late.get("/session", 401)
            await bob.get("/session")
            stack.users.clock.ahead = 0
        await ann.call("DELETE", f"{at}/members/{bob_id}", status=204)
        await bob.get(f"{at}/members", 403)
        assert (await bob.get("/users/me"))["memberships"] == []


async def test_owners_are_made_by_owners_and_nobody_raises_himself(stack: Stack) -> None:
    tenant = stack.tenant.id
    async with (
        await signed_in(stack, "ann@x.com", ("owner", tenant, None)) as ann,
        await signed_in(stack, "bob@x.com", ("admin", tenant, None)) as bob,
    ):
        at = "/tenants/demo"
        ann_id, bob_id = (await ann.get("/users/me"))["id"], (await bob.get("/users/me"))["id"]
        await bob.post(f"{at}/invitations", {"email": "c@x.com", "role": "owner"}, 403)
        await bob.call("PUT", f"{at}/members/{ann_id}", {"role": "viewer"}, status=403)
        await bob.call("DELETE", f"{at}/members/{ann_id}", status=403)
        await bob.post(f"/users/{ann_id}/links", status=403)
        await bob.post(f"/users/{ann_id}/disable", status=403)
        own = await bob.call("PUT", f"{at}/members/{bob_id}", {"role": "finance"}, status=409)
        assert own["error"]["code"] == "wrong_state"
        assert (await ann.call("DELETE", f"{at}/members/{ann_id}", status=409))["error"]["code"] == "last_owner"
        await ann.call("PUT", f"{at}/members/{bob_id}", {"role": "owner"})
        await ann.call("DELETE", f"{at}/members/{ann_id}", status=204)
        assert (await bob.call("DELETE", f"{at}/members/{bob_id}", status=409))["error"]["code"] == "last_owner"


async def test_of_two_last_owners_who_leave_at_once_one_stays(stack: Stack) -> None:
    async with await signed_in(stack, "a@x.com", "owner") as ann, await signed_in(stack, "b@x.com", "owner") as bob:
        ids = [(await each.get("/users/me"))["id"] for each in (ann, bob)]
        headers = {"x-turnpike-csrf": "1"}
        answers = await asyncio.gather(
            *(
                browser.http.delete(f"/admin/v1/members/{user}", headers=headers)
                for browser, user in zip((ann, bob), ids, strict=True)
            )
        )
        assert sorted(answer.status_code for answer in answers) == [204, 409]


async def test_another_tenants_users_do_not_exist(stack: Stack) -> None:
    other = await stack.tenancy.create_tenant("other")
    stranger = await make_user(stack.users, "eve@x.com", ("viewer", other.id, None))
    shared = await make_user(stack.users, "sam@x.com", ("viewer", other.id, None), ("viewer", stack.tenant.id, None))
    async with await signed_in(stack, "ann@x.com", ("owner", stack.tenant.id, None)) as ann:
        eve, sam = user_public_id(stranger.id), user_public_id(shared.id)
        for reference in (eve, "eve@x.com"):
            await ann.get(f"/users/{reference}", 404)
            await ann.post(f"/users/{reference}/links", status=404)
            await ann.post(f"/users/{reference}/disable", status=404)
        await ann.call("PUT", f"/tenants/demo/members/{eve}", {"role": "viewer"}, status=404)
        await ann.get("/users/%00", 404)
        await ann.post(f"/users/{sam}/disable", {"reason": "\0"}, 400)
        await ann.post("/tenants/demo/invitations", {"email": "a\0@x.com", "role": "viewer"}, 400)
        await ann.get("/tenants/other/members", 404)
        await ann.get("/members", 403)
        await ann.get("/users", 403)
        # Who belongs to two tenants cannot be taken over from one of them.
        seen = await ann.get(f"/users/{sam}")
        assert [one["tenant"] for one in seen["memberships"]] == [f"tenant_{stack.tenant.id.hex}"]
        await ann.post(f"/users/{sam}/links", status=403)
        # An invitation does not tell whether there is such a user.
        known = await ann.post("/tenants/demo/invitations", {"email": "eve@x.com", "role": "viewer"}, 201)
        new = await ann.post("/tenants/demo/invitations", {"email": "new@x.com", "role": "viewer"}, 201)
        assert known.keys() == new.keys()


async def test_a_reset_by_link_sets_the_password_and_ends_all_sessions(stack: Stack) -> None:
    async with (
        await signed_in(stack, "ann@x.com", "owner") as ann,
        await signed_in(stack, "bob@x.com", "viewer") as bob,
        browser_of(stack) as new,
    ):
        first = await ann.post("/users/bob@x.com/links", status=201)
        link = await ann.post("/users/bob@x.com/links", {"reason": "lost"}, 201)
        assert link["kind"] == "password_reset"
        await new.post("/password-resets/redeem", {"token": first["token"], "password": NEW}, 401)
        await new.post("/session/link", {"token": link["token"]}, 401)  # a link does one thing
        await new.post("/password-resets/redeem", {"token": link["token"], "password": NEW})
        assert new.token == ""
        await bob.get("/session", 401)
        await new.post("/password-resets/redeem", {"token": link["token"], "password": NEW}, 401)
        await new.sign_in("bob@x.com", PASSWORD, 401)
        await new.sign_in("bob@x.com", NEW)


async def test_a_disabled_user_is_out_at_once(stack: Stack) -> None:
    async with await signed_in(stack, "ann@x.com", "owner") as ann, await signed_in(stack, "bob@x.com", "admin") as bob:
        await bob.get("/session")
        link = await ann.post("/users/bob@x.com/links", {"kind": "sign_in"}, 201)
        assert (await ann.post("/users/bob@x.com/disable", {"reason": "left"}))["disabled_at"]
        await bob.get("/session", 401)
        refused = await bob.sign_in("bob@x.com", status=401)
        assert refused == await bob.sign_in("nobody@x.com", status=401)
        await bob.post("/session/link", {"token": link["token"]}, 401)
        await ann.post("/users/bob@x.com/enable")
        await bob.sign_in("bob@x.com")
        await bob.post("/users/ann@x.com/disable", status=403)
        await ann.post("/users/ann@x.com/disable", status=409)


async def test_a_link_signs_in_once(stack: Stack) -> None:
    user = await make_user(stack.users, "ann@x.com", "owner", password=None)
    async with browser_of(stack) as ann, browser_of(stack) as other:
        link = await stack.users.links.create(user.id, "sign_in", stack.users.clock())
        await ann.post("/session/link", {"token": "x" * 43}, 401)
        await ann.post("/session/link", {"token": link.token})
        await other.post("/session/link", {"token": link.token}, 401)
        assert (await ann.get("/users/me"))["has_password"] is False
        await ann.sign_in("ann@x.com", status=401)
        await ann.call("PATCH", "/users/me", {"email": "Ann@Example.com", "name": "Ann"})
        await ann.post("/users/me/password", {"new": NEW})
        await other.sign_in("ann@example.com", NEW)


async def test_a_key_with_limits_lets_nobody_in_without_them(stack: Stack) -> None:
    bob = await make_user(stack.users, "bob@x.com", ("viewer", stack.tenant.id, None))
    limits = KeyLimits(permissions=("members.read", "members.write"))
    in_an_hour = stack.users.clock() + 3_600_000_000
    keys = [
        await stack.tenancy.create_key(stack.tenant.id, None, limits=limits),
        await stack.tenancy.create_key(stack.tenant.id, None, expires_at=in_an_hour),
    ]
    at, user = "/admin/v1/tenants/demo", user_public_id(bob.id)
    for key in keys:
        headers = {"authorization": f"Bearer {key.key}"}
        invited = {"email": "a@x.com", "role": "viewer"}
        assert (await stack.http.get(f"{at}/members", headers=headers)).status_code == 200
        assert (await stack.http.post(f"{at}/invitations", headers=headers, json=invited)).status_code == 403
        assert (await stack.http.post(f"/admin/v1/users/{user}/links", headers=headers)).status_code == 403
        changed = await stack.http.put(f"{at}/members/{user}", headers=headers, json={"role": "owner"})
        assert changed.status_code == 403
    removed = await stack.http.delete(f"{at}/members/{user}", headers=headers)
    assert removed.status_code == 204, removed.text


@pytest.mark.parametrize("kind", ["admin", "operator"])
async def test_keys_manage_members_too(stack: Stack, kind: str) -> None:
    key = stack.admin_key if kind == "admin" else (await stack.tenancy.create_operator_key("op")).key
    headers = {"authorization": f"Bearer {key}"}
    made = await stack.http.post(
        "/admin/v1/tenants/demo/invitations", headers=headers, json={"email": "a@x.com", "role": "owner"}
    )
    assert made.status_code == 201, made.text
    assert (await stack.http.get("/admin/v1/users/me", headers=headers)).status_code == 403
    listed = await stack.http.get("/admin/v1/users", headers=headers)
    assert listed.status_code == (403 if kind == "admin" else 200)


async def test_a_link_from_before_ends_when_its_user_gains_a_role(stack: Stack) -> None:
    """Whoever made a link might give the roles that the user had then, not those it gains."""
    there = await stack.tenancy.create_tenant("beta")
    async with (
        await signed_in(stack, "ann@x.com", ("owner", stack.tenant.id, None)) as ann,
        await signed_in(stack, "bea@x.com", ("owner", there.id, None)) as bea,
        await signed_in(stack, "op@x.com", "owner") as operator,
        await signed_in(stack, "dev@x.com", ("developer", stack.tenant.id, None)) as dev,
        browser_of(stack) as other,
        browser_of(stack) as late,
    ):
        dev_id = (await dev.get("/users/me"))["id"]

        async def make(kind: str) -> dict[str, str]:
            made: dict[str, str] = await ann.post(f"/users/{dev_id}/links", {"kind": kind}, 201)
            return {"token": made["token"]}

        opened, old, reset = await make("sign_in"), None, await make("password_reset")
        await other.post("/session/link", opened)
        old = await make("sign_in")
        invited = await bea.post("/tenants/beta/invitations", {"email": "dev@x.com", "role": "owner"}, 201)
        accept = {"token": invited["token"]}
        # A session that a link opened may be somebody else's.
        assert await other.status("POST", "/invitations/accept", {**accept, "password": NEW, "name": "Dev"}) == 401
        assert await other.status("POST", "/invitations/accept", accept) == 400
        await dev.post("/invitations/accept", accept)
        assert await other.status("GET", "/session") == 401
        await dev.get("/tenants/beta/members")
        assert await late.status("POST", "/session/link", old) == 401
        assert await late.status("POST", "/password-resets/redeem", {**reset, "password": NEW}) == 401
        assert await ann.status("POST", f"/users/{dev_id}/links", {"kind": "sign_in"}) == 403
        # The same if somebody gives the role without an invitation.
        eve = await make_user(stack.users, "eve@x.com", ("viewer", stack.tenant.id, None))
        eve_id = user_public_id(eve.id)
        first = await ann.post(f"/users/{eve_id}/links", {"kind": "sign_in"}, 201)
        await late.post("/session/link", {"token": first["token"]})
        second = await ann.post(f"/users/{eve_id}/links", {"kind": "password_reset"}, 201)
        await operator.call("PUT", f"/members/{eve_id}", {"role": "owner"})
        assert await late.status("GET", "/session") == 401
        assert await late.status("POST", "/password-resets/redeem", {"token": second["token"], "password": NEW}) == 401


async def test_an_invitation_ends_with_its_inviters_right(stack: Stack) -> None:
    tenant = stack.tenant.id
    async with (
        await signed_in(stack, "ann@x.com", ("owner", tenant, None)) as ann,
        await signed_in(stack, "bob@x.com", ("admin", tenant, None)) as bob,
        browser_of(stack) as back,
    ):
        at, bob_id = "/tenants/demo", (await bob.get("/users/me"))["id"]
        link = await bob.post(f"{at}/invitations", {"email": "back@x.com", "role": "admin"}, 201)
        accept = {"token": link["token"], "name": "Back", "password": PASSWORD}
        await ann.call("PUT", f"{at}/members/{bob_id}", {"role": "developer"})
        assert (await ann.get(f"{at}/invitations"))["data"] == []
        await back.post("/invitations/accept", accept, 401)
        await ann.call("PUT", f"{at}/members/{bob_id}", {"role": "admin"})
        await ann.call("DELETE", f"{at}/members/{bob_id}", status=204)
        await back.post("/invitations/accept", accept, 401)
        key = await ann.post(f"{at}/keys", {"name": "inviter"}, 201)
        bearer = {"authorization": f"Bearer {key['key']}"}
        invite = {"email": "back@x.com", "role": "admin"}
        link = await ann.call("POST", f"{at}/invitations", invite, status=201, headers=bearer)
        await ann.call("DELETE", f"{at}/keys/{key['id']}")
        await back.post("/invitations/accept", {**accept, "token": link["token"]}, 401)


async def test_who_is_invited_takes_nobody_elses_address(stack: Stack) -> None:
    """An account is made for the address that was invited; another one must be an account's already."""
    await make_user(stack.users, "known@x.com", ("viewer", stack.tenant.id, None), password=NEW)
    async with (
        await signed_in(stack, "op@x.com", ("owner", stack.tenant.id, None)) as owner,
        browser_of(stack) as stranger,
        browser_of(stack) as victim,
    ):

        async def invite(email: str) -> str:
            path = f"/tenants/{stack.tenant.name}/invitations"
            return str((await owner.post(path, {"email": email, "role": "admin"}, 201))["token"])

        own, theirs = await invite("mallory@x.com"), await invite("victim@x.com")
        accept = {"token": own, "name": "M", "password": NEW}
        for email in ("victim@x.com", "nobody-yet@x.com"):
            refused = await stranger.post("/invitations/accept", {**accept, "email": email}, 401)
            assert refused["error"]["code"] == "sign_in_refused"
        wrong = {**accept, "email": "known@x.com", "password": "not that one's password"}
        assert await stranger.post("/invitations/accept", wrong, 401) == refused, "it does not tell who is a user"
        made = await victim.post("/invitations/accept", {"token": theirs, "name": "V", "password": NEW})
        assert made["email"] == "victim@x.com"
        known = await stranger.post("/invitations/accept", {**accept, "email": "known@x.com"})
        assert [one["role"] for one in known["memberships"]] == ["admin"]


async def test_an_invitation_does_not_tell_who_is_a_user_and_an_address_in_use_blocks_nobody(stack: Stack) -> None:
    there = await stack.tenancy.create_tenant("beta")
    await make_user(stack.users, "ceo@x.com", ("viewer", stack.tenant.id, None), password="of whoever squats it")
    async with await signed_in(stack, "bea@x.com", ("owner", there.id, None)) as bea, browser_of(stack) as ceo:

        async def invite(email: str) -> str:
            made = await bea.post("/tenants/beta/invitations", {"email": email, "role": "owner"}, 201)
            return str(made["token"])

        used, free = await invite("ceo@x.com"), await invite("nobody@x.com")
        for body, status in (
            ({}, 400),
            ({"password": "short", "name": "N"}, 400),
            ({"password": NEW}, 401),
            ({"password": NEW, "name": "\u0007"}, 400),
        ):
            answers = [
                (await ceo.post("/invitations/accept", {"token": token, **body}, status))["error"]
                for token in (used, free)
            ]
            assert answers[0]["message"] == answers[1]["message"], body
        accept = {"token": used, "name": "The CEO", "password": NEW}
        await ceo.post("/invitations/accept", accept, 401)
        accept["token"] = await invite("CEO+beta@x.com")
        made = await ceo.post("/invitations/accept", accept)
        assert [one["role"] for one in made["memberships"]] == ["owner"]
        await ceo.sign_in("ceo+beta@x.com", NEW)
        await ceo.get("/tenants/beta/members")
