"""The keys that sign receipts: Ed25519 (RFC 8032), the private one in the secrets file, all public ones on a public
route as a JWK set (RFC 7517, RFC 8037).

A rotated key signs nothing any more. Its public half stays listed for good, so that old receipts can be checked.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct

_ID_DIGITS = 16


def to_base64(value: bytes) -> str:
    """Base64 for URLs, without padding, as JWKs have it."""
    return urlsafe_b64encode(value).rstrip(b"=").decode()


def key_id(public_key: bytes) -> str:
    """The name of a key: the first hexadecimal digits of its SHA-256."""
    return sha256(public_key).hexdigest()[:_ID_DIGITS]


class JsonWebKey(Struct, frozen=True):
    """A public key. `use`: for signatures. `retired`: it signs nothing any more."""

    kid: str
    x: str
    retired: bool
    kty: str = "OKP"
    crv: str = "Ed25519"
    use: str = "sig"


class JsonWebKeySet(Struct, frozen=True):
    """All keys that ever signed, the current one first."""

    keys: list[JsonWebKey]


class ReceiptKeys:
    """The key that signs, and the public keys of those before it."""

    def __init__(self, seed: bytes, retired: tuple[bytes, ...] = ()) -> None:
        """`seed`: the private key's 32 bytes; `retired`: public keys, of 32 bytes too."""
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self._retired = retired

    @cached_property
    def public_key(self) -> bytes:
        """The public key that goes with the current one."""
        return self._private.public_key().public_bytes_raw()

    @cached_property
    def id(self) -> str:
        """The name of the current key."""
        return key_id(self.public_key)

    def sign(self, message: bytes) -> bytes:
        """The signature of a message by the current key."""
        return self._private.sign(message)

    @property
    def public_keys(self) -> Mapping[str, bytes]:
        """All public keys by their names."""
        return {key_id(public): public for public in (self.public_key, *self._retired)}

    def key_set(self) -> JsonWebKeySet:
        """All public keys as a JWK set."""
        return JsonWebKeySet(
            [JsonWebKey(kid, to_base64(public), kid != self.id) for kid, public in self.public_keys.items()]
        )


def public_key_of(seed: bytes) -> bytes:
    """The public key of a private one, for a list of retired ones."""
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
