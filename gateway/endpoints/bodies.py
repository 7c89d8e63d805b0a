"""Reading the body of a request, as every endpoint does that takes one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from litestar import Request
from litestar.exceptions import InternalServerException

from gateway.dialects.large_bodies import LARGE_BYTES
from gateway.failures import BodyTooSlow, ClientLeft, UnsupportedEncoding
from gateway.services import Gateway
from gateway.tenancy.authenticator import Principal

Call = TypeVar("Call")


async def read_body(request: Request[Any, Any, Any], patience: float) -> bytes:
    """The body. Raises UnsupportedEncoding, ClientLeft, BodyTooSlow after `patience` seconds."""
    if "content-encoding" in request.headers:
        _check_encoding(request.headers.getall("content-encoding"))
    try:
        async with asyncio.timeout(patience):
            return await request.body()
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


async def parsed(gateway: Gateway, principal: Principal, body: bytes, parse: Callable[[bytes], Call]) -> Call:
    """The parsed body: a large one in one of the threads that tenants share. Raises what `parse` raises."""
    if len(body) <= LARGE_BYTES:
        return parse(body)
    return await gateway.threads.run(principal.tenant_id, partial(parse, body))
