"""Signatures and secrets of webhooks, as Standard Webhooks 1.0 (standardwebhooks.com) defines them.

A message is signed over `id.timestamp.body` with HMAC-SHA256; during a rotation, with both secrets. In the database a
secret is encrypted with AES-256-GCM, bound to its endpoint, under a key derived from the server's master key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from uuid import UUID

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

SECRET_BYTES = 32
_PREFIX = "whsec_"
_NONCE_BYTES = 12


def new_secret() -> bytes:
    """A new random secret."""
    return secrets.token_bytes(SECRET_BYTES)


def encode_secret(secret: bytes) -> str:
    """The secret as its owner configures it: `whsec_` and base64."""
    return _PREFIX + base64.b64encode(secret).decode()


def headers(event: str, seconds: int, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """The headers of message `event`, sent at `seconds` since the Unix epoch, with a signature of each key."""
    signed = f"{event}.{seconds}.".encode() + body
    macs = [base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode() for key in keys]
    return {
        "webhook-id": event,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(f"v1,{mac}" for mac in macs),
    }


class SecretCipher:
    """Encrypts endpoints' secrets under the server's master key."""

    def __init__(self, master_key: bytes) -> None:
        derived = HKDF(SHA256(), 32, salt=None, info=b"turnpike/webhook-secrets/v1").derive(master_key)
        self._cipher = AESGCM(derived)

    def encrypt(self, secret: bytes, endpoint_id: UUID) -> bytes:
        """Nonce and ciphertext, which decrypt for this endpoint only."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, secret, endpoint_id.bytes)

    def decrypt(self, encrypted: bytes, endpoint_id: UUID) -> bytes:
        """The secret. Raises cryptography.exceptions.InvalidTag for another master key or another endpoint."""
        return self._cipher.decrypt(encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:], endpoint_id.bytes)
