"""Who is asking: checked before anything of the request is read but its headers."""

from __future__ import annotations

from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from gateway.errors import NotAllowed, NotAuthenticated, Unavailable
from gateway.request_context import of
from storage.database.database import DatabaseUnavailable
from tenancy.authenticator import AuthenticationFailed, Authenticator, Operator, Principal

PUBLIC = "public"
"""The key in a handler's `opt` that exempts it."""
KEYLESS = "keyless"
"""The key in a handler's `opt` that lets those in who present no key; a wrong one is still refused."""
OPERATORS = "operators"
"""The key in a handler's `opt` that lets in operators alone."""


class Authentication(ASGIMiddleware):
    """Puts the principal into the request's scope, or answers 401."""

    scopes = (ScopeType.HTTP,)
    exclude_opt_key = PUBLIC

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Authenticate, then go on. Raises NotAuthenticated, Unavailable."""
        headers = Headers.from_scope(scope)
        if scope["route_handler"].opt.get(KEYLESS) and not {"authorization", "x-api-key"} & set(headers):
            await next_app(scope, receive, send)
            return
        operators = scope["route_handler"].opt.get(OPERATORS)
        try:
            if operators:
                of(scope).operator = await self._authenticator.authenticate_operator(presented(headers))
            else:
                of(scope).principal = await self._authenticator.authenticate(presented(headers))
        except AuthenticationFailed as error:
            how = "Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
            if operators:
                how = "This needs an operator's: `turnpike keys create --operator --name WHO`."
            raise NotAuthenticated(f"Incorrect API key provided. {how}") from error
        except DatabaseUnavailable as error:
            raise Unavailable("The database is away, so keys cannot be checked; try again shortly.") from error
        await next_app(scope, receive, send)


def presented(headers: Headers) -> str:
    """The key that the headers present; empty, which no key is, if there is none or more than one."""
    bearers, keys = headers.getall("authorization", []), headers.getall("x-api-key", [])
    if bearers:
        scheme, _, key = bearers[0].partition(" ")
        return key.strip() if len(bearers) == 1 and scheme.lower() == "bearer" else ""
    return keys[0].strip() if len(keys) == 1 else ""


def project_principal(scope: Scope) -> Principal:
    """The principal, which must be a project's. Raises NotAllowed for an admin key."""
    principal = of(scope).known_principal
    if principal.admin or principal.project_id is None:
        raise NotAllowed("An admin key cannot be used for inference; use a project's key.")
    return principal


def admin_principal(scope: Scope) -> Principal:
    """The principal, which must be a tenant's administrator. Raises NotAllowed for a project's key."""
    principal = of(scope).known_principal
    if not principal.admin:
        raise NotAllowed("This needs an admin key of the tenant: `turnpike keys create --tenant NAME --admin`.")
    return principal


def operator(scope: Scope) -> Operator:
    """The operator of a request to a route that is for operators."""
    found = of(scope).operator
    assert found is not None, "the route is not for operators"
    return found
