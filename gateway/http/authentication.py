"""Authenticates requests by their headers, before the body is read."""

from __future__ import annotations

from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from gateway.errors import NotAllowed, NotAuthenticated, Unavailable
from gateway.request_context import request_context
from storage.database.database import DatabaseUnavailable
from tenancy.authenticator import AuthenticationFailed, Authenticator, Operator, Principal

PUBLIC = "public"
"""The key in a handler's `opt` for a route without authentication."""
KEYLESS = "keyless"
"""The key in a handler's `opt` for a route that needs no API key; a wrong key is still refused."""
OPERATORS = "operators"
"""The key in a handler's `opt` for a route that only operators' keys may use."""


class Authentication(ASGIMiddleware):
    """Sets the principal or operator of the request's context, or ends the request with 401."""

    scopes = (ScopeType.HTTP,)
    exclude_opt_key = PUBLIC

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Authenticate the request and pass it on. Raises NotAuthenticated, Unavailable."""
        headers = Headers.from_scope(scope)
        if scope["route_handler"].opt.get(KEYLESS) and not {"authorization", "x-api-key"} & set(headers):
            await next_app(scope, receive, send)
            return
        operators = scope["route_handler"].opt.get(OPERATORS)
        try:
            if operators:
                request_context(scope).operator = await self._authenticator.authenticate_operator(api_key(headers))
            else:
                request_context(scope).principal = await self._authenticator.authenticate(api_key(headers))
        except AuthenticationFailed as error:
            how = "Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
            if operators:
                how = "Use an operator's key: `turnpike keys create --operator --name WHO`."
            raise NotAuthenticated(f"Incorrect API key provided. {how}") from error
        except DatabaseUnavailable as error:
            raise Unavailable(
                "API keys cannot be checked while the database is unavailable; try again shortly."
            ) from error
        await next_app(scope, receive, send)


def api_key(headers: Headers) -> str:
    """The API key in the headers; the empty string, which is never valid, if there is none or a header occurs twice.
    With both headers `x-api-key` counts, as at Anthropic."""
    bearers, keys = headers.getall("authorization", []), headers.getall("x-api-key", [])
    if keys:
        return keys[0].strip() if len(keys) == 1 else ""
    scheme, _, key = bearers[0].partition(" ") if len(bearers) == 1 else ("", "", "")
    return key.strip() if scheme.lower() == "bearer" else ""


def project_principal(scope: Scope) -> Principal:
    """The principal of a project's key. Raises NotAllowed for an admin key."""
    principal = request_context(scope).authenticated_principal
    if principal.admin or principal.project_id is None:
        raise NotAllowed("An admin key cannot be used here: this needs the key of a project.")
    return principal


def admin_principal(scope: Scope) -> Principal:
    """The principal of a tenant's admin key. Raises NotAllowed for a project's key."""
    principal = request_context(scope).authenticated_principal
    if not principal.admin:
        raise NotAllowed("This needs an admin key of the tenant: `turnpike keys create --tenant NAME --admin`.")
    return principal


def authenticated_operator(scope: Scope) -> Operator:
    """The operator, on a route with OPERATORS."""
    operator = request_context(scope).operator
    assert operator is not None, "the route is not for operators"
    return operator
