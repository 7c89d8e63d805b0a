"""The one text of a document: canonical JSON in the manner of RFC 8785, and its SHA-256.

Documents hold integers and strings alone, whose text has no two forms: keys are sorted, there is no white space, and
integers stay within the 2⁵³ that every JSON reader keeps exactly. What can be larger is a string.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

_EXACT = 2**53


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
        if abs(value) >= _EXACT:
            raise NotCanonical(f"{path}: {value} is an integer beyond 2^53")
    elif type(value) is not str:
        raise NotCanonical(f"{path}: a {type(value).__name__}, not an integer or text")
