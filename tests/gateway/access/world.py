"""Two tenants, three projects and everybody who may or may not call the API, around a running gateway."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode
from uuid import UUID, uuid4

import httpx
from msgspec import Struct

from gateway.app import application_of
from gateway.openapi.document import make_document
from gateway.openapi.stand_in import stand_in
from tenancy.rights.permissions import ROLES, Role
from tenancy.rights.principals import Membership, Principal, PrincipalKind
from tests.gateway.stack import Stack

_PRESENTED = "as:"


class Place(Struct, frozen=True):
    """A project of a tenant, and the keys of those whom its objects belong to, by their kind."""

    tenant: str
    tenant_id: UUID
    project: str
    project_id: UUID
    keys: Mapping[str, str]

    @property
    def tenant_name(self) -> str:
        """As paths of the admin API have it."""
        return f"tenant_{self.tenant_id.hex}"

    @property
    def project_name(self) -> str:
        """As paths of the admin API have it."""
        return f"project_{self.project_id.hex}"


class Caller(Struct, frozen=True):
    """Somebody who calls. `principal` is None for whom the gateway must not know, and then answers with `status`."""

    name: str
    headers: Mapping[str, str]
    principal: Principal | None = None
    status: int = 401


class Answer(Struct, frozen=True):
    """What the application answered."""

    status_code: int
    content: bytes

    @property
    def text(self) -> str:
        """The body."""
        return self.content.decode(errors="replace")

    @property
    def is_success(self) -> bool:
        """Whether it is 2xx."""
        return 200 <= self.status_code < 300

    def json(self) -> Any:
        """The body's JSON."""
        return json.loads(self.content)


class World:
    """`a1` and `a2` are projects of one tenant, `b1` is of another one."""

    stack: Stack
    a1: Place
    a2: Place
    b1: Place
    callers: list[Caller]
    document: dict[str, Any]
    app: Any
    browsers: list[Any]
    months: list[tuple[Place, str]]
    """Whose months of long ago were used, in order: each may only be billed after those before it."""

    @classmethod
    async def around(cls, stack: Stack) -> World:
        """The world around a running gateway with the tenant of `tests.gateway.stack`."""
        world = cls()
        world.stack = stack
        world.app = stack.server.config.app
        world.browsers, world.months = [], []
        world.document = make_document(application_of(stand_in()))
        tenancy = stack.tenancy
        operator = (await tenancy.create_operator_key("Ann")).key
        second = await tenancy.create_project(stack.tenant.id, "second")
        other = await tenancy.create_tenant("other")
        theirs = await tenancy.create_project(other.id, "theirs")
        await stack.balances.grant(other.id, 10**13, "USD")
        places = []
        for tenant, project in ((stack.tenant, stack.project), (stack.tenant, second), (other, theirs)):
            keys = {
                "project_key": (await tenancy.create_key(tenant.id, project.id)).key,
                "admin_key": (await tenancy.create_key(tenant.id, None)).key,
                "operator_key": operator,
            }
            places.append(Place(tenant.name, tenant.id, project.name, project.id, keys))
        world.a1, world.a2, world.b1 = places
        world.callers = [*(await world._keys()), *world._roles()]
        world._let_in()
        return world

    async def call(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        query: Any = None,
        body: Any = None,
    ) -> httpx.Response:
        """One request."""
        content = {"content": body} if isinstance(body, bytes) else {} if body is None else {"json": body}
        return await self.stack.http.request(
            method, path, headers={"x-turnpike-csrf": "1", **headers}, params=query, **content
        )

    async def direct(
        self, method: str, path: str, headers: Mapping[str, str], query: Any = None, body: Any = None
    ) -> Answer:
        """One request to the application itself, without a connection: a tenth of the time."""
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        sent = {"host": "127.0.0.1", "x-turnpike-csrf": "1", "content-length": str(len(content)), **headers}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": urlencode(query or {}, doseq=True).encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 80),
            "state": {},
        }
        messages = [{"type": "http.request", "body": content, "more_body": False}]
        parts: list[bytes] = []
        status = 0

        async def receive() -> Any:
            if messages:
                return messages.pop()
            return await asyncio.Event().wait()

        async def send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        await self.app(scope, receive, send)
        return Answer(status, b"".join(parts))

    async def close(self) -> None:
        """Close the browsers that proofs opened."""
        for browser in self.browsers:
            await browser.http.aclose()

    async def pause(self) -> None:
        """Let the gateway do what it does behind an answer."""
        await asyncio.sleep(0.01)

    async def _keys(self) -> list[Caller]:
        """Nobody, keys that are wrong in every way, and the real keys of every place."""
        tenancy, a1 = self.stack.tenancy, self.a1
        now = time.time_ns() // 1000
        dead = {
            "an expired project key": await tenancy.create_key(a1.tenant_id, a1.project_id, expires_at=now - 1),
            "an expired admin key": await tenancy.create_key(a1.tenant_id, None, expires_at=now - 1),
            "an expired operator key": await tenancy.create_operator_key("Bob", expires_at=now - 1),
        }
        for name, key in (
            ("a revoked project key", await tenancy.create_key(a1.tenant_id, a1.project_id)),
            ("a revoked admin key", await tenancy.create_key(a1.tenant_id, None)),
        ):
            await tenancy.revoke(key.public_id, a1.tenant_id)
            dead[name] = key
        own = a1.keys["project_key"]
        wrong = {
            "a wrong secret": own[:-1] + ("A" if own[-1] != "A" else "B"),
            "a truncated key": own[:-4],
            "no key of ours": "sk-proj-0123456789",
            "a long key": "k" * 8192,
        }
        callers = [Caller("nobody", {}), *(await self._suspended())]
        callers += [Caller(name, bearer(key)) for name, key in wrong.items()]
        callers += [Caller(name, bearer(key.key)) for name, key in dead.items()]
        callers.append(Caller("two keys", {"authorization": f"Bearer {own}", "x-api-key": "sk-wrong"}))
        callers.append(Caller("a key in a cookie", {"cookie": f"turnpike={own}; session={own}"}))
        for label, place in (("A1", self.a1), ("A2", self.a2), ("B1", self.b1)):
            callers += [
                Caller(
                    f"the project key of {label}",
                    bearer(place.keys["project_key"]),
                    principal("project_key", "owner", place.tenant_id, place.project_id),
                ),
                Caller(
                    f"the admin key of {label}",
                    bearer(place.keys["admin_key"]),
                    principal("admin_key", "owner", place.tenant_id),
                ),
            ]
        return callers

    async def _suspended(self) -> list[Caller]:
        """The keys of a tenant that is suspended."""
        tenancy = self.stack.tenancy
        tenant = await tenancy.create_tenant("suspended")
        project = await tenancy.create_project(tenant.id, "main")
        keys = [await tenancy.create_key(tenant.id, project.id), await tenancy.create_key(tenant.id, None)]
        path = f"/admin/v1/tenants/tenant_{tenant.id.hex}/suspend"
        answer = await self.call("POST", path, bearer(self.a1.keys["operator_key"]), body={"reason": "fraud"})
        assert answer.is_success, answer.text
        return [Caller(f"a suspended key {number}", bearer(key.key), None, 403) for number, key in enumerate(keys)]

    def _roles(self) -> list[Caller]:
        """Each role at each scope, as a session, and as a key where keys may have roles there."""
        a, b = self.a1.tenant_id, self.b1.tenant_id
        scopes: list[tuple[str, PrincipalKind, UUID | None, UUID | None]] = [
            ("a session of the platform", "session", None, None),
            ("a session of A", "session", a, None),
            ("a session of A1", "session", a, self.a1.project_id),
            ("an admin key of A", "admin_key", a, None),
        ]
        others: list[tuple[str, PrincipalKind, UUID | None, Role]] = [
            ("a session of B", "session", b, "owner"),
            ("an operator key", "operator_key", None, "owner"),
            ("an operator key", "operator_key", None, "viewer"),
        ]
        return [
            Caller(f"{what} as {role}", bearer(f"{_PRESENTED}{what}:{role}"), principal(kind, role, tenant, project))
            for what, kind, tenant, project in scopes
            for role in ROLES
        ] + [
            Caller(f"{what} as {role}", bearer(f"{_PRESENTED}{what}:{role}"), principal(kind, role, tenant))
            for what, kind, tenant, role in others
        ]

    def _let_in(self) -> None:
        """Let the gateway know the callers of `_roles`, whose keys nobody issued."""
        known = {
            caller.headers["authorization"].removeprefix("Bearer "): caller.principal
            for caller in self.callers
            if caller.principal is not None and _PRESENTED in caller.headers["authorization"]
        }
        authenticator: Any = self.stack.gateway.services.authenticator
        authenticate = authenticator.authenticate

        async def with_roles(presented: str, *args: Any, **kwargs: Any) -> Principal:
            found = known.get(presented)
            return found if found is not None else await authenticate(presented, *args, **kwargs)

        authenticator.authenticate = with_roles


def principal(kind: PrincipalKind, role: Role, tenant_id: UUID | None, project_id: UUID | None = None) -> Principal:
    """Somebody with one role."""
    return Principal(
        kind=kind,
        id=uuid4(),
        public_id=f"{kind}-{role}",
        name=f"{role} of the test",
        memberships=(Membership(role, tenant_id, project_id),),
        tenant_id=None if kind in ("session", "operator_key") else tenant_id,
        project_id=None if kind in ("session", "operator_key") else project_id,
    )


def bearer(key: str) -> dict[str, str]:
    """The header that presents a key."""
    return {"authorization": f"Bearer {key}"}
