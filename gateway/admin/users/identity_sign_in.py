"""/admin/v1/session/provider and /passkey: signing in by an identity provider or a passkey, proving oneself again, and
linking.

Each takes two steps, which a cookie of ten minutes binds to the browser: the first answers where to go, or what to ask
the authenticator; the second takes what the browser brings back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from msgspec import Meta, Struct, structs

from gateway.admin.users.sign_in import next_page, present_session, renewed, signed_in_answer
from gateway.admin.users.user_objects import Name, SessionObject, SignInObject, Token, session_object, user_errors
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_public_body
from gateway.errors import GatewayError, InvalidRequest, NotAllowed, NotAuthenticated, Unavailable
from gateway.http.operations import describes, query
from gateway.http.policies import demands, public
from gateway.http.responses import json_response
from gateway.http.sessions import CookieJar, client_of, cookie_value, origin_of, remember_session, session_of
from gateway.http.shapes import Instant, Page
from gateway.services import Gateway
from storage.free_text import NAME, problem_of_text
from tenancy.directory import Directory
from tenancy.identity.passkeys import Challenge, PasskeyFacts
from tenancy.identity.provider_sign_in import Answer, Purpose
from tenancy.identity.refusals import SENTENCES, IdentityRefused

_describes = partial(describes, tags=("sessions",))
_NO_STORE = {"cache-control": "no-store"}
_REFUSED = {**dict.fromkeys(SENTENCES, 401), "bound_session": 403, "provider_unreachable": 503}
ERRORS = {**_REFUSED, "too_many_attempts": 429, "csrf": 403}
_LONG = Annotated[str, Meta(max_length=8_192)]


class OfferedProvider(Struct, frozen=True, kw_only=True):
    """An identity provider that one may sign in by."""

    object: Literal["offered_provider"] = "offered_provider"
    id: str
    name: str


class OfferedProviderList(Page[OfferedProvider], frozen=True):
    """Identity providers that one may sign in by."""


class ProviderStep(Struct, frozen=True, forbid_unknown_fields=True):
    """By which provider to sign in. `invitation`: the token of one to accept by it."""

    provider: Annotated[str, Meta(max_length=64)]
    invitation: Token = ""


class OwnProviderStep(Struct, frozen=True, forbid_unknown_fields=True):
    """By which provider to prove who is signed in, or which one to link to the account."""

    provider: Annotated[str, Meta(max_length=64)]
    purpose: Literal["confirm", "link"]


class ProviderPage(Struct, frozen=True, kw_only=True):
    """The provider's page to go to."""

    object: Literal["provider_page"] = "provider_page"
    url: str


class ProviderAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters that the provider sent the browser back with, and the page of ours to go to then."""

    state: Annotated[str, Meta(max_length=256)]
    code: _LONG = ""
    iss: _LONG | None = None
    error: _LONG = ""
    next: str | None = None


class ProviderResult(Struct, frozen=True, kw_only=True):
    """What has come of it: `sign_in`: there is a session; `link`: the account is linked; `confirm`: the session is
    fresh."""

    object: Literal["provider_result"] = "provider_result"
    purpose: Literal["sign_in", "link", "confirm"]
    next: str | None = None


class PasskeyChallenge(Struct, frozen=True, kw_only=True):
    """What to ask the authenticator: the options of WebAuthn, as JSON in a text."""

    object: Literal["passkey_challenge"] = "passkey_challenge"
    options: str


class PasskeyAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """What the authenticator answered, as WebAuthn's JSON in a text, and the page of ours to go to then."""

    credential: _LONG
    next: str | None = None


class NewPasskey(Struct, frozen=True, forbid_unknown_fields=True):
    """The passkey that the authenticator made, as WebAuthn's JSON in a text, and what to call it."""

    credential: _LONG
    name: Name


class PasskeyObject(Struct, frozen=True, kw_only=True):
    """A passkey of yours."""

    object: Literal["passkey"] = "passkey"
    id: UUID
    name: str
    created_at: Instant
    used_at: Instant | None


_CREDENTIAL = '{"id": "Yx3…", "type": "public-key"}'
_PROVIDER, _OWN = msgspec.json.Decoder(ProviderStep), msgspec.json.Decoder(OwnProviderStep)
_ANSWER, _PASSKEY = msgspec.json.Decoder(ProviderAnswer), msgspec.json.Decoder(PasskeyAnswer)
_NEW_PASSKEY = msgspec.json.Decoder(NewPasskey)
_ID = "01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12"


@contextmanager
def identity_errors() -> Iterator[None]:
    """Turn errors of `tenancy.identity` and `tenancy.users` into errors of the request."""
    try:
        with user_errors():
            yield
    except IdentityRefused as error:
        raise refused(error) from error


def refused(error: IdentityRefused) -> GatewayError:
    """The error of the request for a refusal; its code is the refusal's name."""
    if error.reason == "provider_unreachable":
        return Unavailable(str(error), retry_after=5, code=error.reason)
    if error.reason == "bound_session":
        return NotAllowed(str(error), code=error.reason)
    return NotAuthenticated(str(error), code=error.reason)


def passkey_object(facts: PasskeyFacts) -> PasskeyObject:
    """A passkey as it is shown."""
    used = None if facts.used_at is None else Instant(facts.used_at)
    return PasskeyObject(id=facts.id, name=facts.name, created_at=Instant(facts.created_at), used_at=used)


def check_own_account(request: Request[Any, Any, Any]) -> None:
    """Raise NotAllowed in a session that a tenant's provider opened: it changes nothing of the account."""
    if session_of(request.scope).session.tenant_id is not None:
        raise refused(IdentityRefused("bound_session"))


def check_adds_proof(request: Request[Any, Any, Any]) -> None:
    """Raise NotAllowed where the session adds nothing that lets its user in: a tenant's provider opened it, or a link,
    which others may have made."""
    check_own_account(request)
    if session_of(request.scope).session.by_link:
        message = "A link opened this session. Sign in with your password, a passkey or your identity provider first."
        raise NotAllowed(message, code="confirmation_required")


def identity_sign_in_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    return [*_provider_routes(gateway), *_passkey_routes(gateway)]


def _provider_routes(gateway: Gateway) -> list[HTTPRouteHandler]:  # noqa: PLR0915  # four routes
    identity = gateway.services.identity
    timeout = gateway.services.options.client_timeout

    @get(
        "/admin/v1/sign-in-providers",
        opt=public()
        | _describes(
            OfferedProviderList(data=[OfferedProvider(id=_ID, name="Acme's Entra")], has_more=False),
            query=(
                query("tenant", str, "The name of a tenant whose providers are meant.", example="acme"),
                query(
                    "email", str, "An e-mail address, by whose domain a provider is found.", example="a@acme.example"
                ),
            ),
        ),
    )
    async def list_sign_in_providers(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The identity providers that one may sign in by: those of the platform, of a tenant, or of the domain of an
        e-mail address. A tenant or domain without any answers as one that does not exist."""
        parameters = Parameters.of(request)
        named, email = parameters.text("tenant"), parameters.text("email")
        parameters.reject_unknown()
        found = []
        if named and not problem_of_text(named, NAME):
            tenant = await Directory(gateway.services.database).tenant(named)
            found = [] if tenant is None else await identity.providers.offered(tenant.id)
        elif email:
            domain = email.rpartition("@")[2]
            found = await identity.providers.offered(None, domain) if domain else []
        elif not named:
            found = await identity.providers.offered(None)
        data = [OfferedProvider(id=str(one.id), name=one.name) for one in found]
        return json_response(OfferedProviderList(data=data, has_more=False), headers=_NO_STORE)

    async def begun(request: Request[Any, Any, Any], provider: str, purpose: Purpose, **more: Any) -> Response[bytes]:
        with identity_errors():
            at = origin_of(request.scope), client_of(request.scope)
            step = await identity.sign_in.begin(_provider_id(provider), purpose, *at, **more)
        response = json_response(ProviderPage(url=step.url), headers=_NO_STORE)
        response.set_cookie(CookieJar.of(request.scope).proof(step.cookie))
        return response

    @post(
        "/admin/v1/session/provider",
        status_code=200,
        opt=public() | _describes(ProviderPage(url="https://…"), body=ProviderStep(provider=_ID), errors=ERRORS),
    )
    async def begin_provider_sign_in(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Begin to sign in by an identity provider: go to the page that is answered. It sends the browser back to
        /console/provider, which finishes."""
        body = await read_public_body(request, timeout, _PROVIDER)
        return await begun(request, body.provider, "sign_in", invitation=body.invitation)

    @post(
        "/admin/v1/session/provider/confirm",
        status_code=200,
        opt=demands(None, "session")
        | _describes(
            ProviderPage(url="https://…"), body=OwnProviderStep(provider=_ID, purpose="confirm"), errors=ERRORS
        ),
    )
    async def begin_provider_proof(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Begin to prove again by an identity provider that it is you, or to link your account to one. Linking takes a
        session that has proven you lately."""
        body = await read_public_body(request, timeout, _OWN)
        signed_in = session_of(request.scope)
        if body.purpose == "link":
            check_adds_proof(request)
            if not signed_in.fresh:
                message = "Prove first that it is you: POST /admin/v1/session/confirm."
                raise NotAllowed(message, code="confirmation_required")
        return await begun(request, body.provider, body.purpose, session=signed_in.session)

    @post(
        "/admin/v1/session/provider/finish",
        status_code=200,
        opt=public()
        | _describes(
            ProviderResult(purpose="sign_in"),
            body=ProviderAnswer(state="…", code="…", iss="https://login.example"),
            errors={**ERRORS, "link_not_valid": 401, "last_owner": 409, "wrong_state": 409},
        ),
    )
    async def finish_provider_sign_in(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Finish what was begun in this browser, with the parameters that the provider sent it back with."""
        body = await read_public_body(request, timeout, _ANSWER)
        to, jar = next_page(body.next), CookieJar.of(request.scope)
        present = await present_session(gateway, request)
        with identity_errors():
            finished = await identity.sign_in.finish(
                cookie_value(request.scope, jar.proof_name),
                Answer(body.state, body.code, body.iss, body.error),
                origin_of(request.scope),
                client_of(request.scope),
                session=None if present is None else present.session,
            )
            result = ProviderResult(purpose=finished.purpose, next=to)
            if finished.session is not None:
                response = await signed_in_answer(gateway, request, finished.session, result)
            elif finished.purpose == "confirm" and present is not None:
                remember_session(request.scope, present)
                response = await renewed(gateway, request, result)
            else:
                response = json_response(result, headers=_NO_STORE)
                if present is not None and present.new_token is not None:
                    response.set_cookie(jar.session(present.new_token))
        response.set_cookie(jar.gone(jar.proof_name))
        return response

    return [list_sign_in_providers, begin_provider_sign_in, begin_provider_proof, finish_provider_sign_in]


def _passkey_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    users, passkeys = gateway.services.users, gateway.services.identity.passkeys
    timeout = gateway.services.options.client_timeout
    challenge = PasskeyChallenge(options='{"challenge": "…"}')

    def asked(request: Request[Any, Any, Any], made: Challenge) -> Response[bytes]:
        response = json_response(PasskeyChallenge(options=made.options), headers=_NO_STORE)
        response.set_cookie(CookieJar.of(request.scope).proof(made.cookie))
        return response

    def cookie(request: Request[Any, Any, Any]) -> str:
        return cookie_value(request.scope, CookieJar.of(request.scope).proof_name)

    @post("/admin/v1/session/passkey/challenge", status_code=200, opt=public() | _describes(challenge, errors=ERRORS))
    async def begin_passkey_sign_in(request: Request[Any, Any, Any]) -> Response[bytes]:
        """What to ask the authenticator to sign in by a passkey."""
        return asked(request, await passkeys.begin_sign_in(origin_of(request.scope), client_of(request.scope)))

    @post(
        "/admin/v1/session/passkey",
        status_code=200,
        opt=public() | _describes(SignInObject, body=PasskeyAnswer(credential=_CREDENTIAL), errors=ERRORS),
    )
    async def sign_in_by_passkey(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Sign in with a passkey. No second factor is asked for: the authenticator has verified you."""
        body = await read_public_body(request, timeout, _PASSKEY)
        to = next_page(body.next)
        with identity_errors():
            new = await passkeys.sign_in(
                cookie(request), body.credential, origin_of(request.scope), client_of(request.scope)
            )
            return await signed_in_answer(gateway, request, new, None, to)

    @post(
        "/admin/v1/session/confirm/passkey/challenge",
        status_code=200,
        opt=demands(None, "session") | _describes(challenge, errors=ERRORS),
    )
    async def begin_passkey_proof(request: Request[Any, Any, Any]) -> Response[bytes]:
        """What to ask the authenticator to prove again that it is you."""
        user_id = session_of(request.scope).session.user_id
        return asked(request, await passkeys.begin_sign_in(origin_of(request.scope), client_of(request.scope), user_id))

    @post(
        "/admin/v1/session/confirm/passkey",
        status_code=200,
        opt=demands(None, "session")
        | _describes(SessionObject, body=PasskeyAnswer(credential=_CREDENTIAL), errors={**ERRORS, "wrong_state": 409}),
    )
    async def confirm_by_passkey(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Prove again by a passkey that it is you: some changes need a proof of the last 15 minutes."""
        body = await read_public_body(request, timeout, _PASSKEY)
        session = session_of(request.scope).session
        with identity_errors():
            await passkeys.confirm(
                session, cookie(request), body.credential, origin_of(request.scope), client_of(request.scope)
            )
            fresh = structs.replace(session, proven_at=users.clock())
            return await renewed(gateway, request, session_object(fresh, current=True))

    @post(
        "/admin/v1/users/me/passkeys/challenge",
        status_code=200,
        opt=demands(None, "session", fresh=True) | _describes(challenge, errors={**ERRORS, "wrong_state": 409}),
    )
    async def begin_new_passkey(request: Request[Any, Any, Any]) -> Response[bytes]:
        """What to ask the authenticator that is to make a passkey."""
        check_adds_proof(request)
        with identity_errors():
            return asked(
                request,
                await passkeys.begin_registration(session_of(request.scope).session, origin_of(request.scope)),
            )

    @post(
        "/admin/v1/users/me/passkeys",
        status_code=201,
        opt=demands(None, "session", fresh=True)
        | _describes(
            PasskeyObject,
            status=201,
            body=NewPasskey(credential=_CREDENTIAL, name="Laptop"),
            errors={**ERRORS, "wrong_state": 409},
        ),
    )
    async def add_passkey(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Keep the passkey that the authenticator made."""
        check_adds_proof(request)
        body = await read_public_body(request, timeout, _NEW_PASSKEY)
        with identity_errors():
            facts = await passkeys.register(
                session_of(request.scope).session, cookie(request), body.credential, body.name, origin_of(request.scope)
            )
        return json_response(passkey_object(facts), 201)

    return [
        *(begin_passkey_sign_in, sign_in_by_passkey, begin_passkey_proof, confirm_by_passkey),
        *(begin_new_passkey, add_passkey),
    ]


def _provider_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise InvalidRequest("$.provider is no identity provider's id.", path="$.provider") from error
