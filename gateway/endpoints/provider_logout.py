"""POST /oidc/{provider}/logout: an identity provider ends sessions (OpenID Connect Back-Channel Logout 1.0). Its
signature says who asks; nobody has a key or a cookie here."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler

from gateway.endpoints.request_body import read_signed_body
from gateway.errors import InvalidRequest
from gateway.http.operations import describes
from gateway.http.policies import public
from gateway.services import Gateway
from tenancy.identity.refusals import SENTENCES, IdentityRefused


def provider_logout_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The route, for one worker."""
    sign_in = gateway.services.identity.sign_in

    @post(
        "/oidc/{provider:str}/logout",
        status_code=200,
        opt=public()
        | describes({200: None}, errors=dict.fromkeys(SENTENCES, 400), tags=("identity",), operation_id="end_sessions"),
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
            await sign_in.end_sessions(provider_id, token)
        except IdentityRefused as error:
            raise InvalidRequest(str(error), code=error.reason) from error
        return Response(b"", status_code=200, headers={"cache-control": "no-store"})

    return [end_provider_sessions]
