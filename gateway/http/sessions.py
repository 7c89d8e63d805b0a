"""Sessions of browsers: the cookie that carries a token, and the principal that it stands for.

Cookies are looked at below /admin/v1 only. The name `__Host-…` makes browsers keep the cookie for this very host, over
TLS, with every path; over plain http to this machine they would not keep it, so there it has another name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from litestar.datastructures import Cookie, Headers
from litestar.types import Scope
from msgspec import Struct

from gateway.request_context import request_context
from tenancy.rights.principals import Principal
from tenancy.users.identifiers import user_public_id
from tenancy.users.session_authenticator import SessionAuthenticator, SignedIn
from tenancy.users.sessions import ABSOLUTE_US, Client

_SESSION, _STEP, _PROOF = "turnpike", "turnpike-step", "turnpike-proof"
_SECOND_US = 1_000_000
STEP_S = 15 * 60
"""How long a browser may wait before its second factor."""
PROOF_S = 10 * 60
"""How long it may wait at an identity provider or for a passkey."""
_MOST_COOKIES = 8_192
"""Bytes of the header that are looked at."""
_STATE = "turnpike_session"


class CookieJar(Struct, frozen=True):
    """Names and attributes of our cookies for one request: secure unless it came to this machine over plain http."""

    secure: bool

    @classmethod
    def of(cls, scope: Scope) -> CookieJar:
        """Those of a request."""
        host = Headers.from_scope(scope).get("host", "")
        return cls(scope.get("scheme") == "https" or not _is_loopback(host))

    @property
    def session_name(self) -> str:
        """The name of the session's cookie."""
        return self._name(_SESSION)

    @property
    def step_name(self) -> str:
        """The name of the cookie between a password and a second factor."""
        return self._name(_STEP)

    @property
    def proof_name(self) -> str:
        """The name of the cookie of who is at an identity provider, or asks an authenticator for a passkey."""
        return self._name(_PROOF)

    def session(self, token: str) -> Cookie:
        """The cookie of a session."""
        return self._cookie(self.session_name, token, ABSOLUTE_US // _SECOND_US)

    def step(self, token: str) -> Cookie:
        """The cookie of a sign-in that waits for its second factor."""
        return self._cookie(self.step_name, token, STEP_S)

    def proof(self, token: str) -> Cookie:
        """The cookie of who proves itself elsewhere."""
        return self._cookie(self.proof_name, token, PROOF_S)

    def gone(self, name: str) -> Cookie:
        """What removes a cookie."""
        return self._cookie(name, "", 0)

    def _name(self, name: str) -> str:
        return f"__Host-{name}" if self.secure else name

    def _cookie(self, name: str, value: str, seconds: int) -> Cookie:
        return Cookie(
            key=name, value=value, max_age=seconds, path="/", secure=self.secure, httponly=True, samesite="lax"
        )


def cookie_value(scope: Scope, name: str) -> str:
    """The value of a cookie of the request; "" if it is absent, malformed, or there are several of this name."""
    headers = Headers.from_scope(scope).getall("cookie", [])
    text = "; ".join(headers)
    if len(text) > _MOST_COOKIES:
        return ""
    pairs = (pair.strip().partition("=") for pair in text.split(";"))
    values = [value for key, _, value in pairs if key == name]
    return values[0] if len(values) == 1 else ""


def has_session_cookie(scope: Scope) -> bool:
    """Whether the request has a cookie that may be a session's."""
    return bool(cookie_value(scope, CookieJar.of(scope).session_name))


def origin_of(scope: Scope) -> str:
    """Our origin as the browser knows it: what it says, which the guard against other sites has compared with the host,
    else the host that was asked for."""
    headers = Headers.from_scope(scope)
    return headers.get("origin") or f"{scope.get('scheme')}://{headers.get('host', '')}"


def client_of(scope: Scope) -> Client:
    """Where a request comes from."""
    return Client(request_context(scope).address, Headers.from_scope(scope).get("user-agent", ""))


async def authenticate_session(authenticator: SessionAuthenticator, scope: Scope) -> SignedIn | None:
    """The session of the request's cookie, if it is alive. Raises DatabaseUnavailable."""
    token = cookie_value(scope, CookieJar.of(scope).session_name)
    signed_in = await authenticator.authenticate(token) if token else None
    if signed_in is not None:
        remember_session(scope, signed_in)
    return signed_in


def remember_session(scope: Scope, signed_in: SignedIn) -> None:
    """Let this be the session of a request: `session_of` finds it, and the answer has what answers of sessions have."""
    scope["state"][_STATE] = signed_in


def session_of(scope: Scope) -> SignedIn:
    """The session of a request that was authenticated by one."""
    signed_in = scope["state"][_STATE]
    assert isinstance(signed_in, SignedIn)
    return signed_in


def session_principal(signed_in: SignedIn) -> Principal:
    """Who is signed in. `public_id` is the user's, by which the audit log knows it; `id` is the session's."""
    session = signed_in.session
    return Principal(
        kind="session",
        id=session.id,
        public_id=user_public_id(session.user_id),
        name=session.email,
        memberships=session.memberships,
        user=user_public_id(session.user_id),
    )


def session_headers(scope: Scope, present: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """What the answer to a signed-in request has beside the headers that are `present`: nobody may cache it, and the
    browser gets the session's new token if there is one."""
    signed_in = scope["state"].get(_STATE) if "state" in scope else None
    if signed_in is None:
        return []
    headers = [(b"vary", b"Cookie")]
    names = {name for name, _ in present}
    if b"cache-control" not in names:
        headers.append((b"cache-control", b"no-store"))
    if signed_in.new_token is not None and b"set-cookie" not in names:  # a handler's own cookie has a newer token
        headers.append(CookieJar.of(scope).session(signed_in.new_token).to_encoded_header())
    return headers


def _is_loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
