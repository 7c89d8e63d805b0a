"""Sends one message to one endpoint: signed, to a checked address, without redirects, bounded in time and size."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence

import httpx
import msgspec

from webhooks import signing
from webhooks.addresses import AddressPolicy, UrlRefused
from webhooks.checked_requests import CheckedRequests

TIMEOUT_S = 15
MAX_ANSWER = 64 * 1024
"""Bytes of an answer that are read at most; its content is ignored."""
_MAX_ERROR = 300
_MAX_WAIT_S = 86_400


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
        self._requests = CheckedRequests(policy, verify, timeout_s)
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
        answer = await self._requests.send(
            "POST",
            text,
            MAX_ANSWER,
            content=body,
            headers={
                "content-type": "application/json",
                "user-agent": "Turnpike-Webhooks/1",
                **signing.headers(event, time.time_ns() // 1_000_000_000, body, keys),
            },
        )
        return answer.status, _seconds(answer.headers.get("retry-after", ""))


def _seconds(text: str) -> int:
    return min(int(text), _MAX_WAIT_S) if text.isascii() and text.isdigit() and len(text) < 9 else 0
