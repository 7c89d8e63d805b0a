"""API keys: how they look, how one is made, and what is kept of it.

`tp_live_<12 base62 public id>_<43 base62 secret>_<6 base62 checksum>`. The public id may be logged; of the secret the
database has a MAC under a pepper that it does not know; the checksum lets a typo be refused without asking it.
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
    """The versions of the secret under which keys are MACed; `current` is for new keys. Shows nothing of itself."""

    def __init__(self, versions: dict[int, bytes], current: int) -> None:
        """Raises ValueError if the current version is missing or one is shorter than 16 bytes."""
        if current not in versions or any(len(pepper) < 16 for pepper in versions.values()):
            raise ValueError("peppers: the current version is missing, or one is shorter than 16 bytes")
        self._versions = dict(versions)
        self.current = current

    def __repr__(self) -> str:
        return f"Peppers(versions={sorted(self._versions)}, current={self.current})"

    def mac(self, version: int, secret: str) -> bytes:
        """HMAC-SHA-256 of a key's secret half. A version that is gone MACs under the current pepper, and so matches
        nothing."""
        pepper = self._versions.get(version, self._versions[self.current])
        return hmac.digest(pepper, version.to_bytes(8, "big") + secret.encode(), hashlib.sha256)


class Presented:
    """A well-formed key as a client presented it. Shows only its public half."""

    __slots__ = ("public_id", "secret")

    def __init__(self, public_id: str, secret: str) -> None:
        self.public_id = public_id
        self.secret = secret

    def __repr__(self) -> str:
        return f"Presented({self.public_id!r})"


class IssuedKey(msgspec.Struct, frozen=True):
    """A key just made. `key` is its only copy, to be shown once; it is left out of the representation."""

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


def generate() -> tuple[IssuedKey, str]:
    """A new random key, and its secret half to be MACed."""
    public_id = "".join(secrets.choice(_ALPHABET) for _ in range(12))
    secret = _base62(int.from_bytes(secrets.token_bytes(32), "big"), 43)
    body = f"{PREFIX}_{public_id}_{secret}"
    return IssuedKey(public_id, f"{body}_{_checksum(body)}"), secret


def parse(text: str) -> Presented | None:
    """The key in what a client presented; None if it cannot be one of ours (form or checksum)."""
    match = _KEY.fullmatch(text)
    if match is None or not hmac.compare_digest(match.group(4), _checksum(match.group(1))):
        return None
    return Presented(match.group(2), match.group(3))
