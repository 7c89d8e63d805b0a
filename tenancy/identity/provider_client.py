"""Talks with identity providers: their metadata and keys, which are kept for a while, and codes for tokens.

Whatever is fetched goes to a checked address, within `TIMEOUT_S` and `MOST_BYTES`. Keys are asked for again when a
token names one that is not known, once in `REFETCH_S` at most: tokens with made-up key ids cause no traffic.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import msgspec
from msgspec import Struct

from tenancy.identity.id_tokens import Keys
from tenancy.identity.refusals import IdentityRefused
from webhooks.addresses import UrlRefused
from webhooks.checked_requests import CheckedAnswer, CheckedRequests

TIMEOUT_S = 5.0
"""Of one request to a provider, whole."""
MOST_BYTES = 256 * 1024
KEPT_S = 3_600.0
REFETCH_S = 30.0
_MOST_KEYS = 100
_MOST_PROVIDERS = 1_000
_HEADERS = {"accept": "application/json", "accept-encoding": "identity", "user-agent": "Turnpike-Identity/1"}


class Metadata(Struct, frozen=True):
    """What a provider says of itself (OpenID Connect Discovery 1.0)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False
    claims_parameter_supported: bool = False


class _Jwks(Struct, frozen=True):
    keys: list[dict[str, Any]]


class _Kept(Struct):
    metadata: Metadata
    at: float
    keys: Keys = ()
    keys_at: float = float("-inf")


class ProviderClient:
    """Fetches from providers within the policy of `requests`. `clock`: seconds, monotonic."""

    def __init__(self, requests: CheckedRequests, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests = requests
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def check_issuer(self, issuer: str) -> None:
        """Raise UrlRefused for an issuer that may not be asked."""
        url = self._requests.policy.check_url(issuer)
        if url.query:
            raise UrlRefused("an issuer has no query")

    async def metadata(self, issuer: str) -> Metadata:
        """What the provider of this issuer says of itself. Raises IdentityRefused."""
        return (await self._known(issuer)).metadata

    async def keys(self, issuer: str, key_id: str | None) -> Keys:
        """The provider's keys; they are asked for again where none has this id. Raises IdentityRefused."""
        kept = await self._known(issuer)
        age = self._clock() - kept.keys_at
        if age < KEPT_S and (age < REFETCH_S or key_id is None or any(key.get("kid") == key_id for key in kept.keys)):
            return kept.keys
        async with self._locks.setdefault(issuer, asyncio.Lock()):
            if self._clock() - kept.keys_at >= min(age, REFETCH_S):  # nobody else asked meanwhile
                body = await self._get(kept.metadata.jwks_uri)
                try:
                    keys = msgspec.json.decode(body, type=_Jwks).keys
                except msgspec.DecodeError as error:
                    raise IdentityRefused("keys_refused", str(error)) from error
                if len(keys) > _MOST_KEYS:
                    raise IdentityRefused("keys_refused", f"more than {_MOST_KEYS} keys")
                kept.keys, kept.keys_at = keys, self._clock()
        return kept.keys

    async def redeem(
        self, issuer: str, code: str, *, client_id: str, secret: str | None, redirect_uri: str, verifier: str
    ) -> str:
        """The ID token for a code. Raises IdentityRefused."""
        metadata = await self.metadata(issuer)
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
            "client_id": client_id,
        }
        headers = {**_HEADERS, "content-type": "application/x-www-form-urlencoded"}
        if secret is not None and "client_secret_post" in metadata.token_endpoint_auth_methods_supported:
            form["client_secret"] = secret
        elif secret is not None:
            pair = f"{quote(client_id, safe='')}:{quote(secret, safe='')}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        answer = await self._send("POST", metadata.token_endpoint, headers, urlencode(form).encode())
        if 400 <= answer.status < 500:
            raise IdentityRefused("code_refused", answer.body[:300].decode(errors="replace"))
        if answer.status != 200:
            raise IdentityRefused("provider_unreachable", f"the token endpoint answers {answer.status}")
        try:
            token = msgspec.json.decode(answer.body, type=dict[str, Any]).get("id_token")
        except msgspec.DecodeError as error:
            raise IdentityRefused("no_id_token", str(error)) from error
        if not isinstance(token, str):
            raise IdentityRefused("no_id_token")
        return token

    async def _known(self, issuer: str) -> _Kept:
        kept = self._kept.get(issuer)
        if kept is not None and self._clock() - kept.at < KEPT_S:
            return kept
        body = await self._get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        try:
            metadata = msgspec.json.decode(body, type=Metadata)
        except msgspec.DecodeError as error:
            raise IdentityRefused("metadata_refused", str(error)) from error
        if metadata.issuer != issuer:
            raise IdentityRefused("metadata_refused", f"its issuer is {metadata.issuer[:200]}")
        try:
            self._requests.policy.check_url(metadata.authorization_endpoint)
        except UrlRefused as error:
            raise IdentityRefused("metadata_refused", f"authorization_endpoint: {error}") from error
        if len(self._kept) >= _MOST_PROVIDERS:
            self._kept.clear()
        self._kept[issuer] = _Kept(metadata, self._clock())
        return self._kept[issuer]

    async def _get(self, url: str) -> bytes:
        answer = await self._send("GET", url, _HEADERS)
        if answer.status != 200:
            raise IdentityRefused("provider_unreachable", f"{url} answers {answer.status}")
        return answer.body

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None = None
    ) -> CheckedAnswer:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer = await self._requests.send(method, url, MOST_BYTES, content=content, headers=headers)
        except UrlRefused as error:
            raise IdentityRefused("address_refused", f"{url}: {error}") from error
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, OSError, ssl.SSLError) as error:
            raise IdentityRefused("provider_unreachable", f"{url}: {type(error).__name__}: {error}") from error
        if answer.cut_off:
            raise IdentityRefused("answer_too_large", url)
        return answer
