"""/admin/v1/session: signing in and out, by password, one-time link and second factor; and one's sessions.

A sign-in that needs a second factor is bound to the browser by a cookie of 15 minutes. Whoever signs in gets a new
session, and the session that the browser had before ends.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlsplit

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Struct

from gateway.admin.users.user_objects import (
    Code,
    Email,
    Password,
    SessionList,
    SessionObject,
    SignInObject,
    Token,
    session_object,
    user_errors,
)
from gateway.endpoints.request_body import read_management_body, read_public_body
from gateway.errors import Conflict, InvalidField, InvalidRequest, NotAuthenticated, NotFound
from gateway.http.operations import describes
from gateway.http.policies import demands, public
from gateway.http.responses import json_response
from gateway.http.sessions import CookieJar, client_of, cookie_value, session_of
from gateway.http.shapes import Instant, UserId
from gateway.services import Gateway
from storage.database.public_ids import prefixed_id
from tenancy.users.changes import acting_as_user
from tenancy.users.identifiers import SESSION_PREFIX
from tenancy.users.session_authenticator import SignedIn
from tenancy.users.sessions import NewSession, SessionRecord
from tenancy.users.sign_in import SignedInOrStep

_describes = partial(describes, tags=("sessions",))
_MOST_NEXT = 2_000
_PAGES = ("/console", "/docs")
"""Where a browser may be sent after signing in: these pages and what is below them."""
_NO_STORE = {"cache-control": "no-store"}
_ERRORS = {"sign_in_refused": 401, "too_many_attempts": 429, "csrf": 403}
_BY_LINK = {**_ERRORS, "link_not_valid": 401}
_HASHED = {"sign_in_busy": 503}


class PasswordSignIn(Struct, frozen=True, forbid_unknown_fields=True):
    """Who signs in. `next`: the page of ours to go to then."""

    email: Email
    password: Password
    next: str | None = None


class LinkSignIn(Struct, frozen=True, forbid_unknown_fields=True):
    """The token of a one-time sign-in link."""

    token: Token
    next: str | None = None


class SecondFactor(Struct, frozen=True, forbid_unknown_fields=True):
    """A code of the authenticator, or a recovery code."""

    code: Code
    next: str | None = None


class Proof(Struct, frozen=True, forbid_unknown_fields=True):
    """Either the password or a code."""

    password: Password | None = None
    code: Code | None = None


_PASSWORD, _LINK = msgspec.json.Decoder(PasswordSignIn), msgspec.json.Decoder(LinkSignIn)
_CODE, _PROOF = msgspec.json.Decoder(SecondFactor), msgspec.json.Decoder(Proof)


def sign_in_routes(gateway: Gateway) -> list[HTTPRouteHandler]:  # noqa: PLR0915  # eight routes
    """The routes, for one worker."""
    users, timeout = gateway.services.users, gateway.services.options.client_timeout

    async def entered(request: Request[Any, Any, Any], outcome: SignedInOrStep, to: str | None) -> Response[bytes]:
        """The answer to a step of a sign-in, with its cookie; the session that the browser had ends."""
        if isinstance(outcome, NewSession):
            return await signed_in_answer(gateway, request, outcome, None, to)
        jar = CookieJar.of(request.scope)
        step = SignInObject(state="second_factor_required", user=None, expires_at=Instant(outcome.expires_at), next=to)
        response = json_response(step, headers=_NO_STORE)
        response.set_cookie(jar.step(outcome.token))
        response.set_cookie(jar.gone(jar.session_name))
        return response

    @post(
        "/admin/v1/session",
        status_code=200,
        opt=public() | _describes(SignInObject, body=PasswordSignIn, errors=_ERRORS | _HASHED),
    )
    async def sign_in(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Sign in with e-mail address and password. Where the user has a second factor, a cookie binds the next step to
        this browser; else there is a session."""
        body = await read_public_body(request, timeout, _PASSWORD)
        to = next_page(body.next)
        client = client_of(request.scope)
        with user_errors():
            outcome = await users.sign_in.with_password(body.email, body.password, client)
            return await entered(request, outcome, to)

    @post(
        "/admin/v1/session/link",
        status_code=200,
        opt=public() | _describes(SignInObject, body=LinkSignIn, errors=_BY_LINK),
    )
    async def sign_in_by_link(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Sign in with a one-time link, which an operator made."""
        body = await read_public_body(request, timeout, _LINK)
        to = next_page(body.next)
        with user_errors():
            outcome = await users.sign_in.with_link(body.token, client_of(request.scope))
            return await entered(request, outcome, to)

    @post(
        "/admin/v1/session/second-factor",
        status_code=200,
        opt=public() | _describes(SignInObject, body=SecondFactor, errors=_BY_LINK),
    )
    async def second_factor(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The second step of signing in: a code of the authenticator, or a recovery code. Each is good once."""
        body = await read_public_body(request, timeout, _CODE)
        to = next_page(body.next)
        step = cookie_value(request.scope, CookieJar.of(request.scope).step_name)
        if not step:
            raise NotAuthenticated("Sign in with your password first.", code="sign_in_refused")
        with user_errors():
            outcome = await users.sign_in.with_code(step, body.code, client_of(request.scope))
            return await entered(request, outcome, to)

    @get("/admin/v1/session", opt=demands(None, "session") | _describes(SessionObject))
    async def get_session(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The session of this browser."""
        return json_response(session_object(session_of(request.scope).session, current=True))

    @delete("/admin/v1/session", status_code=204, opt=demands(None, "session") | _describes(None, status=204))
    async def sign_out(request: Request[Any, Any, Any]) -> Response[None]:
        """Sign out of this browser."""
        session = session_of(request.scope).session
        await users.sessions.revoke(session.user_id, session.id, users.clock())
        return _signed_out(request)

    @post(
        "/admin/v1/session/confirm",
        status_code=200,
        opt=demands(None, "session")
        | _describes(SessionObject, body=Proof, errors=_ERRORS | _HASHED | {"wrong_state": 409}),
    )
    async def confirm_session(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Prove again that it is you, by the password or a code: some changes need a proof of the last 15 minutes."""
        body = await read_management_body(request, timeout, _PROOF)
        if (body.password is None) == (body.code is None):
            raise InvalidRequest("Send either $.password or $.code.", path="$.password", code="invalid_value")
        session, client = session_of(request.scope).session, client_of(request.scope)
        with user_errors():
            if body.code is not None:
                await users.sign_in.check_code(session.user_id, body.code, client)
            else:
                await users.sign_in.check_password(session.email, body.password or "", client)
            return await renewed(gateway, request, await _present(request))

    async def _present(request: Request[Any, Any, Any]) -> SessionObject:
        session = session_of(request.scope).session
        return session_object(msgspec.structs.replace(session, proven_at=users.clock()), current=True)

    async def visible_sessions(present: SessionRecord) -> list[SessionRecord]:
        """The user's sessions; of one that a tenant's provider opened, those that this tenant's providers opened."""
        alive = await users.sessions.alive(present.user_id, users.clock())
        return [one for one in alive if present.tenant_id in (None, one.tenant_id)]

    @get("/admin/v1/sessions", opt=demands(None, "session") | _describes(SessionList))
    async def list_sessions(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Your sessions, newest first."""
        present = session_of(request.scope).session
        found = await visible_sessions(present)
        data = [session_object(each, current=each.id == present.id) for each in found]
        return json_response(SessionList(data=data, has_more=False))

    @delete(
        "/admin/v1/sessions/{session:str}",
        status_code=204,
        opt=demands(None, "session") | _describes(None, status=204),
    )
    async def end_session(request: Request[Any, Any, Any], session: FromPath[str]) -> Response[None]:
        """End one of your sessions, wherever it is."""
        present = session_of(request.scope).session
        identity = prefixed_id(session, SESSION_PREFIX)
        seen = present.tenant_id is None or identity in [one.id for one in await visible_sessions(present)]
        if identity is None or not seen or not await users.sessions.revoke(present.user_id, identity, users.clock()):
            raise NotFound(f"There is no session {session[:80]!r}.")
        return _signed_out(request) if identity == present.id else Response(None, status_code=204)

    @post("/admin/v1/sessions/revoke-all", status_code=204, opt=demands(None, "session") | _describes(None, status=204))
    async def end_all_sessions(request: Request[Any, Any, Any]) -> Response[None]:
        """Sign out everywhere, here too. A session that a tenant's identity provider opened ends those of its kind."""
        present = session_of(request.scope).session
        if present.tenant_id is None:
            await users.sessions.revoke_all(present.user_id, users.clock())
        else:
            for one in await visible_sessions(present):
                await users.sessions.revoke(present.user_id, one.id, users.clock())
        return _signed_out(request)

    return [
        *(sign_in, sign_in_by_link, second_factor, get_session, sign_out, confirm_session),
        *(list_sessions, end_session, end_all_sessions),
    ]


async def present_session(gateway: Gateway, request: Request[Any, Any, Any]) -> SignedIn | None:
    """The live session that the browser has on a route that anybody may call."""
    token = cookie_value(request.scope, CookieJar.of(request.scope).session_name)
    return await gateway.services.users.authenticator.authenticate(token) if token else None


async def signed_in_answer(
    gateway: Gateway, request: Request[Any, Any, Any], new: NewSession, body: Struct | None, to: str | None = None
) -> Response[bytes]:
    """The answer to who has signed in, with its cookie; the session that the browser had ends. `body`: the answer, if
    not the usual one."""
    users, jar = gateway.services.users, CookieJar.of(request.scope)
    present = await present_session(gateway, request)
    if present is not None:
        with acting_as_user(present.session.user_id, present.session.email):
            await users.sessions.revoke(present.session.user_id, present.session.id, users.clock())
    done = SignInObject(state="signed_in", user=UserId.of(new.user_id), expires_at=Instant(new.expires_at), next=to)
    response = json_response(done if body is None else body, headers=_NO_STORE)
    response.set_cookie(jar.session(new.token))
    response.set_cookie(jar.gone(jar.step_name))
    return response


async def renewed(gateway: Gateway, request: Request[Any, Any, Any], body: Struct) -> Response[bytes]:
    """The answer to who has just proven itself: its session has another token and is fresh. Raises Conflict where
    another request has changed the token meanwhile."""
    users = gateway.services.users
    signed_in = session_of(request.scope)
    mac = signed_in.token_mac if signed_in.new_token is None else users.sessions.token_mac(signed_in.new_token)
    work = users.sessions.rotate(signed_in.session.id, mac, users.clock(), proven=True)
    token = await work
    if token is None:
        raise Conflict("Your session changed meanwhile; try again.", code="wrong_state")
    response = json_response(body, headers=_NO_STORE)
    response.set_cookie(CookieJar.of(request.scope).session(token))
    return response


def next_page(text: str | None) -> str | None:
    """The page to go to after signing in. Raises InvalidField for any but a path of our own pages: a link to us must
    not send anybody to another site."""
    if text is None:
        return None
    plain = len(text) <= _MOST_NEXT and text.isascii() and text.isprintable() and "\\" not in text
    try:
        parts = urlsplit(text)
    except ValueError:
        plain = False
    else:
        plain = plain and not parts.scheme and not parts.netloc and ".." not in parts.path.split("/")
        # The text itself begins with a page: a browser reads more than one slash as the beginning of a host.
        plain = plain and any(parts.path == page or text.startswith(f"{page}/") for page in _PAGES)
        plain = plain and text.startswith(_PAGES)
    if not plain:
        raise InvalidField("$.next", f"it must be a path below {' or '.join(_PAGES)}")
    return text


def _signed_out(request: Request[Any, Any, Any]) -> Response[None]:
    jar = CookieJar.of(request.scope)
    response: Response[None] = Response(None, status_code=204, headers=_NO_STORE)
    response.set_cookie(jar.gone(jar.session_name))
    return response
