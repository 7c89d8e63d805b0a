"""GET /openapi.json, the document of what this gateway serves, and GET /docs, a page that shows it."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any, Literal

import msgspec
from litestar import Litestar, MediaType, Request, Response, get
from litestar.handlers import HTTPRouteHandler

from gateway.dialects.query_parameters import Parameters
from gateway.http.operations import describes, files, query
from gateway.http.policies import public
from gateway.openapi.document import Audience, make_document
from gateway.openapi.page import CONTENT_SECURITY_POLICY, document_page

_AUDIENCES: tuple[Audience, ...] = ("all", "tenants")
_AUDIENCE = query(
    "audience", Literal[_AUDIENCES], "For whom: `tenants` leaves out what only administrators call.", example="tenants"
)
_FOR_A_MINUTE = {"cache-control": "max-age=60"}
_PAGE_HEADERS = _FOR_A_MINUTE | {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def document_routes() -> list[HTTPRouteHandler]:
    """The routes. What they answer is made on the first request, and then kept."""

    @lru_cache(maxsize=len(_AUDIENCES))
    def document(app: Litestar, audience: Audience) -> bytes:
        return msgspec.json.encode(make_document(app, audience))

    @lru_cache(maxsize=len(_AUDIENCES))
    def page(app: Litestar, audience: Audience) -> bytes:
        return document_page(make_document(app, audience), audience).encode()

    def asked(request: Request[Any, Any, Any]) -> Audience:
        parameters = Parameters.of(request)
        audience: Audience = parameters.choice("audience", _AUDIENCES) or "all"
        parameters.reject_unknown()
        return audience

    @get(
        "/openapi.json",
        opt=public()
        | describes(
            files("application/json", description="The document.", example='{"openapi": "3.1.0"}'), query=[_AUDIENCE]
        ),
    )
    async def get_openapi_document(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The OpenAPI 3.1 document of this gateway."""
        body = await asyncio.to_thread(document, request.app, asked(request))
        return Response(body, media_type=MediaType.JSON, headers=_FOR_A_MINUTE)

    @get(
        "/docs",
        opt=public()
        | describes(files("text/html", description="The page.", example="<!doctype html>"), query=[_AUDIENCE]),
    )
    async def get_docs(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The document as a page for people. It loads nothing from elsewhere and runs no script."""
        body = await asyncio.to_thread(page, request.app, asked(request))
        return Response(body, media_type=MediaType.HTML, headers=_PAGE_HEADERS)

    return [get_openapi_document, get_docs]
