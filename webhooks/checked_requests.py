"""Requests to URLs that others named: to a checked address, without redirects or proxies, bounded in time and size."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

import httpx
import msgspec

from webhooks.addresses import AddressPolicy, host_of

_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For http:// URLs: a context that trusts no certificate and saves loading the system's."""


class CheckedAnswer(msgspec.Struct, frozen=True):
    """What was answered. `cut_off`: the body is longer than was asked for, and `body` has its beginning."""

    status: int
    headers: httpx.Headers
    body: bytes
    cut_off: bool


class CheckedRequests:
    """Sends requests within an address policy. `verify`: the certificates to trust, by default the system's;
    `timeout_s`: of each step of a request in seconds. Who calls it bounds the whole."""

    def __init__(self, policy: AddressPolicy, verify: ssl.SSLContext | None, timeout_s: float) -> None:
        self.policy = policy
        self._verify = verify
        self._loading = asyncio.Lock()
        self._timeout_s = timeout_s

    async def send(
        self, method: str, text: str, most: int, *, content: bytes | None = None, headers: Mapping[str, str]
    ) -> CheckedAnswer:
        """The answer of this URL, of whose body at most `most` bytes are kept.

        Raises UrlRefused, httpx.HTTPError, httpx.InvalidURL, OSError, ssl.SSLError.
        """
        url = self.policy.check_url(text)
        address = await self.policy.pin(url)
        verify = await self._trusted() if url.scheme == "https" else _NOBODY
        # A client of its own for each attempt: a pool keeps connections by address, and would reuse one that was
        # verified for another host of the same address. No proxy from the environment: it would resolve the name
        # itself.
        client = httpx.AsyncClient(verify=verify, trust_env=False, follow_redirects=False, timeout=self._timeout_s)
        async with client:
            request = client.build_request(
                method,
                url.copy_with(host=address),
                content=content,
                headers={"host": url.netloc.decode(), **headers},
                extensions={"sni_hostname": host_of(url)},
            )
            answer = await client.send(request, stream=True)
            try:
                body, cut_off = await _read(answer, most)
            finally:
                await answer.aclose()
        return CheckedAnswer(answer.status_code, answer.headers, body, cut_off)

    async def _trusted(self) -> ssl.SSLContext:
        async with self._loading:  # once, because this reads all certificates of the machine
            if self._verify is None:
                self._verify = await asyncio.to_thread(httpx.create_ssl_context)
        return self._verify


async def _read(answer: httpx.Response, most: int) -> tuple[bytes, bool]:
    """The bytes as they came (no coding was asked for), and whether there were more."""
    body = b""
    async for chunk in answer.aiter_raw():
        body += chunk
        if len(body) > most:
            return body[:most], True
    return body, False
