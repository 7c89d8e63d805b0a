"""Authenticates requests by their headers, before the body is read, and refuses whom the route's policy excludes."""

from __future__ import annotations

from uuid import UUID

from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from audit_log.actors import Actor, Means, acting_as
from gateway.admission.admission import Payer
from gateway.errors import NotAllowed, NotAuthenticated, Unavailable
from gateway.http.policies import TENANT_KEYS, Policy, policy_of
from gateway.request_context import request_context
from storage.database.database import DatabaseUnavailable
from tenancy.authenticator import AuthenticationFailed, Authenticator
from tenancy.permissions import PLATFORM_ONLY
from tenancy.principals import Principal, PrincipalKind

_HOW: dict[PrincipalKind, str] = {
    "project_key": "the key of a project: `turnpike keys create --tenant NAME --project NAME`",
    "admin_key": "an admin key of the tenant: `turnpike keys create --tenant NAME --admin`",
    "operator_key": "an operator's key: `turnpike keys create --operator --name WHO`",
    "session": "a signed-in user",
}
"""What to call each kind of principal in an error, in the order in which they are offered."""
_MEANS: dict[PrincipalKind, Means] = {
    "project_key": "project_key",
    "admin_key": "admin_key",
    "operator_key": "operator_key",
    "session": "session",
    "command": "command",
}


class Authentication(ASGIMiddleware):
    """Sets the principal of the request's context and the actor of what it changes, or ends the request."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Authenticate the request and pass it on. Raises NotAuthenticated, NotAllowed, Unavailable."""
        policy = policy_of(scope["route_handler"])
        headers = Headers.from_scope(scope)
        no_key = policy.access == "keyless" and not {"authorization", "x-api-key"} & set(headers)
        if policy.access == "public" or no_key:
            await next_app(scope, receive, send)
            return
        principal = await self._principal(headers, policy.kinds_for(scope["path"]))
        context = request_context(scope)
        context.principal = principal
        _check(principal, policy, scope["path"])
        client = scope.get("client")
        with acting_as(
            Actor(
                _MEANS[principal.kind],
                principal.public_id,
                principal.name or principal.public_id,
                address=client[0] if client else "",
                request_id=context.name,
            )
        ):
            await next_app(scope, receive, send)

    async def _principal(self, headers: Headers, kinds: frozenset[PrincipalKind]) -> Principal:
        try:
            return await self._authenticator.authenticate(api_key(headers))
        except AuthenticationFailed as error:
            how = "Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
            if "operator_key" in kinds:
                how = "Use an operator's key: `turnpike keys create --operator --name WHO`."
            raise NotAuthenticated(f"Incorrect API key provided. {how}") from error
        except DatabaseUnavailable as error:
            raise Unavailable(
                "API keys cannot be checked while the database is unavailable; try again shortly."
            ) from error


def _check(principal: Principal, policy: Policy, path: str) -> None:
    """Raise NotAllowed where this principal may not call the route at all."""
    kinds = policy.kinds_for(path)
    if principal.kind not in kinds or (policy.permission is not None and not principal.may_anywhere(policy.permission)):
        tenants = TENANT_KEYS if policy.permission in PLATFORM_ONLY else frozenset[PrincipalKind]()
        able = " or ".join(_HOW[kind] for kind in _HOW if kind in kinds - tenants and kind != principal.kind)
        kind = principal.kind.replace("_", " ")
        raise NotAllowed(f"This {kind} may not do this ({policy.permission}): it needs {able or 'another role'}.")


def api_key(headers: Headers) -> str:
    """The API key in the headers; the empty string, which is never valid, if there is none or a header occurs twice.
    With both headers `x-api-key` counts, as at Anthropic."""
    bearers, keys = headers.getall("authorization", []), headers.getall("x-api-key", [])
    if keys:
        return keys[0].strip() if len(keys) == 1 else ""
    scheme, _, key = bearers[0].partition(" ") if len(bearers) == 1 else ("", "", "")
    return key.strip() if scheme.lower() == "bearer" else ""


def project_payer(scope: Scope) -> Payer:
    """The project whose key was presented, and who pays. Raises NotAllowed for a principal without a project."""
    return Payer.of(request_context(scope).authenticated_principal)


def own_tenant(scope: Scope) -> UUID:
    """The tenant whose key was presented, on a route of `/v1`."""
    tenant_id = request_context(scope).authenticated_principal.tenant_id
    assert tenant_id is not None, "operators have no business on /v1"
    return tenant_id
