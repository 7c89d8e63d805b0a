"""Somebody's way to the admin API: with a key, or as a person of a role somewhere."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import httpx
import pytest

from gateway.http.authentication import Authentication
from storage.database.base import new_id
from tenancy.keys import IssuedKey
from tenancy.rights.permissions import Role
from tenancy.rights.principals import Membership, Principal, PrincipalKind
from tests.gateway.stack import Stack


class Desk:
    """Calls routes, and checks the status of each answer."""

    def __init__(self, stack: Stack, key: IssuedKey | str) -> None:
        self.stack = stack
        self._headers = {"authorization": f"Bearer {key if isinstance(key, str) else key.key}"}

    async def call(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """Any answer."""
        content = {} if body is None else {"json": body}
        return await self.stack.http.request(method, f"/admin/v1{path}", headers=self._headers, **content)

    async def get(self, path: str, status: int = 200) -> Any:
        return await self._json("GET", path, None, status)

    async def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        return await self._json("POST", path, body, status)

    async def put(self, path: str, body: Any = None, status: int = 200) -> Any:
        return await self._json("PUT", path, body, status)

    async def delete(self, path: str, status: int = 200) -> Any:
        return await self._json("DELETE", path, None, status)

    async def _json(self, method: str, path: str, body: Any, status: int) -> Any:
        answer = await self.call(method, path, body)
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()


class Desks:
    """Gives everybody a desk. Roles that no key can have yet are told to the authentication of this worker."""

    def __init__(self, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stack = stack
        self._people: dict[str, Principal] = {}
        known = Authentication._principal

        async def principal(self_: Authentication, headers: Any, *rest: Any) -> Principal:
            person = self._people.get(headers.get("authorization", "").removeprefix("Bearer "))
            return person or await known(self_, headers, *rest)

        monkeypatch.setattr(Authentication, "_principal", principal)

    def person(self, *memberships: Membership, name: str = "") -> Desk:
        """Somebody with these memberships."""
        token = f"person-{len(self._people)}"
        operates = any(one.tenant_id is None for one in memberships)
        kind: PrincipalKind = "operator_key" if operates else "admin_key"
        self._people[token] = Principal(
            kind=kind, id=new_id(), public_id=token, name=name or token, memberships=memberships
        )
        return Desk(self.stack, token)

    def role(self, role: Role, tenant_id: UUID | None = None, project_id: UUID | None = None) -> Desk:
        """Somebody with one role: at the platform, a tenant, or a project."""
        return self.person(Membership(role, tenant_id, project_id))

    def operator(self, role: Role = "owner") -> Desk:
        """An operator."""
        return self.role(role)

    def own(self, role: Role = "owner") -> Desk:
        """Somebody of the stack's tenant."""
        return self.role(role, self.stack.tenant.id)
