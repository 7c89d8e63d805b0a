"""Two tenants, three projects and everybody who may or may not call the API, around a running gateway."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4

import httpx
from msgspec import Struct

from gateway.app import application_of
from gateway.openapi.document import make_document
from gateway.openapi.stand_in import stand_in
from tenancy.permissions import ROLES, Role
from tenancy.principals import Membership, Principal, PrincipalKind
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
    """Somebody who calls. `principal` is None for whom the gateway must not know."""

    name: str
    headers: Mapping[str, str]
    principal: Principal | None = None


class World:
    """`a1` and `a2` are projects of one tenant, `b1` is of another one."""

    stack: Stack
    a1: Place
    a2: Place
    b1: Place
    callers: list[Caller]
    document: dict[str, Any]

    @classmethod
    async def around(cls, stack: Stack) -> World:
        """The world around a running gateway with the tenant of `tests.gateway.stack`."""
        world = cls()
        world.stack = stack
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
        return await self.stack.http.request(method, path, headers=dict(headers), params=query, **content)

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
        callers = [Caller("nobody", {})]
        callers += [Caller(name, bearer(key)) for name, key in wrong.items()]
        callers += [Caller(name, bearer(key.key)) for name, key in dead.items()]
        callers.append(Caller("two keys", {"authorization": f"Bearer {own}", "x-api-key": "sk-wrong"}))
        callers.append(Caller("a key in a cookie", {"cookie": f"turnpike_session={own}; session={own}"}))
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

    def _roles(self) -> list[Caller]:
        """Each role at each scope, as a session, and as a key where keys may have roles there."""
        a, b = self.a1.tenant_id, self.b1.tenant_id
        scopes: list[tuple[str, PrincipalKind, UUID | None, UUID | None]] = [
            ("a session of the platform", "session", None, None),
            ("a session of A", "session", a, None),
            ("a session of A1", "session", a, self.a1.project_id),
            ("a session of B", "session", b, None),
            ("an admin key of A", "admin_key", a, None),
            ("an operator key", "operator_key", None, None),
        ]
        return [
            Caller(f"{what} as {role}", bearer(f"{_PRESENTED}{what}:{role}"), principal(kind, role, tenant, project))
            for what, kind, tenant, project in scopes
            for role in ROLES
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
