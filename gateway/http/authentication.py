"""Authenticates requests by their headers, before the body is read, and refuses whom the route's policy excludes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send
from msgspec.structs import replace

from audit_log.actors import OPERATOR, Actor, Means, acting_as, anonymous
from gateway.errors import AddressRefused, NotAllowed, NotAuthenticated, SuspendedError, Unavailable
from gateway.http.client_address import client_address
from gateway.http.csrf import has_key
from gateway.http.policies import ADMIN_PATH, Policy, policy_of
from gateway.http.sessions import authenticate_session, has_session_cookie, session_principal
from gateway.request_context import request_context
from storage.database.database import DatabaseUnavailable
from tenancy.administration.suspension import Suspensions
from tenancy.authenticator import AddressNotAllowed, AuthenticationFailed, Authenticator
from tenancy.rights.key_limits import Network
from tenancy.rights.permissions import ROLE_PERMISSIONS, ROLES
from tenancy.rights.principals import Principal, PrincipalKind
from tenancy.users.session_authenticator import SessionAuthenticator
from waterfall.marks import AUTH

if TYPE_CHECKING:
    from gateway.admission.prepared_request import Payer

_SLOW_BODY_S = 0.1
_NAMES: dict[PrincipalKind, str] = {
    "project_key": "the key of a project",
    "admin_key": "an admin key of the tenant",
    "operator_key": "an operator's key",
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
    """Sets the principal of the request's context and the actor of what it changes, or ends the request.

    No route runs as the system, which this process is: without a principal the actor is anonymous.
    """

    scopes = (ScopeType.HTTP,)

    def __init__(
        self,
        authenticator: Authenticator,
        sessions: SessionAuthenticator,
        suspensions: Suspensions,
        trusted_proxies: Sequence[Network] = (),
    ) -> None:
        self._authenticator = authenticator
        self._sessions = sessions
        self._suspensions = suspensions
        self._trusted_proxies = trusted_proxies

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Authenticate the request and pass it on. Raises NotAuthenticated, NotAllowed (also
        AddressRefused and SuspendedError), Unavailable."""
        context = request_context(scope)
        context.address = client_address(scope, self._trusted_proxies)
        policy = policy_of(scope["route_handler"])
        headers = Headers.from_scope(scope)
        no_key = policy.access == "keyless" and not {"authorization", "x-api-key"} & set(headers)
        if policy.access == "public" or no_key:
            with acting_as(anonymous(context.address, context.name)):
                await next_app(scope, receive, send)
            return
        kinds = policy.kinds_for(scope["path"])
        by_session = (
            "session" in kinds
            and scope["path"].startswith(ADMIN_PATH)
            and not has_key(headers)
            and (has_session_cookie(scope) or kinds == {"session"})
        )

        async def authenticate() -> Principal:
            if by_session:
                principal = await self._signed_in(scope, policy)
            else:
                principal = await self._principal(headers, kinds, context.address)
            context.principal = principal
            check_not_suspended(self._suspensions, principal.tenant_id, principal.project_id)
            check_allowed(principal, policy, scope["path"])
            return principal

        principal = await authenticate()
        context.marks.mark(AUTH)
        if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
            receive = _with_slow_bodies_checked(receive, authenticate)
        with acting_as(
            Actor(
                _MEANS[principal.kind],
                principal.public_id,
                principal.name or principal.public_id,
                through=OPERATOR if any(one.tenant_id is None for one in principal.memberships) else "",
                address=context.address,
                request_id=context.name,
                user=principal.user,
            )
        ):
            await next_app(scope, receive, send)

    async def _signed_in(self, scope: Scope, policy: Policy) -> Principal:
        """The user whose browser has a session. Raises NotAuthenticated, NotAllowed, Unavailable."""
        try:
            signed_in = await authenticate_session(self._sessions, scope)
        except DatabaseUnavailable as error:
            raise Unavailable(
                "Sessions cannot be checked while the database is unavailable; try again shortly."
            ) from error
        if signed_in is None:
            raise NotAuthenticated("You are not signed in, or your session has ended: sign in.", code="not_signed_in")
        if policy.needs_proof(str(scope.get("method", ""))) and not signed_in.fresh:
            raise NotAllowed(
                "Prove first that it is you: POST /admin/v1/session/confirm with your password or a code.",
                code="confirmation_required",
            )
        return session_principal(signed_in)

    async def _principal(self, headers: Headers, kinds: frozenset[PrincipalKind], address: str) -> Principal:
        try:
            return await self._authenticator.authenticate(api_key(headers), address)
        except AddressNotAllowed as error:
            raise AddressRefused(f"This key may not be used from {address or 'an unknown address'}.") from error
        except AuthenticationFailed as error:
            raise _not_authenticated(kinds, has_key(headers)) from error
        except DatabaseUnavailable as error:
            raise Unavailable(
                "API keys cannot be checked while the database is unavailable; try again shortly."
            ) from error


def _with_slow_bodies_checked(receive: Receive, authenticate: Callable[[], Awaitable[object]]) -> Receive:
    """Authenticate once more when a body has come slowly: its key may have been revoked since, or its session ended."""
    began, whole = time.monotonic(), False

    async def checked() -> Any:
        nonlocal whole
        message = await receive()
        if not whole and message["type"] == "http.request" and not message.get("more_body", False):
            whole = True
            if time.monotonic() - began > _SLOW_BODY_S:
                await authenticate()
        return message

    return checked


def check_allowed(principal: Principal, policy: Policy, path: str) -> None:
    """Raise NotAllowed where this principal may not call the route at all."""
    kinds = policy.kinds_for(path)
    permission = policy.permission
    what = "" if permission is None else f" ({permission})"
    kind = principal.kind.replace("_", " ")
    if principal.kind not in kinds:
        raise NotAllowed(f"This {kind} may not do this{what}: it needs {_any_of(kinds)}.")
    if permission is None or policy.allows(principal):
        return
    if policy.allows(replace(principal, permissions=None)):
        raise NotAllowed(f"The scopes of this {kind} do not include {permission}: use a key that has it.")
    if principal.kind == "project_key":
        raise NotAllowed(f"This {kind} may not do this{what}: it needs {_any_of(kinds - {'project_key'})}.")
    where = " of the platform" if policy.at_platform else ""
    roles = ", ".join(role for role in ROLES if role in ROLE_PERMISSIONS[permission])
    raise NotAllowed(f"Your role does not allow this{what}: it needs one of the roles{where} {roles}.")


def _not_authenticated(kinds: frozenset[PrincipalKind], has_key: bool) -> NotAuthenticated:
    """The error for who sent no key, or a wrong one, by what the route takes."""
    keys = _any_of(kinds - {"session"}) or "no key"
    if "session" in kinds and not has_key:
        or_key = "" if keys == "no key" else f", or send {keys} as 'Authorization: Bearer KEY'"
        return NotAuthenticated(f"You are not signed in: sign in{or_key}.", code="not_signed_in")
    what = "Incorrect API key provided." if has_key else "No API key was sent."
    return NotAuthenticated(f"{what} Send {keys} as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")


def _any_of(kinds: frozenset[PrincipalKind]) -> str:
    return " or ".join(name for kind, name in _NAMES.items() if kind in kinds)


def check_not_suspended(suspensions: Suspensions, tenant_id: UUID | None, project_id: UUID | None) -> None:
    """Raise SuspendedError if the tenant or the project is suspended. Operators belong to neither; sessions neither:
    `gateway.admin.access` refuses what they would change of a tenant that is suspended."""
    if tenant_id is not None and (what := suspensions.find(tenant_id, project_id)) is not None:
        raise SuspendedError(what)


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
    from gateway.admission.prepared_request import Payer  # noqa: PLC0415  # commands authenticate, and generate nothing

    return Payer.of(request_context(scope).authenticated_principal)


def own_tenant(scope: Scope) -> UUID:
    """The tenant whose key was presented, on a route of `/v1`."""
    tenant_id = request_context(scope).authenticated_principal.tenant_id
    assert tenant_id is not None, "operators have no business on /v1"
    return tenant_id
