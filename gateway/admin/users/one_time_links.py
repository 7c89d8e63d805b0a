"""Redeeming one-time links: an invitation is accepted, a password reset. Neither signs anybody in."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from gateway.admin.users.sign_in import present_session
from gateway.admin.users.user_objects import Email, Name, Password, Token, UserObject, user_errors, user_object
from gateway.endpoints.request_body import read_public_body
from gateway.http.operations import describes
from gateway.http.policies import public
from gateway.http.responses import json_response
from gateway.http.sessions import client_of
from gateway.services import Gateway

_describes = partial(describes, tags=("users",))
_NO_STORE = {"cache-control": "no-store"}
_ERRORS = {"link_not_valid": 401, "too_many_attempts": 429, "csrf": 403, "sign_in_busy": 503}


class Acceptance(Struct, frozen=True, forbid_unknown_fields=True):
    """An invitation's token; the name and the password of who is no user yet. Who is one gives the password, or is
    signed in by more than a link. `email`: the address of who is one, if it is another than the invited one."""

    token: Token
    email: Email = ""
    name: Name = ""
    password: Password | None = None


class Redemption(Struct, frozen=True, forbid_unknown_fields=True):
    """A reset link's token, and the password to have from now on."""

    token: Token
    password: Password


_ACCEPTANCE, _REDEMPTION = msgspec.json.Decoder(Acceptance), msgspec.json.Decoder(Redemption)


def one_time_link_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    users, timeout = gateway.services.users, gateway.services.options.client_timeout

    @post(
        "/admin/v1/invitations/accept",
        status_code=200,
        opt=public()
        | _describes(UserObject, body=Acceptance, errors=_ERRORS | {"sign_in_refused": 401, "last_owner": 409}),
    )
    async def accept_invitation(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Accept an invitation. A new user is made of it; sign in then."""
        body = await read_public_body(request, timeout, _ACCEPTANCE)
        present = await present_session(gateway, request)
        own = present is not None and present.session.tenant_id is None  # a tenant's provider vouches for that tenant
        with user_errors():
            accepting = users.password_changes.accept(
                body.token,
                body.name,
                body.password,
                client_of(request.scope),
                signed_in=present.session if present is not None and own else None,
                email=body.email,
            )
            return json_response(user_object(await users.accounts.get(await accepting)), headers=_NO_STORE)

    @post(
        "/admin/v1/password-resets/redeem",
        status_code=200,
        opt=public() | _describes(UserObject, body=Redemption, errors=_ERRORS),
    )
    async def redeem_password_reset(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Set another password with a reset link. All sessions of the user end; sign in then."""
        body = await read_public_body(request, timeout, _REDEMPTION)
        with user_errors():
            user_id = await users.password_changes.reset(body.token, body.password, client_of(request.scope))
            return json_response(user_object(await users.accounts.get(user_id)), headers=_NO_STORE)

    return [accept_invitation, redeem_password_reset]
