"""What a route demands of who calls it. A route without a policy keeps the gateway from starting.

A handler declares it in its `opt`: `@get("/v1/exports", opt=demands("exports.read"))`. Authentication
(`gateway.http.authentication`) refuses who may nowhere do this; the handler asks `Principal.may` about the very object.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

from litestar import Litestar
from litestar.routes import HTTPRoute
from litestar.types import RouteHandlerType
from msgspec import Struct

from tenancy.rights.permissions import PERMISSIONS, PLATFORM_ONLY, Permission
from tenancy.rights.principals import Principal, PrincipalKind

POLICY = "policy"
"""The key of the policy in a handler's `opt`."""
ADMIN_PATH = "/admin/v1"
TENANT_KEYS: frozenset[PrincipalKind] = frozenset({"project_key", "admin_key"})
"""Who may call `/v1`: cookies mean nothing there, and operators are nobody's tenant."""
ADMINISTRATORS: frozenset[PrincipalKind] = frozenset({"session", "admin_key", "operator_key"})
"""Who may call `/admin/v1`."""

_WITHOUT_PROOF: frozenset[Permission] = frozenset(
    {"inference", "caches.write", "projects.write", "exports.write", "webhooks.write", "fleet.write"}
)
"""Permissions to change something that a stolen session gains little by: neither money nor access, limits or terms."""
FRESH_PERMISSIONS: frozenset[Permission] = (
    frozenset(one for one in PERMISSIONS if not one.endswith(".read")) - _WITHOUT_PROOF
)
"""What a session that changes something by one of these must have proven its user lately for, on every route."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

Access: TypeAlias = Literal["authenticated", "keyless", "public"]


class MissingPolicy(Exception):
    """Routes without a policy: a defect of ours."""


class Policy(Struct, frozen=True):
    """What a route demands. `kinds`: which principals; None: those of its path. `fresh`: a session must have proven its
    user within the last minutes, where the permission does not say so already (FRESH_PERMISSIONS). `access`: "keyless"
    needs no key, though a wrong one is refused; "public" looks at no key at all. `platform`: what it shows or changes
    belongs to no tenant, so a role at the platform is needed."""

    permission: Permission | None
    kinds: frozenset[PrincipalKind] | None = None
    fresh: bool = False
    access: Access = "authenticated"
    platform: bool = False

    @property
    def at_platform(self) -> bool:
        """Whether a role at the platform alone gives the right to call it."""
        return self.platform or self.permission in PLATFORM_ONLY

    def allows(self, principal: Principal) -> bool:
        """Whether there is anything that the principal may call the route for, by its permissions."""
        if self.permission is None:
            return True
        return principal.may(self.permission) if self.at_platform else principal.may_anywhere(self.permission)

    def needs_proof(self, method: str) -> bool:
        """Whether a session that calls by this method must have proven its user lately."""
        return self.fresh or (self.permission in FRESH_PERMISSIONS and method not in SAFE_METHODS)

    def kinds_for(self, path: str) -> frozenset[PrincipalKind]:
        """The kinds of principals that may call a route with this policy at this path."""
        if self.kinds is not None:
            return self.kinds
        if not path.startswith(ADMIN_PATH):
            return TENANT_KEYS
        return ADMINISTRATORS - TENANT_KEYS if self.at_platform else ADMINISTRATORS


_OWN = Policy(None)


def demands(
    permission: Permission | None,
    *kinds: PrincipalKind,
    fresh: bool = False,
    access: Access = "authenticated",
    platform: bool = False,
    **opt: Any,
) -> dict[str, Any]:
    """A handler's `opt` with a policy, beside what else it has."""
    return {POLICY: Policy(permission, frozenset(kinds) or None, fresh, access, platform), **opt}


def public(**opt: Any) -> dict[str, Any]:
    """A handler's `opt` for a route that anybody may call."""
    return {POLICY: Policy(None, access="public"), **opt}


def policy_of(handler: RouteHandlerType) -> Policy:
    """The policy of a handler; of Litestar's own, such as those of OPTIONS, that a key is needed."""
    policy: Policy = handler.opt.get(POLICY, _OWN)
    return policy


def check_policies(app: Litestar) -> None:
    """Raise MissingPolicy, naming every route and method without a policy."""
    missing = [
        f"{'|'.join(sorted(handler.http_methods))} {route.path}"
        for route in _http_routes(app)
        for handler in route.route_handlers
        if POLICY not in handler.opt and "OPTIONS" not in handler.http_methods
    ]
    if missing:
        raise MissingPolicy(f"routes without a policy: {', '.join(missing)}")


def _http_routes(app: Litestar) -> Iterable[HTTPRoute]:
    return (route for route in app.routes if isinstance(route, HTTPRoute))
