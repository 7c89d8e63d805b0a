"""Refuses what another site makes a browser send: the guard of /admin/v1, where a cookie may say who asks.

An unsafe request without an API key must have the header X-Turnpike-CSRF, which no other site's form or script can add,
and must not come from another origin by what the browser says of it. It is checked before the session is looked up, and
on routes that need no session too: nobody shall be signed in as somebody else without knowing it.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from litestar import Litestar
from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp, Receive, Scope, Send

from gateway.errors import NotAllowed
from gateway.http.policies import ADMIN_PATH

HEADER = "x-turnpike-csrf"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({"same-origin", "none"})
"""What Sec-Fetch-Site says of a request from our own pages, or that no page made."""
_DEFAULT_PORTS = {"http": 80, "https": 443}


class UnguardedRoute(Exception):
    """Routes that a browser's cookie could be abused for: a defect of ours."""


class CsrfGuard(ASGIMiddleware):
    """Ends unsafe requests to /admin/v1 that are not certain to come from our own pages or from a program."""

    scopes = (ScopeType.HTTP,)

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Check the request and pass it on. Raises NotAllowed."""
        if scope["path"].startswith(ADMIN_PATH) and scope["method"] not in _SAFE_METHODS:
            headers = Headers.from_scope(scope)
            if not has_key(headers):
                check_origin(headers)
        await next_app(scope, receive, send)


def has_key(headers: Headers) -> bool:
    """Whether an API key is presented, which no other site can make a browser do: a cookie then counts for nothing."""
    return "authorization" in headers or "x-api-key" in headers


def check_origin(headers: Headers) -> None:
    """Raise NotAllowed for a request that another site may have caused."""
    if headers.get(HEADER) is None:
        raise NotAllowed(
            f"A request that changes something without an API key needs the header {HEADER}: 1.", code="csrf"
        )
    sites, origins = headers.getall("sec-fetch-site", []), headers.getall("origin", [])
    foreign = any(site.strip().lower() not in _OWN_SITES for site in sites)
    if foreign or any(not _is_own(origin, headers.get("host", "")) for origin in origins):
        raise NotAllowed("The request comes from another site.", code="csrf")


def _is_own(origin: str, host: str) -> bool:
    """Whether an Origin is that of the host asked for. The scheme may differ: TLS may end before us."""
    try:
        parts = urlsplit(origin.strip())
        default = _DEFAULT_PORTS.get(parts.scheme)
        asked = urlsplit(f"{parts.scheme}://{host}")
        here, there = (parts.hostname, parts.port or default), (asked.hostname, asked.port or default)
    except ValueError:
        return False
    return default is not None and parts.hostname is not None and here == there


def check_guarded(app: Litestar) -> None:
    """Raise UnguardedRoute, naming every unsafe route below /admin/v1 that the guard does not stand before."""
    unguarded = [
        f"{'|'.join(sorted(handler.http_methods))} {route.path}"
        for route in _admin_routes(app)
        for handler in route.route_handlers
        if handler.http_methods - _SAFE_METHODS
        and not any(isinstance(each, CsrfGuard) for each in handler.resolve_middleware())
    ]
    others = [route.path for route in app.routes if route.path.startswith(ADMIN_PATH) and not _is_http(route)]
    if unguarded or others:
        raise UnguardedRoute(f"routes without the guard against other sites: {', '.join([*unguarded, *others])}")


def _admin_routes(app: Litestar) -> Iterable[HTTPRoute]:
    return (route for route in app.routes if isinstance(route, HTTPRoute) and route.path.startswith(ADMIN_PATH))


def _is_http(route: object) -> bool:
    return isinstance(route, HTTPRoute)
