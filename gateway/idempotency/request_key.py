"""The header `Idempotency-Key`, and what of a request decides over its answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec
from litestar import Request

from gateway.errors import InvalidField
from gateway.http.cache_control import parse_cache_control

HEADER = "Idempotency-Key"
LONGEST_KEY = 255
_VISIBLE = re.compile(r"[\x21-\x7e]+")
DECISIVE_HEADERS = (
    *("accept", "anthropic-version", "anthropic-beta", "openai-beta", "cache-control", "content-type"),
    "x-turnpike-receipt",
)
"""Those that change an answer, or what it may cost."""


class _Stored(msgspec.Struct):
    store: bool | None = None


_decoder = msgspec.json.Decoder(_Stored)


def read_key(values: Sequence[str]) -> bytes:
    """The digest of the key in the header's lines. Raises InvalidField."""
    if len(values) != 1:
        raise InvalidField(HEADER, f"it is sent {len(values)} times; send it once")
    value = values[0]
    if len(value) > LONGEST_KEY:
        raise InvalidField(HEADER, f"it has {len(value)} characters, more than {LONGEST_KEY}")
    if not _VISIBLE.fullmatch(value):
        raise InvalidField(HEADER, "it must have visible ASCII characters without spaces, and at least one")
    return sha256(value.encode()).digest()


def request_digest(method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """SHA-256 of all that decides over the answer."""
    parts = [method.encode(), path.encode(), *(headers.get(name, "").encode() for name in DECISIVE_HEADERS), body]
    digest = sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def keeps_nothing(request: Request[Any, Any, Any], body: bytes) -> bool:
    """Whether the request says that nothing of it is kept: `Cache-Control: no-store`, or `store: false` in the body.
    What cannot be read is told by whoever answers the request."""
    try:
        control = parse_cache_control(request.headers.getall("cache-control", ()))
    except InvalidField:
        return True
    if control is not None and control.no_store:
        return True
    if b'"store"' not in body:
        return False
    try:
        return _decoder.decode(body).store is False
    except msgspec.MsgspecError:
        return True
