"""GET /console: the web console, one page and its assets; and GET /, which leads there. HEAD / says that we are here.

The page gets a nonce of its own in each answer: the interface's library adds a <style> element at run time, which the
Content-Security-Policy forbids without one. Scripts come from our own files alone.
"""

from __future__ import annotations

import secrets
from typing import Any

from litestar import MediaType, Request, Response, get, head
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from gateway.console.built_console import BuiltConsole
from gateway.console.link_page import LINK_PAGE_HEADERS, LINK_PAGE_HTML
from gateway.errors import NotFound
from gateway.http.operations import describes, files
from gateway.http.policies import public
from tenancy.users.links import LINK_PAGE

_TAGS = ("console",)
_PAGE = describes(files("text/html", description="The page.", example="<!doctype html>…"), tags=_TAGS)
_LEADS = describes({302: None}, tags=_TAGS, answer_headers={"location": "Where the console is."})
_ASSET = describes(
    files("text/javascript", "text/css", "image/svg+xml", description="The file.", example="export {}"),
    tags=_TAGS,
    path={"name": "index-Ab3dE5.js"},
)
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}
_ASSET_HEADERS = {
    "cache-control": "public, max-age=31536000, immutable",
    "cross-origin-resource-policy": "same-origin",
    "vary": "accept-encoding",
    "x-content-type-options": "nosniff",
}
_NONCE_BYTES = 16
_NOT_BUILT = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Turnpike</title>
<h1>The console is not built</h1>
<p>The gateway works without it. To build it, install Node.js 20.19 or newer with npm, run <code>make console</code> in
the folder of the source, and start the gateway again.</p>
<p><a href="/docs">The documentation of the API</a></p></html>
"""
_NOT_BUILT_HEADERS = _PAGE_HEADERS | {"content-security-policy": "default-src 'none'; frame-ancestors 'none'"}


def console_routes(console: BuiltConsole | None) -> list[HTTPRouteHandler]:
    """The routes. `console`: None where it was not built; then they answer a page that says how to build it."""

    @get("/", status_code=302, opt=public() | _LEADS)
    async def get_root() -> Response[None]:
        """To the console."""
        return Response(None, status_code=302, headers={"location": "/console", "cache-control": "no-store"})

    @head("/", opt=public() | describes({200: None}, tags=_TAGS))
    async def head_root() -> None:
        """The server is here: agents ask before their first request, and take a redirection for another one."""

    @get("/console", opt=public() | _PAGE)
    async def get_console() -> Response[bytes]:
        """The first page of the console."""
        return _page(console)

    @get("/console/{path:path}", opt=public() | _PAGE)
    async def get_console_page(path: FromPath[str]) -> Response[bytes]:
        """A page of the console. Which one it is, the script in it finds in the path."""
        return _page(console)

    @get(LINK_PAGE, opt=public() | _PAGE)
    async def redeem_link_page() -> Response[bytes]:
        """The page by which a browser redeems a one-time link. It works without the console too."""
        if console is None:
            return Response(LINK_PAGE_HTML.encode(), media_type=MediaType.HTML, headers=LINK_PAGE_HEADERS)
        return _page(console)

    @get("/console/assets/{name:str}", opt=public() | _ASSET)
    async def get_console_asset(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
        """A script, style or image of the console."""
        asset = console.assets.get(name) if console is not None else None
        if asset is None:
            raise NotFound("The console has no such file. Load the page again: a newer version may have been deployed.")
        content, coding = asset.for_client(request.headers)
        headers = _ASSET_HEADERS | ({} if coding is None else {"content-encoding": coding})
        return Response(content, media_type=asset.media_type, headers=headers)

    return [get_root, head_root, get_console, get_console_page, redeem_link_page, get_console_asset]


def _page(console: BuiltConsole | None) -> Response[bytes]:
    if console is None:
        return Response(_NOT_BUILT.encode(), media_type=MediaType.HTML, headers=_NOT_BUILT_HEADERS)
    nonce = secrets.token_urlsafe(_NONCE_BYTES)
    headers = _PAGE_HEADERS | {"content-security-policy": _POLICY.format(nonce=nonce)}
    return Response(console.page(nonce), media_type=MediaType.HTML, headers=headers)
