"""Secrets of users: random tokens, the MACs that the database keeps of them, and the sealing of what is read again.

A token has 256 random bits, so that a MAC protects it as well as a slow hash would. The keys of MACs and seals are
derived from the server's master key, one for each purpose: a token of one purpose is worth nothing for another.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Literal, TypeAlias, get_args
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from storage.reported_error import ReportedError

TOKEN_BYTES, _NONCE_BYTES = 32, 12
MOST_TOKEN = 100
"""Characters of a token that is looked at; longer ones are not ours."""
Purpose: TypeAlias = Literal["session", "one-time", "recovery-code", "provider", "directory"]


class SecretUnreadable(ReportedError):
    """A user's secret was sealed under another master key, or its row was altered."""


class UserSecrets:
    """MACs and seals under keys derived from the master key. Its repr shows none."""

    def __init__(self, master_key: bytes) -> None:
        def derive(purpose: str) -> bytes:
            return HKDF(SHA256(), 32, salt=None, info=f"turnpike/users/{purpose}/v1".encode()).derive(master_key)

        self._keys: dict[Purpose, bytes] = {purpose: derive(purpose) for purpose in get_args(Purpose)}
        self._cipher = AESGCM(derive("seal"))

    def mac(self, purpose: Purpose, token: str, owner: bytes = b"") -> bytes:
        """HMAC-SHA-256 of a token; with `owner`, whose it is, the same token has another MAC for everybody."""
        return hmac.digest(self._keys[purpose], owner + token.encode(errors="replace"), hashlib.sha256)

    def seal(self, secret: bytes, owner: UUID) -> bytes:
        """Nonce and ciphertext, which open for this owner only."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, secret, owner.bytes)

    def unseal(self, sealed: bytes, owner: UUID) -> bytes:
        """The secret. Raises SecretUnreadable."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], owner.bytes)
        except InvalidTag as error:
            raise SecretUnreadable("a user's second factor cannot be read under this master key") from error


def new_token() -> str:
    """A random token for a cookie or a link."""
    return secrets.token_urlsafe(TOKEN_BYTES)
