"""Passkeys: added, signed in with, proven again; and what is refused by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tenancy.users.sessions import FRESH_US
from tests.gateway.admin.authenticator import Authenticator
from tests.gateway.browser import Browser, browser_of, make_user
from tests.gateway.stack import Stack

pytestmark = pytest.mark.slow

ANN = "ann@example.com"


@pytest.fixture
async def browser(stack: Stack) -> AsyncIterator[Browser]:
    """Ann's browser; the authenticator's origin is a name, since a passkey belongs to none that is an address."""
    await make_user(stack.users, ANN, "owner")
    async with browser_of(stack) as browser:
        browser.base = browser.base.replace("127.0.0.1", "localhost")
        browser.http.base_url = browser.base  # type: ignore[assignment]
        await browser.sign_in(ANN)
        yield browser


async def add(browser: Browser, status: int = 201) -> Authenticator:
    device = Authenticator(browser.base)
    asked = await browser.post("/users/me/passkeys/challenge")
    await browser.post("/users/me/passkeys", {"credential": device.make(asked["options"]), "name": "Laptop"}, status)
    return device


async def sign_in(browser: Browser, device: Authenticator, status: int = 200, **changes: Any) -> Any:
    asked = await browser.post("/session/passkey/challenge")
    return await browser.post("/session/passkey", {"credential": device.sign(asked["options"], **changes)}, status)


async def test_a_passkey_signs_in_and_proves(stack: Stack, browser: Browser) -> None:
    device = await add(browser)
    listed = (await browser.get("/users/me/passkeys"))["data"]
    assert [(one["name"], one["used_at"]) for one in listed] == [("Laptop", None)]
    await browser.call("DELETE", "/session", status=204)
    await sign_in(browser, device)
    assert (await browser.get("/session"))["method"] == "passkey"
    stack.users.clock.ahead += FRESH_US
    await browser.post("/tenants", {"name": "new"}, 403)
    asked = await browser.post("/session/confirm/passkey/challenge")
    await browser.post("/session/confirm/passkey", {"credential": device.sign(asked["options"])})
    await browser.post("/tenants", {"name": "new"}, 201)
    path = f"/users/me/passkeys/{listed[0]['id']}"
    assert (await browser.call("PATCH", path, {"name": "Phone"}))["name"] == "Phone"
    assert (await browser.call("DELETE", path))["data"] == []
    assert (await sign_in(browser, device, 401))["error"]["code"] == "passkey_unknown"


async def test_what_an_authenticator_forges_is_refused_by_name(stack: Stack, browser: Browser) -> None:
    device = await add(browser)
    await browser.call("DELETE", "/session", status=204)

    async def refused(code: str, **changes: Any) -> None:
        assert (await sign_in(browser, device, 401, **changes))["error"]["code"] == code
        assert browser.token == ""

    await refused("passkey_refused", origin="https://evil.example")
    await refused("other_browser", challenge="x" * 43)
    device.flags = 0x01  # its user is present, and not verified
    await refused("passkey_refused")
    device.flags = 0x05
    own, device.key = device.key, Authenticator(browser.base).key
    await refused("passkey_refused")
    device.key = own
    asked = await browser.post("/session/passkey/challenge")
    answer = device.sign(asked["options"])
    async with browser_of(stack) as other:
        other.base = browser.base
        other.http.base_url = browser.base  # type: ignore[assignment]
        await other.post("/session/passkey/challenge")
        replayed = await other.post("/session/passkey", {"credential": answer}, 401)
        assert replayed["error"]["code"] == "other_browser"
    await browser.post("/session/passkey", {"credential": answer})
    await browser.post("/session/passkey", {"credential": answer}, 401)
    device.count = 0  # a copy counts from where it was taken
    await browser.call("DELETE", "/session", status=204)
    await refused("passkey_cloned")
