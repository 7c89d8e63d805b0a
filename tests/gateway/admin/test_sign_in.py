"""/admin/v1/session: signing in and out, second factors, sessions, and what an attacker tries."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from argon2 import PasswordHasher

from audit_log.actors import acting_as
from gateway.app import application_of
from gateway.http.sessions import CookieJar
from gateway.openapi.document import make_document, operations_of
from gateway.openapi.stand_in import stand_in
from gateway.services import GatewayOptions
from tenancy.users.sessions import ABSOLUTE_US, FRESH_US, IDLE_US
from tests.awake import Awake
from tests.gateway.browser import ADMIN, OWN, PASSWORD, TESTER, Browser, add_totp, browser_of, code_now, make_user
from tests.gateway.stack import Stack, quick_timeouts, running_stack

pytestmark = pytest.mark.slow

ANN = "ann@example.com"


@pytest.fixture
async def browser(stack: Stack) -> AsyncIterator[Browser]:
    await make_user(stack.users, ANN, "owner")
    async with browser_of(stack) as browser:
        yield browser


async def test_a_user_signs_in_and_out(browser: Browser, stack: Stack) -> None:
    await browser.get("/session", 401)
    signed_in = await browser.sign_in("  Ann@Example.com ")
    assert signed_in["state"] == "signed_in"
    me = await browser.get("/users/me")
    assert (me["email"], me["has_password"], me["has_second_factor"]) == (ANN, True, False)
    assert me["memberships"] == [{"role": "owner", "tenant": None, "project": None}]
    assert (await browser.get("/session"))["current"] is True
    stolen = browser.token
    await browser.call("DELETE", "/session", status=204)
    assert browser.token == ""
    async with browser_of(stack) as thief:
        thief.http.cookies.set("turnpike", stolen)
        await thief.get("/session", 401)


async def test_a_session_is_the_answer_to_no_token_that_was_there_before(browser: Browser, stack: Stack) -> None:
    """Session fixation: neither a token of the attacker's choice nor a session of its own becomes the victim's."""
    await make_user(stack.users, "eve@example.com", "viewer")
    async with browser_of(stack) as attacker:
        await attacker.sign_in("eve@example.com")
        for planted in (attacker.token, "planted"):
            browser.http.cookies.set("turnpike", planted, domain="127.0.0.1")
            await browser.sign_in(ANN)
            assert browser.token not in ("", planted)
        first = browser.token
        await attacker.get("/session", 401)  # what was planted has ended, and is nobody's
        await browser.sign_in(ANN)
        assert browser.token != first
        attacker.http.cookies.set("turnpike", first, domain="127.0.0.1")
        await attacker.get("/session", 401)


FOREIGN: list[dict[str, str]] = [
    {},
    {"sec-fetch-site": "same-origin"},
    {**OWN, "origin": "https://evil.example"},
    {**OWN, "origin": "null"},
    {**OWN, "origin": "http://127.0.0.1:1"},
    {**OWN, "sec-fetch-site": "cross-site"},
    {**OWN, "sec-fetch-site": "same-site"},
]


async def test_another_site_changes_nothing(browser: Browser) -> None:
    await browser.sign_in(ANN)
    login = {"email": ANN, "password": PASSWORD}
    for headers in FOREIGN:
        refused = await browser.call("POST", "/sessions/revoke-all", headers=headers, status=403)
        assert refused["error"]["code"] == "csrf"
        assert (await browser.call("POST", "/session", login, headers=headers, status=403))["error"]["code"] == "csrf"
        await browser.call("GET", "/session", headers=headers)


async def test_a_program_without_an_origin_needs_the_header_alone(browser: Browser) -> None:
    login = {"email": ANN, "password": PASSWORD}
    refused = await browser.call("POST", "/session", login, headers={}, status=403)  # without any cookie too
    assert refused["error"]["code"] == "csrf"
    await browser.call("POST", "/session", {"email": ANN, "password": PASSWORD}, headers={"x-turnpike-csrf": "1"})


async def test_a_cookie_means_nothing_to_inference(browser: Browser, stack: Stack) -> None:
    await browser.sign_in(ANN)
    headers = {**OWN, "origin": browser.base}
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    assert (await browser.http.post("/v1/chat/completions", json=chat, headers=headers)).status_code == 401
    assert (await browser.http.get("/v1/models", headers=headers)).status_code == 401
    # And a key in a cookie is no key.
    jar = {"cookie": f"turnpike={stack.admin_key}"}
    async with httpx.AsyncClient(verify=False) as plain:
        assert (await plain.get(f"{browser.base}{ADMIN}/session", headers=jar)).status_code == 401


ELSEWHERE = [
    "https://evil.example/",
    "//evil.example/",
    "/\\evil.example",
    "\\\\evil.example",
    "/console\\@evil.example",
    "javascript:alert(1)",
    "/console/\t/evil",
    "/console/../v1",
    "/v1/models",
    "///console",
    "console",
    "",
    "/console/" + "a" * 3000,
]


async def test_nobody_is_sent_to_another_site(browser: Browser) -> None:
    for to in ELSEWHERE:
        refused = await browser.sign_in(ANN, next=to, status=400)
        assert refused["error"]["param"] == "next", to
        assert browser.token == ""


async def test_the_next_page_is_one_of_ours(browser: Browser) -> None:
    assert (await browser.sign_in(ANN, next="/console/invoices?month=2026-11#x"))["next"].startswith("/console/inv")


async def test_a_second_factor_is_asked_for_and_each_code_is_good_once(browser: Browser, stack: Stack) -> None:
    await browser.sign_in(ANN)
    before = browser.token
    key, recovery = await add_totp(browser)
    assert browser.token != before
    assert (len(recovery), (await browser.get("/users/me"))["recovery_codes_left"]) == (10, 10)
    async with browser_of(stack) as other:
        assert (await other.sign_in(ANN))["state"] == "second_factor_required"
        assert other.token == ""
        await other.get("/session", 401)
        await other.post("/session/second-factor", {"code": "000000"}, 401)
        await other.post("/session/second-factor", {"code": code_now(key, -1)}, 401)  # it confirmed the authenticator
        code = code_now(key)
        assert (await other.post("/session/second-factor", {"code": code}))["state"] == "signed_in"
        assert (await other.get("/session"))["method"] == "password+totp"
    async with browser_of(stack) as replay:
        await replay.sign_in(ANN)
        await replay.post("/session/second-factor", {"code": code}, 401)
        await replay.post("/session/second-factor", {"code": recovery[0].upper().replace("-", " ")})
    async with browser_of(stack) as replay:
        await replay.sign_in(ANN)
        await replay.post("/session/second-factor", {"code": recovery[0]}, 401)


async def test_the_step_to_the_second_factor_is_bound_to_its_browser(browser: Browser, stack: Stack) -> None:
    await browser.sign_in(ANN)
    key, _ = await add_totp(browser)
    async with browser_of(stack) as other, browser_of(stack) as stranger:
        await other.sign_in(ANN)
        assert await stranger.status("POST", "/session/second-factor", {"code": code_now(key)}) == 401
        stack.users.clock.ahead += 15 * 60 * 1_000_000
        assert await other.status("POST", "/session/second-factor", {"code": code_now(key)}) == 401
        stack.users.clock.ahead = 0


async def test_what_is_dangerous_needs_a_fresh_proof(browser: Browser, stack: Stack) -> None:
    await browser.sign_in(ANN)
    invitation = {"email": "bob@example.com", "role": "viewer"}
    await browser.post("/invitations", invitation, 201)
    stack.users.clock.ahead = FRESH_US + 1_000_000
    try:
        stale = await browser.post("/invitations", invitation, 403)
        assert stale["error"]["code"] == "confirmation_required"
        for path in ("/prices/sheets", "/prices/sheets/1/activate"):
            assert (await browser.post(path, {}, 403))["error"]["code"] == "confirmation_required"
        await browser.get("/prices/sheets")
        await browser.post("/session/confirm", {"password": "wrong"}, 401)
        before = browser.token
        await browser.post("/session/confirm", {"password": PASSWORD})
        assert browser.token != before
        await browser.post("/invitations", invitation, 201)
        browser.http.cookies.clear()
        browser.http.cookies.set("turnpike", before, domain="127.0.0.1")
        await browser.get("/session", 401)
    finally:
        stack.users.clock.ahead = 0


WITHOUT_PROOF = {"exports.write", "fleet.write", "inference", "projects.write", "webhooks.write"}
"""By these a session may change something without a fresh proof; all other changes but those of a session need one."""


async def test_every_change_of_money_access_or_limits_needs_a_fresh_proof(browser: Browser, stack: Stack) -> None:
    await browser.sign_in(ANN)
    stack.users.clock.ahead = FRESH_US + 1_000_000
    without = set()
    try:
        for method, path, written in operations_of(make_document(application_of(stand_in()))):
            if method == "GET" or "session" not in written["x-principals"]:
                continue
            if not written.get("x-fresh"):
                without.add(written["x-permission"])
                continue
            assert "confirmation_required" in written["responses"]["403"]["x-error-codes"], path
            url = re.sub(r"\{\w+\}", "7", path).removeprefix(ADMIN)
            stale = await browser.call(method, url, status=403)
            assert stale["error"]["code"] == "confirmation_required", (method, path)
    finally:
        stack.users.clock.ahead = 0
    assert without == WITHOUT_PROOF | {None}


@pytest.mark.parametrize("ahead", [IDLE_US, ABSOLUTE_US])
async def test_a_session_ends_with_time(browser: Browser, stack: Stack, ahead: int) -> None:
    await browser.sign_in(ANN)
    try:
        step = IDLE_US - 1_000_000
        while ahead == ABSOLUTE_US and stack.users.clock.ahead + step < ahead:
            stack.users.clock.ahead += step
            stack.users.authenticator.cache.forget_all()
            await browser.get("/session")
            await stack.users.authenticator.close()
        stack.users.clock.ahead = ahead
        stack.users.authenticator.cache.forget_all()
        assert await browser.status("GET", "/session") == 401
    finally:
        stack.users.clock.ahead = 0


@pytest.mark.alone
async def test_everywhere_is_everywhere_within_a_second(browser: Browser, stack: Stack) -> None:
    async with browser_of(stack) as phone:
        await phone.sign_in(ANN)
        await browser.sign_in(ANN)
        listed = (await browser.get("/sessions"))["data"]
        assert [each["current"] for each in listed] == [True, False]
        await phone.get("/session")
        await browser.call("DELETE", f"/sessions/{listed[1]['id']}", status=204)
        await phone.get("/session", 401)
        await phone.sign_in(ANN)
        with Awake() as awake:
            await browser.post("/sessions/revoke-all", status=204)
            await phone.get("/session", 401)
            assert awake.seconds < 1
        await browser.get("/session", 401)


async def test_a_password_change_ends_the_other_sessions(browser: Browser, stack: Stack) -> None:
    async with browser_of(stack) as phone:
        await phone.sign_in(ANN)
        await browser.sign_in(ANN)
        before = browser.token
        new = "another horse, another battery"
        await browser.post("/users/me/password", {"current": "wrong", "new": new}, 401)
        await browser.post("/users/me/password", {"new": new}, 401)
        short = await browser.post("/users/me/password", {"current": PASSWORD, "new": "short"}, 400)
        assert short["error"]["param"] == "new"
        await browser.post("/users/me/password", {"current": PASSWORD, "new": new})
        assert browser.token != before
        await browser.get("/session")
        await phone.get("/session", 401)
        await phone.sign_in(ANN, status=401)
        await phone.sign_in(ANN, new)


async def test_cookies_are_the_hosts_own() -> None:
    def jar(host: str, scheme: str = "http") -> CookieJar:
        scope: Any = {"type": "http", "scheme": scheme, "headers": [(b"host", host.encode())]}
        return CookieJar.of(scope)

    for host in ("turnpike.example", "10.0.0.1:8000", "localhost.evil.example", ""):
        header = jar(host).session("t").to_header(header="")
        assert header.strip().startswith("__Host-turnpike=t")
        assert {"Secure", "HttpOnly", "Path=/", "SameSite=lax"} <= {part.strip() for part in header.split(";")}
        assert "Domain" not in header
    for host in ("localhost:8000", "127.0.0.1", "[::1]:80"):
        assert jar(host).session_name == "turnpike"
        assert "Secure" not in jar(host).session("t").to_header()
        assert jar(host, "https").session_name == "__Host-turnpike"


class HeldHasher:
    """Hashes nothing until it is let go: many sign in at once, on a machine that is busy."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self._hasher = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
        self.check_needs_rehash = self._hasher.check_needs_rehash

    def hash(self, password: str) -> str:
        self.gate.wait(30)
        return self._hasher.hash(password)

    def verify(self, kept: str, password: str) -> bool:
        self.gate.wait(30)
        return self._hasher.verify(kept, password)


DATABASE_S = 1.0


@pytest.fixture
async def quick_stack(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> AsyncIterator[Stack]:
    options = GatewayOptions(timeouts=quick_timeouts(), database_timeout=DATABASE_S)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as running:
        yield running


async def test_waiting_for_a_turn_to_hash_is_no_waiting_for_the_database(
    quick_stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that hashes waits for longer than one waits for the database, and is answered; who finds no
    place in the queue hears that it is busy, and neither counts as a guess nor uses up a link."""
    stack, users = quick_stack, quick_stack.users
    await make_user(users, ANN, "owner")
    bob = await make_user(users, "bob@example.com", "viewer")
    with acting_as(TESTER):
        reset = await users.links.create(bob.id, "password_reset", users.clock())
    new = "another battery staple"
    held = HeldHasher()
    async with browser_of(stack) as browser, browser_of(stack) as other:
        await browser.sign_in(ANN)
        invitation = await browser.post("/invitations", {"email": "eve@example.com", "role": "viewer"}, status=201)
        monkeypatch.setattr(users.passwords, "_hasher", held)
        calls = [
            browser.status("POST", "/session/confirm", {"password": PASSWORD}),
            other.status("POST", "/password-resets/redeem", {"token": reset.token, "password": new}),
            other.status(
                "POST", "/invitations/accept", {"token": invitation["token"], "name": "Eve", "password": PASSWORD}
            ),
            *(other.status("POST", "/session", {"email": ANN, "password": PASSWORD}) for _ in range(5)),
        ]
        answers = asyncio.gather(*calls)
        await stack.until(lambda: users.passwords._waiting == len(calls))
        monkeypatch.setattr("tenancy.users.passwords.MOST_WAITING", len(calls))
        refused = await other.sign_in(ANN, status=503)
        assert refused["error"]["code"] == "sign_in_busy"
        with acting_as(TESTER):
            later = await users.links.create(bob.id, "password_reset", users.clock())
        body = {"token": later.token, "password": new}
        for _ in range(12):
            refused = await other.call("POST", "/password-resets/redeem", body, status=503)
            assert refused["error"]["code"] == "sign_in_busy"
        done, _ = await asyncio.wait([answers], timeout=1.5 * DATABASE_S)
        assert not done
        await other.get("/session", 401)
        stack.say("hello")
        said = await stack.post({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]})
        assert said.status_code == 200, said.text
        held.gate.set()
        statuses = await answers
    # Of the two reset links the later one counts.
    assert statuses == [200, 401, *[200] * 6]


async def test_who_waits_too_long_for_a_turn_hears_that_it_is_busy(
    quick_stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_user(quick_stack.users, ANN, "owner")
    held = HeldHasher()
    monkeypatch.setattr(quick_stack.users.passwords, "_hasher", held)
    monkeypatch.setattr("tenancy.users.passwords.MOST_WAIT_S", 0.1)
    async with browser_of(quick_stack) as browser:
        body = {"email": ANN, "password": PASSWORD}
        calls = [asyncio.create_task(browser.status("POST", "/session", body)) for _ in range(3)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        held.gate.set()
        assert sorted(await asyncio.gather(*calls)) == [200, 200, 503]
        await browser.sign_in(ANN)
