"""Keys that are kept apart from the database: what is authenticated by them cannot be made from it alone."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from msgspec import Struct


class Keyring(Struct, frozen=True):
    """The key that new MACs are made with, and those of earlier ones. Without keys `current` is 0."""

    current: int = 0
    keys: Mapping[int, bytes] = {}

    def __repr__(self) -> str:
        return f"Keyring(current={self.current}, …)"

    def mac(self, message: bytes, version: int) -> bytes:
        """The HMAC-SHA-256 of a message by the key of this version. Raises KeyError for one that is not here."""
        return hmac.digest(self.keys[version], message, "sha256")
