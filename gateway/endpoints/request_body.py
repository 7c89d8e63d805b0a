"""Reading the body of a request, as every endpoint does that takes one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from litestar import Request
from litestar.exceptions import InternalServerException

from gateway.dialects.large_bodies import LARGE_BYTES
from gateway.errors import BodyTooLarge, BodyTooSlow, ClientLeft, UnsupportedEncoding
from gateway.services import Gateway
from tenancy.authenticator import Principal

Call = TypeVar("Call")


MANAGEMENT_BYTES = 256 * 1024
"""The longest body of a request that manages something: it is decoded where it is read."""


async def read_management_body(request: Request[Any, Any, Any], patience: float) -> bytes:
    """The body of a request that manages something. Raises what `read_body` raises, and BodyTooLarge."""
    share = _Bounded(MANAGEMENT_BYTES)
    return await read_body(request, patience, share)


class _Bounded:
    """The bytes that one body may have."""

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, size: int) -> None:
        """So many more have come. Raises BodyTooLarge."""
        self._left -= size
        if self._left < 0:
            raise BodyTooLarge(f"The request's body is longer than the {MANAGEMENT_BYTES} bytes that it may have here.")


class _TakesBytes(Protocol):
    def take(self, size: int) -> None:
        """Count so many bytes more, or refuse them."""


async def read_body(request: Request[Any, Any, Any], patience: float, share: _TakesBytes | None = None) -> bytes:
    """The body, which is not kept with the request. `share`: where its bytes are counted as they come.

    Raises UnsupportedEncoding, ClientLeft, RateLimited, BodyTooSlow after `patience` seconds.
    """
    if "content-encoding" in request.headers:
        _check_encoding(request.headers.getall("content-encoding"))
    try:
        async with asyncio.timeout(patience):
            chunks = []
            async for chunk in request.stream():
                if share is not None:
                    share.take(len(chunk))
                chunks.append(chunk)
            return b"".join(chunks)
    except TimeoutError as error:
        raise BodyTooSlow(f"The request's body did not come within {patience:g} s.") from error
    except InternalServerException as error:  # so Litestar says that the connection has ended
        raise ClientLeft("The client left before its request had come whole.") from error


def _check_encoding(given: list[str]) -> None:
    encodings = {part.strip().lower() for part in ",".join(given).split(",")}
    if unknown := encodings - {"", "identity"}:
        raise UnsupportedEncoding(
            f"The body's Content-Encoding is {', '.join(sorted(unknown))}; send it without compression."
        )


async def read_call(
    gateway: Gateway, request: Request[Any, Any, Any], principal: Principal, parse: Callable[[bytes], Call]
) -> Call:
    """The parsed body: a large one in one of the threads that tenants share.

    While it comes and until it is parsed its bytes count in what the tenant may have at once. Raises what `read_body`
    and `parse` raise, and RateLimited.
    """
    with gateway.bodies.share(principal.tenant_id) as share:
        body = await read_body(request, gateway.services.options.patience, share)
        if len(body) <= LARGE_BYTES:
            return parse(body)
        return await gateway.threads.run(principal.tenant_id, partial(parse, body))
