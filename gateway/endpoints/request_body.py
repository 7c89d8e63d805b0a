"""Reads request bodies, within limits of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from litestar import Request
from litestar.exceptions import InternalServerException
from msgspec.json import Decoder

from gateway.dialects.json_paths import decode
from gateway.dialects.large_bodies import LARGE_BYTES
from gateway.errors import BodyTooLarge, BodyTooSlow, ClientLeft, UnsupportedEncoding
from gateway.http.body_budget import BodyShare
from gateway.request_context import request_context
from gateway.services import Gateway
from storage.database.circuit_breaker import beside_the_database
from waterfall.marks import BODY, PARSE

if TYPE_CHECKING:
    from gateway.admission.prepared_request import Payer

Call = TypeVar("Call")
Body = TypeVar("Body")

MANAGEMENT_BYTES = 256 * 1024
"""The largest body of a management request, which is decoded on the event loop."""
_PUBLIC_BYTES, _PUBLIC_S = 16 * 1024, 5.0
"""The largest body of a request that nobody has to be known for, and how long it may take: a sign-in has a few hundred
bytes."""


async def read_management_body(
    request: Request[Any, Any, Any], client_timeout: float, decoder: Decoder[Body], *, default: bytes = b""
) -> Body:
    """The decoded body of a management request; `default` if there is none.

    Raises what `read_body` raises, BodyTooLarge, and InvalidRequest with the JSON path of what is wrong.
    """
    return decode(decoder, await read_body(request, client_timeout, _SizeLimit(MANAGEMENT_BYTES)) or default)


async def read_public_body(request: Request[Any, Any, Any], client_timeout: float, decoder: Decoder[Body]) -> Body:
    """The decoded body of a management request that anybody may send. Raises what `read_management_body` raises."""
    body = await read_body(request, min(client_timeout, _PUBLIC_S), _SizeLimit(_PUBLIC_BYTES))
    return decode(decoder, body)


async def read_signed_body(request: Request[Any, Any, Any], client_timeout: float) -> bytes:
    """The raw body of a webhook, which anybody may send until its signature is checked. Raises what `read_body` raises,
    and BodyTooLarge."""
    return await read_body(request, min(client_timeout, _PUBLIC_S), _SizeLimit(MANAGEMENT_BYTES))


class _SizeLimit:
    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def take(self, size: int) -> None:
        """Count `size` more bytes. Raises BodyTooLarge."""
        self._left -= size
        if self._left < 0:
            raise BodyTooLarge(f"The request body may have at most {self._most} bytes here.")


class _ByteCounter(Protocol):
    def take(self, size: int) -> None:
        """Count `size` more bytes, or raise the error that ends the request."""


async def read_body(request: Request[Any, Any, Any], client_timeout: float, counter: _ByteCounter) -> bytes:
    """The body, which is not kept with the request. `counter` counts its bytes as they arrive.

    Raises UnsupportedEncoding, ClientLeft, BodyTooSlow after `client_timeout` seconds, and what `counter` raises.
    """
    if "content-encoding" in request.headers:
        _check_encoding(request.headers.getall("content-encoding"))
    try:
        with beside_the_database():
            async with asyncio.timeout(client_timeout):
                chunks = []
                async for chunk in request.stream():
                    counter.take(len(chunk))
                    chunks.append(chunk)
                return b"".join(chunks)
    except TimeoutError as error:
        raise BodyTooSlow(f"The request body did not arrive within {client_timeout:g} s.") from error
    except InternalServerException as error:  # Litestar's error for a closed connection
        raise ClientLeft("The client disconnected before its request had arrived.") from error


def _check_encoding(values: list[str]) -> None:
    encodings = {encoding.strip().lower() for encoding in ",".join(values).split(",")}
    if unsupported := encodings - {"", "identity"}:
        raise UnsupportedEncoding(
            f"Content-Encoding {', '.join(sorted(unsupported))} is not supported; send the body uncompressed."
        )


async def read_call(
    gateway: Gateway, request: Request[Any, Any, Any], payer: Payer, parse: Callable[[bytes], Call], share: BodyShare
) -> Call:
    """The parsed body of a generating request. A large one is parsed in a thread, of which tenants have equal shares.

    Its bytes count in `share`, which the caller holds until the request is a prompt. Raises what `read_body` and
    `parse` raise, and RateLimited.
    """
    marks = request_context(request.scope).marks
    body = await read_body(request, gateway.services.options.client_timeout, share)
    marks.mark(BODY)
    call = parse(body) if len(body) <= LARGE_BYTES else await gateway.threads.run(payer.tenant_id, partial(parse, body))
    marks.mark(PARSE)
    return call
