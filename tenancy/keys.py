"""API keys: their form, how they are generated, and the MAC that the database keeps of them.

`tp_live_<12 base62 public id>_<43 base62 secret>_<6 base62 checksum>`. The public id may be logged. The database has
only an HMAC of the secret, under a pepper that is not in the database. The checksum (CRC-32 of what precedes it) lets
mistyped keys be refused without a query.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
import zlib

import msgspec

PREFIX = "tp_live"
_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_KEY = re.compile(rf"({PREFIX}_([0-9A-Za-z]{{12}})_([0-9A-Za-z]{{43}}))_([0-9A-Za-z]{{6}})", re.ASCII)


class Peppers:
    """The versions of the HMAC key for API keys; `current` is used for new keys. Its repr shows no secret."""

    def __init__(self, versions: dict[int, bytes], current: int) -> None:
        """Raises ValueError if the current version is missing or a pepper is shorter than 16 bytes."""
        if current not in versions or any(len(pepper) < 16 for pepper in versions.values()):
            raise ValueError("peppers: the current version is missing, or one is shorter than 16 bytes")
        self._versions = dict(versions)
        self.current = current

    def __repr__(self) -> str:
        return f"Peppers(versions={sorted(self._versions)}, current={self.current})"

    def mac(self, version: int, secret: str) -> bytes:
        """HMAC-SHA-256 of a key's secret. For a version that was removed, the current pepper is used, so that nothing
        matches in the same time."""
        pepper = self._versions.get(version, self._versions[self.current])
        return hmac.digest(pepper, version.to_bytes(8, "big") + secret.encode(), hashlib.sha256)


class Presented:
    """A well-formed key as a client presented it. Its repr shows only the public id."""

    __slots__ = ("public_id", "secret")

    def __init__(self, public_id: str, secret: str) -> None:
        self.public_id = public_id
        self.secret = secret

    def __repr__(self) -> str:
        return f"Presented({self.public_id!r})"


class IssuedKey(msgspec.Struct, frozen=True):
    """A new key. `key` is the only copy, to be shown once; the repr leaves it out."""

    public_id: str
    key: str

    def __repr__(self) -> str:
        return f"IssuedKey(public_id={self.public_id!r})"


def _base62(number: int, digits: int) -> str:
    text = ""
    for _ in range(digits):
        number, digit = divmod(number, 62)
        text = _ALPHABET[digit] + text
    return text


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), 6)


def generate_key(public_id: str | None = None) -> tuple[IssuedKey, str]:
    """A new random key, and its secret for the MAC. `public_id`: of a key that gets another secret."""
    public_id = public_id or "".join(secrets.choice(_ALPHABET) for _ in range(12))
    secret = _base62(int.from_bytes(secrets.token_bytes(32), "big"), 43)
    body = f"{PREFIX}_{public_id}_{secret}"
    return IssuedKey(public_id, f"{body}_{_checksum(body)}"), secret


def parse_key(text: str) -> Presented | None:
    """The parts of a key; None if its form or checksum is wrong."""
    match = _KEY.fullmatch(text)
    if match is None or not hmac.compare_digest(match.group(4), _checksum(match.group(1))):
        return None
    return Presented(match.group(2), match.group(3))
