"""GET /console and its assets, with a console that was built and without one."""

from __future__ import annotations

import gzip
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from litestar import Litestar
from litestar.exceptions import HTTPException

from gateway.console.built_console import BuiltConsole
from gateway.console.routes import console_routes
from gateway.http.responses import error_response
from tests.gateway.stack import Stack

SCRIPT = b"export const answer = 42;\n" * 20
INDEX = b'<!doctype html><meta name="csp-nonce" content="__CSP_NONCE__"><script type="module" src="/x.js"></script>'


def client(console: BuiltConsole | None) -> httpx.AsyncClient:
    app = Litestar(
        route_handlers=console_routes(console),
        openapi_config=None,
        exception_handlers={HTTPException: error_response, Exception: error_response},
    )
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://console.test")


@pytest.fixture
async def built(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A console of one script and a picture, where only the script is compressed."""
    assets = tmp_path / "assets"
    assets.mkdir()
    (tmp_path / "index.html").write_bytes(INDEX)
    (tmp_path / "secret.txt").write_bytes(b"not for anybody")
    (assets / "index-1.js").write_bytes(SCRIPT)
    (assets / "index-1.js.gz").write_bytes(gzip.compress(SCRIPT))
    (assets / "index-1.js.br").write_bytes(b"as brotli")
    (assets / "mark-2.svg").write_bytes(b"<svg/>")
    console = BuiltConsole.load(tmp_path)
    assert console is not None
    async with client(console) as http:
        yield http


@pytest.mark.parametrize("path", ["/console", "/console/", "/console/tenants/acme/keys", "/console/link"])
async def test_every_page_is_the_index_with_a_nonce_of_its_own(built: httpx.AsyncClient, path: str) -> None:
    nonces = set()
    for _ in range(2):
        page = await built.get(path)
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["cache-control"] == "no-store"
        nonce = re.search(r'content="([\w-]+)"', page.text)
        assert nonce is not None
        nonces.add(nonce[1])
        policy = page.headers["content-security-policy"]
        assert f"style-src 'self' 'nonce-{nonce[1]}'" in policy
        assert "unsafe" not in policy
        assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy.split("; "))
    assert len(nonces) == 2


@pytest.mark.parametrize(
    ("accepted", "coding", "content"),
    [
        ("gzip, deflate, br", "br", b"as brotli"),
        ("gzip", "gzip", gzip.compress(SCRIPT, mtime=0)),
        ("br;q=0, gzip;q=0.5", "gzip", gzip.compress(SCRIPT, mtime=0)),
        ("identity", None, SCRIPT),
    ],
)
async def test_an_asset_comes_in_the_coding_that_the_client_takes(
    built: httpx.AsyncClient, accepted: str, coding: str | None, content: bytes
) -> None:
    request = built.build_request("GET", "/console/assets/index-1.js", headers={"accept-encoding": accepted})
    answer = await built.send(request, stream=True)
    raw = b"".join([chunk async for chunk in answer.aiter_raw()])
    assert answer.headers.get("content-encoding") == coding
    assert raw == content or (coding == "gzip" and gzip.decompress(raw) == SCRIPT)
    assert answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["vary"] == "accept-encoding"


@pytest.mark.parametrize("name", ["index-0.js", "index-1.js.gz", "..%2fsecret.txt", "..%2findex.html"])
async def test_what_is_no_asset_is_not_found_and_never_a_page(built: httpx.AsyncClient, name: str) -> None:
    answer = await built.get(f"/console/assets/{name}")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json")


async def test_the_root_leads_to_the_console(built: httpx.AsyncClient) -> None:
    answer = await built.get("/")
    assert (answer.status_code, answer.headers["location"]) == (302, "/console")


async def test_without_a_build_a_page_says_how_to_build_it() -> None:
    async with client(None) as http:
        page = await http.get("/console/tenants/acme/keys")
        assert page.status_code == 200
        assert "make console" in page.text
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        assert (await http.get("/console/assets/index-1.js")).status_code == 404
        link = await http.get("/console/link")
        assert "Set another password" in link.text
        assert "script-src 'sha256-" in link.headers["content-security-policy"]


def test_a_folder_without_an_index_is_no_console(tmp_path: Path) -> None:
    assert BuiltConsole.load(tmp_path) is None


async def test_a_gateway_serves_the_console_to_anybody(stack: Stack) -> None:
    page = await stack.http.get("/console")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "set-cookie" not in page.headers
