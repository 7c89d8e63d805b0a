"""POST /oidc/{provider}/logout: an identity provider ends sessions (OpenID Connect Back-Channel Logout 1.0). Its
signature says who asks; nobody has a key or a cookie here."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import parse_qs
from uuid import UUID

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from gateway.endpoints.request_body import read_signed_body
from gateway.errors import InvalidRequest
from gateway.http.operations import describes
from gateway.http.policies import public
from gateway.http.responses import json_response
from gateway.services import Gateway
from tenancy.identity.refusals import SENTENCES, IdentityRefused


class SessionsEnded(Struct, frozen=True, kw_only=True):
    """Users whose sessions were ended."""

    object: Literal["sessions_ended"] = "sessions_ended"
    sessions: int


def provider_logout_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The route, for one worker."""
    sign_in = gateway.services.identity.sign_in

    @post(
        "/oidc/{provider:str}/logout",
        status_code=200,
        opt=public()
        | describes(
            SessionsEnded(sessions=1),
            errors=dict.fromkeys(SENTENCES, 400),
            tags=("identity",),
            operation_id="end_sessions",
        ),
    )
    async def end_provider_sessions(request: Request[Any, Any, Any]) -> Response[bytes]:
        """End the sessions that a logout token of the provider names."""
        body = await read_signed_body(request, gateway.services.options.client_timeout)
        try:
            token = parse_qs(body.decode("ascii")).get("logout_token", [""])[0]
            provider_id = UUID(request.path_params["provider"])
        except ValueError as error:
            raise InvalidRequest("Send the form field logout_token.", code="malformed_token") from error
        try:
            ended = await sign_in.end_sessions(provider_id, token)
        except IdentityRefused as error:
            raise InvalidRequest(str(error), code=error.reason) from error
        return json_response(SessionsEnded(sessions=ended), headers={"cache-control": "no-store"})

    return [end_provider_sessions]
