"""Canonical JSON (RFC 8785) of structs that are hashed or must not change, and its SHA-256.

The text has sorted keys, no spaces, and holds integers, strings, lists and objects alone.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

_MOST_EXACT = 2**53
"""RFC 8785 writes numbers as IEEE doubles do: an integer from here on may not be exact."""


class NotCanonical(ValueError):
    """A value that has no canonical text; the message gives its path."""


def canonical(value: Any) -> str:
    """The canonical JSON of a struct or of plain containers. Raises NotCanonical."""
    plain = msgspec.to_builtins(value)
    _check(plain, "$")
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def sha256(text: str) -> str:
    """The SHA-256 of a text in UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def _check(value: Any, path: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not (isinstance(key, str) and key.isascii()):
                raise NotCanonical(f"{path}: the key {key!r} is not ASCII text")
            _check(item, f"{path}.{key}")
    elif isinstance(value, list):
        for n, item in enumerate(value):
            _check(item, f"{path}[{n}]")
    elif type(value) is int:
        if abs(value) >= _MOST_EXACT:
            raise NotCanonical(f"{path}: {value} is an integer of 2^53 or more")
    elif type(value) is not str:
        raise NotCanonical(f"{path}: a {type(value).__name__}, not an integer or text")
