"""The SDK's way to HTTP: httpx, as this process uses it elsewhere.

The SDK has a client of httpx too; it hands bodies over by a parameter that httpx gives up, and cannot be closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import httpx
from stripe import APIConnectionError, HTTPClient

TIMEOUT_S = 20
"""How long a call may take."""


class HttpxClient(HTTPClient):
    """Asynchronous calls alone."""

    name = "httpx"

    def __init__(self) -> None:
        super().__init__()
        self._client = httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False)

    async def request_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None
    ) -> tuple[bytes, int, Mapping[str, str]]:
        """Send a request. Raises APIConnectionError if no answer came."""
        try:
            answer = await self._client.request(method, url, headers=dict(headers), content=post_data)
        except httpx.HTTPError as error:
            failed: Callable[..., APIConnectionError] = APIConnectionError  # which has no types
            raise failed(f"no answer: {type(error).__name__}", should_retry=True) from error
        return answer.content, answer.status_code, answer.headers

    async def close_async(self) -> None:
        """Close the connections."""
        await self._client.aclose()
