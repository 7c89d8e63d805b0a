"""Signing in by an identity provider: OpenID Connect's code flow with PKCE, state and nonce.

State, nonce and PKCE's verifier are made of one random cookie, so that an answer is worth something in the browser
that asked alone; and the database knows each state until it is answered, so that it is answered once. The issuer in
the answer (RFC 9207) and the provider that the state was made for tell providers apart.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from hashlib import sha256
from typing import Literal, TypeAlias
from urllib.parse import urlencode
from uuid import UUID

import structlog
from msgspec import Struct
from msgspec.json import encode

from storage.database.base import to_instant
from storage.database.database import Database
from tenancy.identity.id_tokens import (
    LEEWAY_S,
    Claims,
    check_fresh,
    key_id_of,
    proven_at,
    verify_id_token,
    verify_logout_token,
)
from tenancy.identity.known_people import KnownPeople
from tenancy.identity.provider_client import ProviderClient
from tenancy.identity.providers import Provider, Providers
from tenancy.identity.refusals import IdentityRefused
from tenancy.users.attempts import MINUTE_S, Limit, network_of
from tenancy.users.changes import acting_as_user
from tenancy.users.errors import LinkRefused
from tenancy.users.links import LIFETIME_US
from tenancy.users.service import Users
from tenancy.users.sessions import Client, NewSession, SessionOrigin, SessionRecord
from tenancy.users.tables import OneTimeToken
from tenancy.users.tokens import new_token

log = structlog.get_logger(__name__)

Purpose: TypeAlias = Literal["sign_in", "link", "confirm"]
CALLBACK_PAGE = "/console/provider"
"""The page that the provider sends the browser back to: the redirect URI below the gateway's origin."""
_MOST_BEGUN = 60
_MOST_COOKIE = 400
_SECOND_US = 1_000_000


class Begun(Struct, frozen=True):
    """A sign-in that was begun: where the browser is to go, and the cookie that binds it."""

    url: str
    cookie: str


class Answer(Struct, frozen=True):
    """What the provider sent the browser back with."""

    state: str
    code: str = ""
    issuer: str | None = None
    error: str = ""


class Finished(Struct, frozen=True):
    """What has come of it. `session`: only of a sign-in."""

    purpose: Purpose
    user_id: UUID
    session: NewSession | None = None


class ProviderSignIn:
    """Signs users in by identity providers, links their accounts and proves them again."""

    def __init__(
        self, database: Database, users: Users, providers: Providers, people: KnownPeople, client: ProviderClient
    ) -> None:
        self._database = database
        self._users = users
        self._providers = providers
        self._people = people
        self._client = client
        self._clock: Callable[[], int] = users.clock

    async def begin(
        self,
        provider_id: UUID,
        purpose: Purpose,
        origin: str,
        client: Client,
        *,
        session: SessionRecord | None = None,
        invitation: str = "",
    ) -> Begun:
        """Begin a sign-in. `origin`: of the gateway as the browser knows it. `session`: of who links or proves itself.
        `invitation`: the token of one to accept by it. Raises IdentityRefused, TooManyAttempts."""
        limit = Limit(f"provider-address/{network_of(client.address)}", _MOST_BEGUN, 5 * MINUTE_S)
        await self._users.attempts.take([limit])
        found = await self._providers.find(provider_id)
        if found is None:
            raise IdentityRefused("provider_off")
        provider, _ = found
        if purpose == "link" and session is not None and session.tenant_id is not None:
            raise IdentityRefused("bound_session")
        metadata = await self._client.metadata(provider.issuer)
        cookie = f"{new_token()}.{invitation}"
        state = self._derived(cookie, "state")
        async with self._database.transaction() as transaction:
            user_id = None if session is None else session.user_id
            method = f"{purpose}/{provider.id.hex}"
            await self._users.links.create_within(transaction, user_id, "provider", self._clock(), method, token=state)
        challenge = sha256(self._derived(cookie, "verifier").encode()).digest()
        query = {
            "response_type": "code",
            "client_id": provider.client_id,
            "redirect_uri": origin + CALLBACK_PAGE,
            "scope": provider.scopes,
            "state": state,
            "nonce": self._derived(cookie, "nonce"),
            "code_challenge": _base64url(challenge),
            "code_challenge_method": "S256",
        }
        if purpose == "confirm":
            query |= {"prompt": "login", "max_age": "0"}
            if provider.acr_values:
                query["acr_values"] = provider.acr_values
        if metadata.claims_parameter_supported:
            query["claims"] = encode({"id_token": {"auth_time": {"essential": True}}}).decode()
        mark = "&" if "?" in metadata.authorization_endpoint else "?"
        return Begun(f"{metadata.authorization_endpoint}{mark}{urlencode(query)}", cookie)

    async def finish(
        self, cookie: str, answer: Answer, origin: str, client: Client, *, session: SessionRecord | None = None
    ) -> Finished:
        """Finish what was begun in this browser. `session`: the one that the browser has now.

        Raises IdentityRefused, LinkRefused (of an invitation), TooManyAttempts, DatabaseUnavailable.
        """
        try:
            async with self._users.sign_in.link_attempt(client):
                return await self._finish(cookie, answer, origin, client, session)
        except IdentityRefused as error:
            log.warning("an identity provider's answer is refused", reason=error.reason, detail=error.detail)
            await self._users.sign_in.record_failure(None, "provider", error.reason)
            raise

    async def end_sessions(self, provider_id: UUID, logout_token: str) -> int:
        """End the sessions that a logout token names; how many. Raises IdentityRefused."""
        found = await self._providers.find(provider_id)
        if found is None:
            raise IdentityRefused("provider_off")
        provider, now = found[0], self._clock()
        keys = await self._client.keys(provider.issuer, key_id_of(logout_token))
        claims = verify_logout_token(
            logout_token, keys, issuer=provider.issuer, client_id=provider.client_id, now=now // _SECOND_US
        )
        # A token that is presented again ends no session that was opened after it was issued.
        until = (int(claims["iat"]) + LEEWAY_S) * _SECOND_US
        return await self._people.end_sessions(provider, claims.get("sub"), claims.get("sid"), until, now)

    async def _finish(
        self, cookie: str, answer: Answer, origin: str, client: Client, present: SessionRecord | None
    ) -> Finished:
        row = await self._take(cookie, answer.state)
        purpose, _, provider_hex = row.method.partition("/")
        found = await self._providers.find(UUID(provider_hex))
        if found is None:
            raise IdentityRefused("provider_off")
        provider, secret = found
        claims = await self._claims(provider, secret, cookie, answer, origin)
        if purpose == "sign_in":
            return await self._sign_in(provider, claims, cookie.partition(".")[2], client)
        if present is None or present.user_id != row.user_id:
            raise IdentityRefused("other_browser")
        if purpose == "link":
            await self._people.link(provider, claims, present, self._clock())
            return Finished("link", present.user_id)
        check_fresh(claims, since=to_instant(row.created_at) // _SECOND_US, acr_values=provider.acr_values.split())
        await self._people.check_is(provider, claims, present)
        return Finished("confirm", present.user_id)

    async def _take(self, cookie: str, state: str) -> OneTimeToken:
        """The row of a state that this browser begun, which is used up."""
        now, own = self._clock(), self._derived(cookie, "state") if 0 < len(cookie) <= _MOST_COOKIE else ""
        try:
            async with self._database.transaction() as session:
                await self._users.links.look_at(session, "provider", state, now)
                if not hmac.compare_digest(own.encode(), state.encode()):
                    raise IdentityRefused("other_browser")
                return await self._users.links.take(session, "provider", state, now)
        except LinkRefused as error:
            raise IdentityRefused("unknown_state", f"lifetime {LIFETIME_US['provider']} µs") from error

    async def _claims(self, provider: Provider, secret: str | None, cookie: str, answer: Answer, origin: str) -> Claims:
        metadata = await self._client.metadata(provider.issuer)
        missing = answer.issuer is None and metadata.authorization_response_iss_parameter_supported
        if missing or answer.issuer not in (None, provider.issuer):
            raise IdentityRefused("mixed_up_providers")
        if answer.error:
            raise IdentityRefused("provider_said_no", answer.error[:200])
        if not answer.code:
            raise IdentityRefused("no_code")
        token = await self._client.redeem(
            provider.issuer,
            answer.code,
            client_id=provider.client_id,
            secret=secret,
            redirect_uri=origin + CALLBACK_PAGE,
            verifier=self._derived(cookie, "verifier"),
        )
        return verify_id_token(
            token,
            await self._client.keys(provider.issuer, key_id_of(token)),
            issuer=provider.issuer,
            client_id=provider.client_id,
            nonce=self._derived(cookie, "nonce"),
            now=self._clock() // _SECOND_US,
        )

    async def _sign_in(self, provider: Provider, claims: Claims, invitation: str, client: Client) -> Finished:
        now = self._clock()
        async with self._database.transaction() as session:
            user = await self._people.user_of(session, provider, claims, now)
            if user is None and invitation:
                user = await self._people.invited(session, provider, claims, invitation, now)
            if user is None:
                user = await self._people.first_seen(session, provider, claims, now)
            if user.disabled_at is not None:
                raise IdentityRefused("user_disabled")
            with acting_as_user(user.id, user.email):
                await self._people.set_roles(session, provider, claims, user.id, now)
                opened_by = _origin_of(provider, claims)
                method = f"provider {provider.name}"
                new = await self._users.sign_in.open_session(session, user.id, method, client, now, origin=opened_by)
        await self._users.changes.announce(user.id)
        return Finished("sign_in", user.id, new)

    def _derived(self, cookie: str, what: str) -> str:
        return _base64url(self._users.secrets.mac("provider", cookie, what.encode()))


def _origin_of(provider: Provider, claims: Claims) -> SessionOrigin:
    sid = claims.get("sid")
    name = sid[:255] if isinstance(sid, str) else ""
    strong = not provider.acr_values or claims.get("acr") in provider.acr_values.split()
    return SessionOrigin(provider.id, provider.tenant_id, name, proven_at(claims) * _SECOND_US if strong else 0)


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
