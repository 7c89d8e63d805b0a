"""Signatures and secrets as Standard Webhooks has them (standardwebhooks.com), and how secrets are kept.

A message is signed over `id.timestamp.body` with HMAC-SHA256; while a secret is being changed, with both. At rest a
secret is sealed with AES-256-GCM, bound to its endpoint, under a key derived from the server's master key.
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
    """A fresh secret."""
    return secrets.token_bytes(SECRET_BYTES)


def shown(secret: bytes) -> str:
    """The secret as its owner configures it: `whsec_` and base64."""
    return _PREFIX + base64.b64encode(secret).decode()


def headers(event: str, seconds: int, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """The three headers of a message sent at `seconds` since the Unix epoch: one signature for each secret."""
    signed = f"{event}.{seconds}.".encode() + body
    macs = [base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode() for key in keys]
    return {
        "webhook-id": event,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(f"v1,{mac}" for mac in macs),
    }


class SecretCipher:
    """Seals endpoints' secrets under the server's master key."""

    def __init__(self, master_key: bytes) -> None:
        derived = HKDF(SHA256(), 32, salt=None, info=b"turnpike/webhook-secrets/v1").derive(master_key)
        self._cipher = AESGCM(derived)

    def seal(self, secret: bytes, endpoint_id: UUID) -> bytes:
        """The secret, sealed for this endpoint alone."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, secret, endpoint_id.bytes)

    def open(self, sealed: bytes, endpoint_id: UUID) -> bytes:
        """The secret. Raises cryptography.exceptions.InvalidTag if it was sealed by another key or for another."""
        return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], endpoint_id.bytes)
