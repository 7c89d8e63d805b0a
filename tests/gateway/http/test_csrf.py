"""The guard of /admin/v1: an application with an unsafe route outside it does not start."""

from __future__ import annotations

from typing import Any

import pytest
from litestar import Litestar, asgi, get, post
from litestar.datastructures import Headers
from litestar.types import Receive, Scope, Send

from gateway.errors import NotAllowed
from gateway.http.csrf import CsrfGuard, UnguardedRoute, check_guarded, check_origin
from gateway.http.policies import public


@get("/admin/v1/a", opt=public())
async def read() -> None: ...


@post("/admin/v1/b", opt=public())
async def write() -> None: ...


@post("/v1/c", opt=public())
async def inference() -> None: ...


@asgi("/admin/v1/d", copy_scope=True)
async def mounted(scope: Scope, receive: Receive, send: Send) -> None: ...


def test_an_unsafe_route_outside_the_guard_keeps_the_gateway_from_starting() -> None:
    check_guarded(Litestar([read, write, inference], middleware=[CsrfGuard()], openapi_config=None))
    check_guarded(Litestar([read, inference], openapi_config=None))
    with pytest.raises(UnguardedRoute, match="POST /admin/v1/b"):
        check_guarded(Litestar([read, write], openapi_config=None))
    with pytest.raises(UnguardedRoute, match="/admin/v1/d"):
        check_guarded(Litestar([read, mounted], middleware=[CsrfGuard()], openapi_config=None))


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("console.example", "https://console.example"),
        ("console.example:443", "https://console.example"),
        ("console.example", "https://console.example:443"),
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_our_own_origin_is_known_whoever_ends_tls(host: str, origin: str) -> None:
    check_origin(_headers(host=host, origin=origin))


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("console.example", "https://evil.example"),
        ("console.example", "https://console.example.evil"),
        ("console.example", "https://console.example:8443"),
        ("console.example", "https://"),
        ("console.example", "null"),
        ("console.example", ""),
        ("console.example", "file://console.example"),
        ("console.example", "https://[console.example"),
        ("", "https://console.example"),
    ],
)
def test_any_other_origin_is_refused(host: str, origin: str) -> None:
    with pytest.raises(NotAllowed):
        check_origin(_headers(host=host, origin=origin))


def _headers(**values: Any) -> Headers:
    return Headers({"x-turnpike-csrf": "1", **values})
