"""A browser for tests: keeps cookies, and sends what our own pages send."""

from __future__ import annotations

import base64
import time
from typing import Any

import httpx

from audit_log.actors import Actor, acting_as
from tenancy.rights.permissions import Role
from tenancy.rights.principals import Membership
from tenancy.users import totp
from tenancy.users.accounts import User
from tenancy.users.service import Users
from tenancy.users.sessions import Client
from tests.gateway.stack import Stack

ADMIN = "/admin/v1"
PASSWORD = "correct horse battery staple"
TESTER = Actor("command", "tester", "tester")
CLIENT = Client("192.0.2.1", "test")
OWN = {"x-turnpike-csrf": "1", "sec-fetch-site": "same-origin"}


class Browser:
    """One browser at one address. `forwarded`: the client's address as a trusted proxy says it."""

    def __init__(self, base: str, forwarded: str = "") -> None:
        self.base = base
        headers = {"x-forwarded-for": forwarded} if forwarded else {}
        self.http = httpx.AsyncClient(base_url=base, timeout=20, verify=False, headers=headers)

    async def __aenter__(self) -> Browser:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    @property
    def token(self) -> str:
        return self.http.cookies.get("turnpike") or ""

    async def call(
        self, method: str, path: str, body: Any = None, *, status: int = 200, headers: dict[str, str] | None = None
    ) -> Any:
        answer = await self._answer(method, path, body, headers)
        assert answer.status_code == status, (answer.status_code, answer.text)
        return answer.json() if answer.content else None

    async def status(self, method: str, path: str, body: Any = None) -> int:
        """The status of the answer, whatever it is."""
        return (await self._answer(method, path, body, None)).status_code

    async def _answer(self, method: str, path: str, body: Any, headers: dict[str, str] | None) -> httpx.Response:
        sent = {**OWN, "origin": self.base} if headers is None else headers
        data = {} if body is None else {"json": body}
        return await self.http.request(method, f"{ADMIN}{path}", headers=sent, **data)

    async def get(self, path: str, status: int = 200) -> Any:
        return await self.call("GET", path, status=status)

    async def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        return await self.call("POST", path, body, status=status)

    async def sign_in(self, email: str, password: str = PASSWORD, status: int = 200, **more: Any) -> Any:
        return await self.post("/session", {"email": email, "password": password, **more}, status)


async def make_user(
    users: Users, email: str, *roles: tuple[Role, Any, Any] | Role, password: str | None = PASSWORD
) -> User:
    """A user with these roles: a role alone is at the platform, others come with the ids of tenant and project."""
    given = [(role, None, None) if isinstance(role, str) else role for role in roles]
    with acting_as(TESTER):
        user = await users.accounts.create(email, email, users.clock(), tuple(Membership(*role) for role in given))
        if password is not None:
            link = await users.links.create(user.id, "password_reset", users.clock())
            await users.password_changes.reset(link.token, password, CLIENT)
    return user


async def add_totp(browser: Browser) -> tuple[bytes, list[str]]:
    """Set up an authenticator in this browser: its key and the recovery codes."""
    made = await browser.post("/users/me/totp", status=201)
    key = base64.b32decode(made["secret"])
    codes = (await browser.post("/users/me/totp/confirm", {"code": code_now(key, -1)}))["codes"]
    return key, codes


def code_now(key: bytes, steps: int = 0) -> str:
    """The authenticator's code now, or so many steps later."""
    return totp.code_at(key, int(time.time()) // totp.STEP_S + steps)


def browser_of(stack: Stack, forwarded: str = "") -> Browser:
    return Browser(stack.base, forwarded)
