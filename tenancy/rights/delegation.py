"""Keys never give more than whoever makes or changes them has."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Literal, TypeAlias
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from storage.reported_error import ReportedError
from tenancy.rights.key_limits import NO_LIMITS, InvalidLimit, KeyLimits, Network
from tenancy.rights.permissions import (
    PROJECT_KEY_PERMISSIONS,
    ROLES,
    Permission,
    Role,
    permissions_of_role,
    permissions_of_scopes,
)
from tenancy.rights.principals import Principal

KeyKind: TypeAlias = Literal["project", "admin", "operator"]


class GivesTooMuch(ReportedError):
    """A key would do more than its maker may. `field` is what to narrow."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class KeyGrant(Struct, frozen=True):
    """What a key gives to who holds it. `expires_at` in microseconds since the Unix epoch."""

    kind: KeyKind
    tenant_id: UUID | None = None
    project_id: UUID | None = None
    role: Role = "owner"
    limits: KeyLimits = NO_LIMITS
    expires_at: int | None = None

    def permissions(self) -> frozenset[Permission]:
        """All that it allows, somewhere."""
        held = self.unlimited()
        return held if self.limits.permissions is None else held & frozenset(self.limits.permissions)

    def unlimited(self) -> frozenset[Permission]:
        """What it would allow without limits."""
        if self.kind == "project":
            return PROJECT_KEY_PERMISSIONS
        return permissions_of_role(self.role, platform=self.kind == "operator")

    def check_scopes(self, scopes: Iterable[str]) -> None:
        """Raise InvalidLimit, naming the scope, if one of these would give such a key nothing."""
        for scope in scopes:
            if not permissions_of_scopes([scope]) & self.unlimited():
                what = "the key of a project" if self.kind == "project" else f"a key with the role {self.role}"
                raise InvalidLimit("scopes", f"{scope!r} is nothing that {what} can have")


def covers_role(principal: Principal, role: Role, tenant_id: UUID | None, project_id: UUID | None) -> bool:
    """Whether the principal's own roles allow all that this role allows at this scope. What narrows the principal does
    not count: who gives a role asks besides what the principal may do. Nobody's allow what a role does that we do not
    know, a newer version's."""
    if role not in ROLES:
        return False
    unlimited = replace(principal, permissions=None, limits=NO_LIMITS, expires_at=None)
    given = permissions_of_role(role, platform=tenant_id is None)
    return all(unlimited.may(one, tenant_id, project_id) for one in given)


def check_delegation(maker: Principal, grant: KeyGrant) -> None:
    """Raise GivesTooMuch, naming the field, unless all that the key gives is its maker's too: its role is covered by
    the maker's roles, what it may do by what the maker may do, and its limits by the maker's limits."""
    if grant.kind != "project" and not covers_role(maker, grant.role, grant.tenant_id, grant.project_id):
        raise GivesTooMuch("role", f"the role {grant.role} may do more than your own role")
    beyond = sorted(one for one in grant.permissions() if not maker.may(one, grant.tenant_id, grant.project_id))
    if beyond:
        raise GivesTooMuch("scopes", f"you may not do this yourself: {', '.join(beyond)}")
    if maker.expires_at is not None and (grant.expires_at is None or grant.expires_at > maker.expires_at):
        raise GivesTooMuch("expires_at", "your own key ends before")
    for field in ("models", "lanes"):
        own, given = getattr(maker.limits, field), getattr(grant.limits, field)
        if own is not None and (given is None or not set(given) <= set(own)):
            raise GivesTooMuch(field, f"your own key is for {', '.join(own)} alone")
    if maker.limits.networks is not None:
        _check_networks(maker.limits.networks, grant.limits.networks)


def may_end(principal: Principal, grant: KeyGrant) -> bool:
    """Whether the principal's role lets it end a key: scopes alone do not matter, so that a key whose only purpose is
    to revoke leaked ones can do that."""
    if not principal.may("keys.write" if grant.tenant_id else "platform.write", grant.tenant_id, grant.project_id):
        return False
    if grant.kind != "project":
        return covers_role(principal, grant.role, grant.tenant_id, grant.project_id)
    unlimited = replace(principal, permissions=None, limits=NO_LIMITS, expires_at=None)
    return all(unlimited.may(one, grant.tenant_id, grant.project_id) for one in grant.permissions())


def _check_networks(own: tuple[str, ...], given: tuple[str, ...] | None) -> None:
    outer = [ipaddress.ip_network(one) for one in own]
    inner = None if given is None else [ipaddress.ip_network(one) for one in given]
    if inner is None or not all(any(_within(one, other) for other in outer) for one in inner):
        raise GivesTooMuch("networks", f"your own key works from {', '.join(own)} alone")


def _within(inner: Network, outer: Network) -> bool:
    return inner.version == outer.version and inner.subnet_of(outer)  # type: ignore[arg-type]
