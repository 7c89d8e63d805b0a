"""Lets pages of other origins call /v1 from a browser, where the setting `cors_origins` names them.

Only keys count there, never cookies, so credentials are not allowed; /admin/v1 stays closed to other origins. A
browser's question beforehand (preflight) has no key and is answered before authentication.
(The protocol: https://fetch.spec.whatwg.org/#http-cors-protocol.)
"""

from __future__ import annotations

from collections.abc import Sequence

from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

_PATH = "/v1"
_ANY = "*"
_METHODS = b"GET, POST, PATCH, DELETE"
_KEPT_S = b"86400"
"""For so long a browser may remember the answer to its question."""
_LIMITS = ("requests", "tokens", "input-tokens", "output-tokens")
_LEFT = ("limit", "remaining", "reset")
_EXPOSED = ", ".join(
    [
        *("x-request-id", "request-id", "anthropic-organization-id", "cache-status", "x-turnpike-max-tokens"),
        *("retry-after", "retry-after-ms", "x-should-retry"),
        *(f"x-ratelimit-{part}-{name}" for name in _LIMITS for part in _LEFT),
        *(f"anthropic-ratelimit-{name}-{part}" for name in _LIMITS for part in _LEFT),
        *("x-ratelimit-limit-concurrent", "x-ratelimit-remaining-concurrent"),
    ]
).encode()
"""What a page may read of an answer; `gateway/limits/headers.py` has the names of limits."""
_LONGEST_LIST = 1024
"""A longer list of headers that a page wants to send is not repeated."""

Headers = list[tuple[bytes, bytes]]


class CrossOrigin(ASGIMiddleware):
    """Answers the questions that browsers ask beforehand. `cross_origin_headers` does the rest."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, origins: Sequence[str]) -> None:
        """`origins`: those that may call; "*": all."""
        self._origins = tuple(origins)

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Answer a question beforehand; pass anything else on."""
        asked = _header(scope, b"access-control-request-method")
        if scope.get("method") != "OPTIONS" or asked is None or not _allowed(scope, self._origins):
            await next_app(scope, receive, send)
            return
        headers: Headers = [(b"access-control-allow-methods", _METHODS), (b"access-control-max-age", _KEPT_S)]
        wanted = _header(scope, b"access-control-request-headers")
        if wanted is not None and len(wanted) <= _LONGEST_LIST:
            headers.append((b"access-control-allow-headers", wanted))
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def cross_origin_headers(scope: Scope, origins: Sequence[str]) -> Headers:
    """The headers by which a browser gives an answer to the page that asked; none if the page may not have it."""
    if not scope["path"].startswith(_PATH):
        return []
    origin = _allowed(scope, origins)
    if not origin:
        return [] if _ANY in origins else [(b"vary", b"origin")]
    headers = [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED)]
    return headers if origin == _ANY.encode() else [*headers, (b"vary", b"origin")]


def _allowed(scope: Scope, origins: Sequence[str]) -> bytes:
    """The origin to name in the answer, or nothing where the page may not call."""
    origin = _header(scope, b"origin")
    if origin is None or not (scope["path"] == _PATH or scope["path"].startswith(_PATH + "/")):
        return b""
    if _ANY in origins:
        return _ANY.encode()
    return origin if origin.decode("latin-1") in origins else b""


def _header(scope: Scope, name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key == name), None)
