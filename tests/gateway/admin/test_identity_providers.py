"""Signing in by identity providers: whom they let in, and 40 forged tokens and answers that are refused by name."""

from __future__ import annotations

import base64
import hmac
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode

import httpx
import pytest
from joserfc import jwk
from oidc_provider_mock import User, run_server_in_thread

from tenancy.identity.id_tokens import LOGOUT_EVENT
from tenancy.users.identifiers import user_public_id
from tests.gateway.admin.provider import Claims, Provider, running_provider
from tests.gateway.browser import PASSWORD, TESTER, Browser, acting_as, browser_of, make_user
from tests.gateway.stack import Stack

pytestmark = pytest.mark.slow

ANN, OWNER = "ann@acme.example", "owner@acme.example"
VERIFIED = {"email": ANN, "email_verified": True}


@pytest.fixture
def idp() -> Iterator[Provider]:
    with running_provider() as provider:
        yield provider


@pytest.fixture
async def owner(stack: Stack) -> AsyncIterator[Browser]:
    """Who owns the platform and the tenant."""
    await make_user(stack.users, OWNER, "owner", ("owner", stack.tenant.id, None))
    async with browser_of(stack) as browser:
        await browser.sign_in(OWNER)
        yield browser


async def add(owner: Browser, idp: Provider, at: str = "/tenants/demo", **fields: Any) -> str:
    body = {"name": "Acme", "issuer": idp.issuer, "client_id": "turnpike", "client_secret": "s3cret", **fields}
    made = await owner.post(f"{at}/identity-providers", body, 201)
    assert "s3cret" not in json.dumps(made)
    return str(made["id"])


async def enter(browser: Browser, idp: Provider, provider: str, status: int = 200, **changes: Any) -> Any:
    """Sign in by the provider; what is answered."""
    page = await browser.post("/session/provider", {"provider": provider})
    answer = idp.answer(page["url"])
    answer = {name: value for name, value in {**answer, **changes}.items() if value is not None}
    return await browser.post("/session/provider/finish", answer, status)


async def link(browser: Browser, idp: Provider, provider: str, status: int = 200, purpose: str = "link") -> Any:
    page = await browser.post("/session/provider/confirm", {"provider": provider, "purpose": purpose})
    return await browser.post("/session/provider/finish", idp.answer(page["url"]), status)


async def test_an_account_is_linked_and_signs_in(stack: Stack, owner: Browser, idp: Provider) -> None:
    """Linked from a session; then the tenant's provider opens sessions with the roles there alone."""
    with acting_as(TESTER):
        other = await stack.tenancy.create_tenant("other")
    ann = await make_user(stack.users, ANN, "owner", ("owner", other.id, None), ("viewer", stack.tenant.id, None))
    provider = await add(owner, idp)
    async with browser_of(stack) as browser:
        assert (await enter(browser, idp, provider, 401))["error"]["code"] == "not_linked"
        await browser.sign_in(ANN)
        assert (await link(browser, idp, provider))["purpose"] == "link"
        listed = (await browser.get("/users/me/identities"))["data"]
        assert [(one["provider"], one["tenant"]) for one in listed] == [("Acme", f"tenant_{stack.tenant.id.hex}")]
        # a provider of a tenant proves nothing in a session with other roles
        assert (await link(browser, idp, provider, 401, "confirm"))["error"]["code"] == "other_person"
        full = browser.token
        assert (await enter(browser, idp, provider))["purpose"] == "sign_in"
        me = await browser.get("/users/me")
        assert [(one["role"], one["tenant"]) for one in me["memberships"]] == [
            ("viewer", f"tenant_{stack.tenant.id.hex}")
        ]
        for method, path, body in (
            ("PATCH", "/users/me", {"name": "Eve"}),
            ("POST", "/users/me/password", {"current": PASSWORD, "new": "another good password"}),
            ("POST", "/users/me/totp", None),
            ("POST", "/users/me/passkeys/challenge", None),
            ("POST", "/session/provider/confirm", {"provider": provider, "purpose": "link"}),
        ):
            assert (await browser.call(method, path, body, status=403))["error"]["code"] == "bound_session"
        assert await browser.status("GET", "/tenants/other/members") == 404
        assert (await link(browser, idp, provider, purpose="confirm"))["purpose"] == "confirm"
        assert full != browser.token
        assert (await browser.get("/session"))["user"] == user_public_id(ann.id)


async def test_a_claimed_domain_lets_people_in(stack: Stack, owner: Browser, idp: Provider) -> None:
    """A new account for a verified address of a domain that an operator confirmed; groups give roles, by id."""
    provider = await add(owner, idp)
    at = f"/tenants/demo/identity-providers/{provider}"
    async with browser_of(stack) as browser:
        idp.claims = {**VERIFIED, "groups": ["g-1", "g-9"], "name": "Ann"}
        assert (await enter(browser, idp, provider, 401))["error"]["code"] == "not_linked"
        await make_user(stack.users, "admin@acme.example", ("admin", stack.tenant.id, None))
        async with browser_of(stack) as admin:
            await admin.sign_in("admin@acme.example")
            await admin.call("PUT", f"{at}/domains", {"domains": ["acme.example"]}, status=403)
            await admin.call("PUT", f"{at}/groups", {"groups": [{"group": "g-1", "role": "finance"}]}, status=403)
        await owner.call("PUT", f"{at}/domains", {"domains": ["Acme.example"]})
        assert (await enter(browser, idp, provider, 401))["error"]["code"] == "no_role"
        groups = [{"group": "g-1", "role": "viewer"}, {"group": "g-9", "role": "admin", "project": "default"}]
        refusal = await owner.call("PUT", f"{at}/groups", {"groups": [{"group": "g", "role": "owner"}]}, status=400)
        assert "owner_by_group" in refusal["error"]["message"]
        await owner.call("PUT", f"{at}/groups", {"groups": groups})
        idp.claims["email_verified"] = "true"
        assert (await enter(browser, idp, provider, 401))["error"]["code"] == "email_not_verified"
        idp.claims |= {"email_verified": True}
        await enter(browser, idp, provider)
        me = await browser.get("/users/me")
        assert (me["email"], me["name"], me["has_password"]) == (ANN, "Ann", False)
        assert {one["role"] for one in me["memberships"]} == {"viewer", "admin"}
        idp.claims["groups"] = ["g-9"]  # out of a group: at the next sign-in
        await enter(browser, idp, provider)
        assert {one["role"] for one in (await browser.get("/users/me"))["memberships"]} == {"admin"}
        idp.claims |= {"groups": None, "_claim_names": {"groups": "src1"}}
        assert (await enter(browser, idp, provider, 401))["error"]["code"] == "groups_not_sent"
        offered = await browser.get(f"/sign-in-providers?{urlencode({'email': ANN})}")
        assert [one["name"] for one in offered["data"]] == ["Acme"]
        assert (await browser.get("/sign-in-providers"))["data"] == []
        assert (await browser.get("/sign-in-providers?tenant=nobody"))["data"] == []


async def test_an_address_that_somebody_has_is_not_taken_over(stack: Stack, owner: Browser, idp: Provider) -> None:
    """Neither an operator's account nor one of another tenant is linked by its address."""
    provider = await add(owner, idp)
    await owner.call(
        "PUT", f"/tenants/demo/identity-providers/{provider}/domains", {"domains": ["acme.example", "b.example"]}
    )
    with acting_as(TESTER):
        other = await stack.tenancy.create_tenant("other")
    await make_user(stack.users, "bob@b.example", ("owner", other.id, None))
    await make_user(stack.users, "op@acme.example", "owner")
    async with browser_of(stack) as browser:
        for email in ("bob@b.example", "op@acme.example"):
            idp.claims = {"email": email, "email_verified": True}
            assert (await enter(browser, idp, provider, 401))["error"]["code"] == "account_exists"


async def test_an_invitation_is_accepted_by_a_provider(stack: Stack, owner: Browser, idp: Provider) -> None:
    provider = await add(owner, idp)
    made = await owner.post("/tenants/demo/invitations", {"email": ANN, "role": "developer"}, 201)
    async with browser_of(stack) as browser:
        page = await browser.post("/session/provider", {"provider": provider, "invitation": made["token"]})
        await browser.post("/session/provider/finish", idp.answer(page["url"]))
        me = await browser.get("/users/me")
        assert (me["email"], me["memberships"][0]["role"]) == (ANN, "developer")


async def test_the_provider_alone_and_break_glass(
    stack: Stack, owner: Browser, idp: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    provider = await add(owner, idp)
    ann = await make_user(stack.users, ANN, ("owner", stack.tenant.id, None))
    bob = await make_user(stack.users, "bob@acme.example", ("owner", stack.tenant.id, None))
    async with browser_of(stack) as browser, browser_of(stack) as spare:
        await browser.sign_in(ANN)
        await link(browser, idp, provider)
        await browser.call(
            "PUT", "/tenants/demo/sign-in-policy", {"provider_only": True, "break_glass": []}, status=409
        )
        policy = {"provider_only": True, "break_glass": [user_public_id(bob.id)]}
        await browser.call("PUT", "/tenants/demo/sign-in-policy", policy)
        assert (await browser.get("/users/me"))["memberships"] == []
        assert await browser.status("GET", "/tenants/demo/members") == 403
        await enter(browser, idp, provider)
        assert (await browser.get("/users/me"))["memberships"][0]["role"] == "owner"
        assert "break-glass" not in caplog.text
        await spare.sign_in("bob@acme.example")
        assert (await spare.get("/users/me"))["memberships"][0]["role"] == "owner"
        assert "a break-glass owner signs in" in caplog.text
        entries = await spare.get("/audit?action=user.break_glass_used")
        assert [one["target"]["id"] for one in entries["data"]] == [user_public_id(bob.id)]
    assert (await owner.get("/tenants/demo/members"))["data"]  # operators see it as before
    assert ann.id != bob.id


async def test_break_glass_ends_with_the_role(stack: Stack, owner: Browser, idp: Provider) -> None:
    await add(owner, idp)
    ann = await make_user(stack.users, ANN, ("owner", stack.tenant.id, None), password=None)
    policy = {"provider_only": True, "break_glass": [user_public_id(ann.id)]}
    bob = await make_user(stack.users, "bob@acme.example", ("owner", stack.tenant.id, None))
    at, bobs = "/tenants/demo/sign-in-policy", user_public_id(bob.id)
    refusal = await owner.call("PUT", at, policy, status=409)  # nothing to get in with
    assert "password" in refusal["error"]["message"]
    await owner.post(f"/users/{bobs}/disable", {"reason": "away"})
    await owner.call("PUT", at, {**policy, "break_glass": [bobs]}, status=409)
    await owner.post(f"/users/{bobs}/enable")
    await owner.call("PUT", at, {**policy, "break_glass": [bobs, user_public_id(ann.id)]})
    async with browser_of(stack) as browser:
        await browser.sign_in("bob@acme.example")
        assert (await browser.get("/users/me"))["memberships"]
        await owner.call("PUT", f"/tenants/demo/members/{bobs}", {"role": "viewer"})
        assert (await browser.get("/users/me"))["memberships"] == []
    assert (await owner.get(at))["break_glass"] == [user_public_id(ann.id)]


async def test_a_directory_and_a_provider_know_one_person(stack: Stack, owner: Browser, idp: Provider) -> None:
    """SCIM says who may come; the provider says who it is; who has left does not come back by it."""
    provider = await add(owner, idp)
    token = (await owner.post("/tenants/demo/directory/token", status=201))["token"]
    await owner.call("PATCH", "/tenants/demo/directory", {"member_role": "viewer"})
    headers = {"authorization": f"Bearer {token}"}
    person = {"userName": "ann", "externalId": "oid-1", "emails": [{"value": ANN}]}
    made = (await stack.http.post("/scim/v2/Users", json=person, headers=headers)).json()
    async with browser_of(stack) as browser:
        idp.claims = {"oid": "oid-1"}
        await enter(browser, idp, provider)
        assert (await browser.get("/users/me"))["email"] == ANN
        began = time.monotonic()
        gone = {"Operations": [{"op": "replace", "path": "active", "value": False}]}
        assert (await stack.http.patch(f"/scim/v2/Users/{made['id']}", json=gone, headers=headers)).status_code == 200
        await browser.get("/session", 401)
        assert time.monotonic() - began < 1
        assert (await enter(browser, idp, provider, 401))["error"]["code"] == "left"


async def test_a_directory_makes_nobody_an_owner(stack: Stack, owner: Browser, idp: Provider) -> None:
    """Who holds an admin's token says that the owner is the subject that an admin has at the provider."""
    provider = await add(owner, idp)
    await make_user(stack.users, ANN, ("developer", stack.tenant.id, None))
    await make_user(stack.users, "admin@acme.example", ("admin", stack.tenant.id, None))
    async with browser_of(stack) as admin:
        await admin.sign_in("admin@acme.example")
        token = (await admin.post("/tenants/demo/directory/token", status=201))["token"]
    headers = {"authorization": f"Bearer {token}"}
    person = {"userName": OWNER, "externalId": "mine"}
    boss = (await stack.http.post("/scim/v2/Users", json=person, headers=headers)).json()
    ann = {"userName": ANN, "externalId": "ann"}
    assert (await stack.http.post("/scim/v2/Users", json=ann, headers=headers)).status_code == 201
    async with browser_of(stack) as browser:
        idp.subject = "mine"
        assert (await enter(browser, idp, provider, 401))["error"]["code"] == "account_exists"
        assert browser.token == ""
        await enter_as(idp, "ann", browser, provider)  # whom the token may take everything: in
        assert (await browser.get("/users/me"))["email"] == ANN
        # who is linked joins nobody else's place in the directory
        await browser.sign_in("admin@acme.example")
        idp.subject = "mine"
        await link(browser, idp, provider)
        assert (await enter(browser, idp, provider, 401))["error"]["code"] == "already_linked"
    people = (await owner.get("/tenants/demo/directory/people"))["data"]
    owner_id = (await owner.get("/users/me"))["id"]
    assert {one["id"]: one["user"] for one in people}[boss["id"]] == owner_id


async def enter_as(idp: Provider, subject: str, browser: Browser, provider: str) -> None:
    idp.subject = subject
    await enter(browser, idp, provider)


async def test_a_link_leaves_no_other_way_in(stack: Stack, owner: Browser, idp: Provider) -> None:
    provider = await add(owner, idp)
    ann = await make_user(stack.users, ANN, ("viewer", stack.tenant.id, None))
    made = await owner.post(f"/users/{user_public_id(ann.id)}/links", {"kind": "sign_in"}, 201)
    async with browser_of(stack) as browser:
        await browser.post("/session/link", {"token": made["token"]})
        for path, body in (
            ("/session/provider/confirm", {"provider": provider, "purpose": "link"}),
            ("/users/me/passkeys/challenge", None),
            ("/users/me/passkeys", {"credential": "{}", "name": "Mine"}),
        ):
            assert (await browser.post(path, body, 403))["error"]["code"] == "confirmation_required"
        await browser.sign_in(ANN)
        await link(browser, idp, provider)


async def test_one_person_by_all_ways_is_one_for_four_eyes(stack: Stack, owner: Browser, idp: Provider) -> None:
    provider = await add(owner, idp, at="")
    ann = await make_user(stack.users, ANN, "owner")
    with acting_as(TESTER):
        key = await stack.tenancy.create_operator_key("ann", user_id=ann.id)
    async with browser_of(stack) as browser:
        await browser.sign_in(ANN)
        await link(browser, idp, provider)
        by_password = await stack.users.authenticator.authenticate(browser.token)
        await enter(browser, idp, provider)
        by_provider = await stack.users.authenticator.authenticate(browser.token)
    from gateway.http.sessions import session_principal

    assert by_password is not None and by_provider is not None  # noqa: PT018
    by_key = await stack.gateway.services.authenticator.authenticate(key.key)
    people = {session_principal(by_password).person, session_principal(by_provider).person, by_key.person}
    assert people == {user_public_id(ann.id)}


async def test_the_provider_ends_sessions(stack: Stack, owner: Browser, idp: Provider) -> None:
    provider = await add(owner, idp)
    await make_user(stack.users, ANN, ("viewer", stack.tenant.id, None))
    async with browser_of(stack) as browser:
        await browser.sign_in(ANN)
        await link(browser, idp, provider)
        idp.claims = {"sid": "s-1"}
        await enter(browser, idp, provider)
        claims = {"iss": idp.issuer, "aud": "turnpike", "iat": int(time.time()), "jti": "1", "sid": "s-1"}
        events = {"events": {LOGOUT_EVENT: {}}}

        async def log_out(token: str) -> tuple[int, Any]:
            answer = await stack.http.post(f"/oidc/{provider}/logout", data={"logout_token": token})
            return answer.status_code, answer.json().get("error", {}).get("code")

        for wrong, code in (
            (claims, "no_logout_event"),
            ({**claims, **events, "nonce": "n"}, "no_logout_event"),
            ({**claims, **events, "aud": "other"}, "wrong_audience"),
            ({**claims, **events, "iss": "https://other.example"}, "wrong_issuer"),
            ({**claims, **events, "sid": None}, "no_subject"),
            ({**claims, **events, "iat": int(time.time()) - 3_600}, "issued_too_long_ago"),
        ):
            assert await log_out(idp.sign(wrong)) == (400, code)
        await browser.get("/session")
        assert await log_out(idp.sign({**claims, **events})) == (200, None)
        await browser.get("/session", 401)


def _unsigned(claims: Claims, algorithm: str, key: bytes | None = None) -> str:
    """A token of an algorithm that is none of ours: unsigned, or with an HMAC."""
    parts = ({"alg": algorithm, "kid": "one", "typ": "JWT"}, claims)
    signed = ".".join(base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=").decode() for one in parts)
    mac = b"" if key is None else hmac.digest(key, signed.encode(), "sha256")
    return f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def _forgeries(idp: Provider) -> dict[str, tuple[str, dict[str, Any]]]:
    """Name -> why it is refused, and what the provider or the browser does."""
    now, stranger = int(time.time()), jwk.RSAKey.generate_key(2048, {"kid": "one"})
    public = idp.key.as_pem(private=False)

    def by_stranger(claims: Claims, **header: Any) -> str:
        own, idp.key = idp.key, stranger
        try:
            return idp.sign(claims, **header)
        finally:
            idp.key = own

    def altered(claims: Claims) -> str:
        head, _, signature = idp.sign(claims).split(".")
        body = base64.urlsafe_b64encode(json.dumps({**claims, "sub": "owner"}).encode()).rstrip(b"=").decode()
        return f"{head}.{body}.{signature}"

    def with_crit(claims: Claims) -> str:
        head = base64.urlsafe_b64encode(b'{"alg":"RS256","kid":"one","crit":["b64"],"b64":false}').rstrip(b"=").decode()
        return f"{head}.{idp.sign(claims).split('.', 1)[1]}"

    signed = {
        "alg none": ("algorithm_refused", lambda claims: _unsigned(claims, "none")),
        "alg None": ("algorithm_refused", lambda claims: _unsigned(claims, "None")),
        "HMAC with the public key": ("algorithm_refused", lambda claims: _unsigned(claims, "HS256", public)),
        "an unknown algorithm": ("algorithm_refused", lambda claims: _unsigned(claims, "RS1")),
        "ES256 with an RSA key": ("unknown_key", lambda claims: _unsigned(claims, "ES256", b"k")),
        "another's key of the same id": ("bad_signature", by_stranger),
        "altered": ("bad_signature", altered),
        "no signature": ("bad_signature", lambda claims: idp.sign(claims).rpartition(".")[0] + "."),
        "an unknown kid": ("unknown_key", lambda claims: idp.sign(claims, kid="../../etc/passwd")),
        "a key in the header": (
            "bad_signature",
            lambda claims: by_stranger(claims, jwk=stranger.as_dict(private=False)),
        ),
        "crit": ("header_refused", with_crit),
        "no JWT": ("malformed_token", lambda _: "hello"),
        "two parts": ("malformed_token", lambda claims: idp.sign(claims).rpartition(".")[0]),
        "five parts": ("malformed_token", lambda _: "a.b.c.d.e"),
        "a huge token": ("malformed_token", lambda claims: idp.sign({**claims, "x": "y" * 70_000})),
    }
    said: dict[str, tuple[str, Claims]] = {
        "another issuer": ("wrong_issuer", {"iss": "https://evil.example"}),
        "the issuer with a slash": ("wrong_issuer", {"iss": f"{idp.issuer}/"}),
        "no issuer": ("wrong_issuer", {"iss": None}),
        "another audience": ("wrong_audience", {"aud": "other"}),
        "no audience": ("wrong_audience", {"aud": None}),
        "several audiences without a party": ("wrong_authorized_party", {"aud": ["turnpike", "other"]}),
        "another party": ("wrong_authorized_party", {"azp": "other"}),
        "another party of several": ("wrong_authorized_party", {"aud": ["turnpike", "other"], "azp": "other"}),
        "expired": ("expired", {"exp": now - 120}),
        "an end that is no number": ("expired", {"exp": "tomorrow"}),
        "no end": ("no_expiry", {"exp": None}),
        "not valid yet": ("not_yet_valid", {"nbf": now + 600}),
        "issued in the future": ("issued_in_the_future", {"iat": now + 600}),
        "issued long ago": ("issued_too_long_ago", {"iat": now - 86_400}),
        "no instant of issue": ("issued_too_long_ago", {"iat": None}),
        "another nonce": ("wrong_nonce", {"nonce": "replayed"}),
        "no nonce": ("wrong_nonce", {"nonce": None}),
        "no subject": ("no_subject", {"sub": None}),
        "a subject that is no text": ("no_subject", {"sub": 7}),
        "a huge subject": ("no_subject", {"sub": "x" * 300}),
        "an unverified address": ("email_not_verified", {**VERIFIED, "sub": "new", "email_verified": False}),
        "an address without a word of it": ("email_not_verified", {"email": ANN, "sub": "new"}),
    }
    answers: dict[str, tuple[str, dict[str, Any]]] = {
        "mixed up": ("mixed_up_providers", {"iss": "https://evil.example"}),
        "no iss": ("mixed_up_providers", {"iss": None}),
        "an error": ("provider_said_no", {"error": "access_denied", "code": None}),
        "no code": ("no_code", {"code": None}),
        "another code": ("code_refused", {"code": "stolen"}),
        "a state of nobody": ("unknown_state", {"state": "x" * 43}),
    }

    return {
        **{name: (code, {"forge": forge}) for name, (code, forge) in signed.items()},
        **{name: (code, {"claims": claims}) for name, (code, claims) in said.items()},
        **{name: (code, {"answer": answer}) for name, (code, answer) in answers.items()},
    }


async def test_forged_tokens_and_answers_are_refused_by_name(stack: Stack, owner: Browser, idp: Provider) -> None:
    provider = await add(owner, idp)
    await owner.call("PUT", f"/tenants/demo/identity-providers/{provider}/domains", {"domains": ["acme.example"]})
    await make_user(stack.users, ANN, ("owner", stack.tenant.id, None))
    forgeries = _forgeries(idp)
    assert len(forgeries) >= 40
    async with browser_of(stack) as browser:
        await browser.sign_in(ANN)
        await link(browser, idp, provider)
        browser.http.cookies.clear()
        await enter(browser, idp, provider)  # what is right gets in
        await browser.call("DELETE", "/session", status=204)
        # what is tested is not the limit
        stack.users.attempts = stack.users.sign_in._attempts = _Unlimited()  # type: ignore[assignment]
        for name, (code, does) in forgeries.items():
            idp.forge, idp.claims = does.get("forge"), does.get("claims", {})
            refusal = await enter(browser, idp, provider, 401, **does.get("answer", {}))
            assert (name, refusal["error"]["code"]) == (name, code)
            assert browser.token == ""
        idp.forge, idp.claims = None, {}
        await enter(browser, idp, provider)


class _Unlimited:
    async def take(self, limits: Any) -> Any:
        return ()

    async def give_back(self, attempt: Any) -> None:
        return None


async def test_an_answer_belongs_to_one_browser_and_one_provider(stack: Stack, owner: Browser, idp: Provider) -> None:
    """Swapped states, replays, another browser's answer, and the answer of one provider to another."""
    provider = await add(owner, idp)
    await make_user(stack.users, ANN, ("viewer", stack.tenant.id, None))
    finish = "/session/provider/finish"
    with running_provider() as other:
        second = await add(owner, other, name="Other")
        async with browser_of(stack) as browser, browser_of(stack) as victim:
            await browser.sign_in(ANN)
            await link(browser, idp, provider)
            page = await browser.post("/session/provider", {"provider": provider})
            answer = idp.answer(page["url"])
            assert (await victim.post(finish, answer, 401))["error"]["code"] == "other_browser"
            await victim.post("/session/provider", {"provider": provider})
            assert (await victim.post(finish, answer, 401))["error"]["code"] == "other_browser"
            await browser.post(finish, answer)
            assert (await browser.post(finish, answer, 401))["error"]["code"] == "unknown_state"
            page = await browser.post("/session/provider", {"provider": second})
            mixed = {**other.answer(page["url"]), "iss": idp.issuer}
            assert (await browser.post(finish, mixed, 401))["error"]["code"] == "mixed_up_providers"
            # somebody else's subject at another provider is somebody else
            assert (await enter(browser, other, second, 401))["error"]["code"] == "not_linked"
            # a code of another sign-in fails by PKCE
            page = await browser.post("/session/provider", {"provider": provider})
            stolen = idp.answer(page["url"])["code"]
            assert (await enter(victim, idp, provider, 401, code=stolen))["error"]["code"] == "code_refused"
            await owner.call("PATCH", f"/tenants/demo/identity-providers/{provider}", {"enabled": False})
            assert (await browser.post("/session/provider", {"provider": provider}, 401))["error"][
                "code"
            ] == "provider_off"


async def test_a_proof_must_be_fresh_and_strong(stack: Stack, owner: Browser, idp: Provider) -> None:
    provider = await add(owner, idp, at="", acr_values="mfa")
    await make_user(stack.users, ANN, "owner")
    async with browser_of(stack) as browser:
        await browser.sign_in(ANN)
        await link(browser, idp, provider)
        idp.claims = {"auth_time": int(time.time()) - 7_200}
        await enter(browser, idp, provider)  # signed in at the provider long ago: in, and not fresh
        await browser.post("/tenants", {"name": "new"}, 403)
        idp.claims = {"acr": "pwd"}
        await enter(browser, idp, provider)  # just now, and not by what a proof takes
        await browser.post("/tenants", {"name": "new"}, 403)
        idp.claims = {"auth_time": int(time.time()) - 7_200}
        assert (await link(browser, idp, provider, 401, "confirm"))["error"]["code"] == "stale_sign_in"
        idp.claims = {}
        assert (await link(browser, idp, provider, 401, "confirm"))["error"]["code"] == "weak_sign_in"
        idp.claims = {"acr": "mfa"}
        await link(browser, idp, provider, purpose="confirm")
        await browser.post("/tenants", {"name": "new"}, 201)
        await enter(browser, idp, provider)
        await browser.post("/tenants", {"name": "newer"}, 201)


async def test_wrong_answers_are_counted_as_links_are(stack: Stack, owner: Browser, idp: Provider) -> None:
    async with browser_of(stack) as browser:
        for _ in range(10):
            await browser.post("/session/provider/finish", {"state": "x" * 43, "code": "y"}, 401)
        limited = await browser.post("/session/provider/finish", {"state": "x" * 43, "code": "y"}, 429)
    assert limited["error"]["code"] == "too_many_attempts"
    entries = (await owner.get("/audit?action=user.sign_in_failed"))["data"]
    assert len(entries) == 10


async def test_what_a_provider_answers_is_bounded(stack: Stack, owner: Browser, idp: Provider) -> None:
    """Addresses, metadata and keys that are not what they should be; keys that rotate."""
    fields = {"name": "x", "client_id": "turnpike"}

    async def refused(issuer: str) -> str:
        answer = await owner.post("/tenants/demo/identity-providers", {**fields, "issuer": issuer}, 400)
        return str(answer["error"]["message"])

    for issuer in (
        *("http://10.0.0.1", "http://169.254.169.254/latest", "https://[::ffff:10.0.0.1]", "ftp://a.example"),
        *("https://user:pw@a.example", "https://a.example/?x=1", "https://0x7f000002"),
    ):
        assert "$.issuer" in await refused(issuer)
    for path, body, word in (
        ("/.well-known/openid-configuration", b"[]", "metadata_refused"),
        ("/.well-known/openid-configuration", b"x" * 300_000, "answer_too_large"),
    ):
        idp.pages = {path: body}
        assert word in await refused(idp.issuer)
    idp.pages, idp.metadata = {}, {"issuer": "https://other.example"}
    assert "metadata_refused" in await refused(idp.issuer)
    idp.metadata = {"jwks_uri": "http://10.0.0.1/jwks"}
    provider = await add(owner, idp)
    async with browser_of(stack) as browser:
        assert (await enter(browser, idp, provider, 401))["error"]["code"] == "address_refused"
    with running_provider() as other:
        second = await add(owner, other)
        async with browser_of(stack) as browser:
            other.pages = {"/jwks": b'{"keys":[' + b'{"kty":"RSA"},' * 30_000 + b"{}]}"}
            assert (await enter(browser, other, second, 401))["error"]["code"] == "answer_too_large"
            other.pages = {}
            await enter(browser, other, second, 401)
            other.key = jwk.ECKey.generate_key("P-256", {"kid": "two"})
            other.algorithm, other.published = "ES256", [other.key]
            asked = other.asked.count("/jwks")
            for _ in range(5):  # unknown keys are asked for once in a while alone
                assert (await enter(browser, other, second, 401))["error"]["code"] == "unknown_key"
            assert other.asked.count("/jwks") == asked
            client = stack.gateway.services.identity.sign_in._client
            now = client._clock()
            client._clock = lambda: now + 31
            assert (await enter(browser, other, second, 401))["error"]["code"] == "not_linked"
            assert other.asked.count("/jwks") == asked + 1


@pytest.mark.filterwarnings("ignore")  # its library warns of itself
async def test_another_ones_provider_lets_in(stack: Stack, owner: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole flow with a provider that is not ours, `oidc-provider-mock`."""
    user = User(sub="ann", claims={**VERIFIED, "groups": ["g-1"]})
    with run_server_in_thread(user_claims=[user]) as server:
        body = {"name": "Mock", "issuer": f"http://127.0.0.1:{server.server_port}", "client_id": "turnpike"}
        made = await owner.post("/identity-providers", {**body, "client_secret": "any"}, 201)
        at = f"/identity-providers/{made['id']}"
        await owner.call("PUT", f"{at}/domains", {"domains": ["acme.example"]})
        await owner.call("PUT", f"{at}/groups", {"groups": [{"group": "g-1", "role": "viewer", "tenant": "demo"}]})
        async with browser_of(stack) as browser, httpx.AsyncClient(verify=False) as elsewhere:
            page = await browser.post("/session/provider", {"provider": made["id"]})
            back = await elsewhere.post(page["url"], data={"sub": "ann"})
            query = parse_qs(re.sub(r"^[^?]*\?", "", back.headers["location"]))
            answer = {name: values[0] for name, values in query.items() if name in ("state", "code", "iss")}
            await browser.post("/session/provider/finish", answer)
            me = await browser.get("/users/me")
            assert (me["email"], [one["role"] for one in me["memberships"]]) == (ANN, ["viewer"])
