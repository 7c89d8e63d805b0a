"""Sends one message to one endpoint: signed, to a checked address, without redirects, bounded in time and size."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence

import httpx
import msgspec

from webhooks import signing
from webhooks.addresses import AddressPolicy, UrlRefused, host_of

TIMEOUT_S = 15
MAX_ANSWER = 64 * 1024
"""Bytes of an answer that are read at most; its content is ignored."""
_MAX_ERROR = 300
_MAX_WAIT_S = 86_400

_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For http:// URLs: a context that trusts no certificate and saves loading the system's."""


class SendResult(msgspec.Struct, frozen=True):
    """The result of an attempt. `status` is None without an answer; `retry_after` is in seconds, 0 if not given."""

    status: int | None
    error: str
    milliseconds: int
    retry_after: int = 0

    @property
    def delivered(self) -> bool:
        """Whether the endpoint accepted the message (2xx)."""
        return self.status is not None and 200 <= self.status < 300 and not self.error

    @property
    def gone(self) -> bool:
        """Whether the endpoint wants no more messages (410 Gone)."""
        return self.status == 410


class WebhookSender:
    """Sends messages. `verify`: the certificates to trust, by default the system's."""

    def __init__(self, policy: AddressPolicy, verify: ssl.SSLContext | None = None, timeout_s: int = TIMEOUT_S) -> None:
        self._policy = policy
        self._verify = verify
        self._loading = asyncio.Lock()
        self._timeout_s = timeout_s

    async def send(self, url: str, event: str, body: bytes, keys: Sequence[bytes]) -> SendResult:
        """Attempt one delivery. Failures of endpoint, network or resolver are returned, never raised."""
        began = time.monotonic_ns()
        status, error, retry_after = None, "", 0
        try:
            async with asyncio.timeout(self._timeout_s):
                status, retry_after = await self._post(url, event, body, keys)
        except TimeoutError:
            error = f"no answer within {self._timeout_s} s"
        except UrlRefused as refusal:
            error = f"refused: {refusal}"
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ssl.SSLError) as failure:
            error = f"{type(failure).__name__}: {failure}"
        if status is not None and not error and not 200 <= status < 300:
            error = f"answered {status}" + (", and redirects are not followed" if 300 <= status < 400 else "")
        error = "".join(letter if letter.isprintable() else "\ufffd" for letter in error[:_MAX_ERROR])
        return SendResult(status, error, (time.monotonic_ns() - began) // 1_000_000, retry_after)

    async def _post(self, text: str, event: str, body: bytes, keys: Sequence[bytes]) -> tuple[int, int]:
        url = self._policy.check_url(text)
        address = await self._policy.pin(url)
        verify = await self._trusted() if url.scheme == "https" else _NOBODY
        # A client of its own for each attempt: a pool keeps connections by address, and would reuse one that was
        # verified for another host of the same address. No proxy from the environment: it would resolve the name
        # itself.
        client = httpx.AsyncClient(verify=verify, trust_env=False, follow_redirects=False, timeout=self._timeout_s)
        async with client:
            request = client.build_request(
                "POST",
                url.copy_with(host=address),
                content=body,
                headers={
                    "host": url.netloc.decode(),
                    "content-type": "application/json",
                    "user-agent": "Turnpike-Webhooks/1",
                    **signing.headers(event, time.time_ns() // 1_000_000_000, body, keys),
                },
                extensions={"sni_hostname": host_of(url)},
            )
            answer = await client.send(request, stream=True)
            try:
                await _read(answer)
            finally:
                await answer.aclose()
        return answer.status_code, _seconds(answer.headers.get("retry-after", ""))

    async def _trusted(self) -> ssl.SSLContext:
        async with self._loading:  # once, because this reads all certificates of the machine
            if self._verify is None:
                self._verify = await asyncio.to_thread(httpx.create_ssl_context)
        return self._verify


async def _read(answer: httpx.Response) -> None:
    """Read the answer up to MAX_ANSWER bytes."""
    size = 0
    async for chunk in answer.aiter_raw():
        size += len(chunk)
        if size > MAX_ANSWER:
            return


def _seconds(text: str) -> int:
    return min(int(text), _MAX_WAIT_S) if text.isascii() and text.isdigit() and len(text) < 9 else 0
