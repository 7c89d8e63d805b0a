"""Seals the content of responses under their project's data key, so that destroying the key erases all of them.

What clients keep of an answer is sealed or signed here as well.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
import zlib
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from prompt_cache.promise.scope_keys import KEY_BYTES, ProjectKey

_NONCE_BYTES = 12
_PLAIN, _PACKED = b"\0", b"\1"
_WORTH_PACKING = 512
_LEVEL = 1
_SHOWN, _SEALED = b"\1", b"\2"
_REASONING = b"reasoning"
_LONGEST_REASONING = 8 * 1024 * 1024


class Unreadable(Exception):
    """Sealed content that this key does not open: the project's key was destroyed since, or the content altered."""


class ContentSeal:
    """Seals and opens what belongs to one project. `generation`: of its data key."""

    OVERHEAD = _NONCE_BYTES + 1 + 16
    """Bytes by which what is sealed without being packed is longer: nonce, form, and AES-GCM's tag."""

    def __init__(self, key: ProjectKey, project_id: UUID) -> None:
        self.generation = key.generation
        self.project_id = project_id
        self._project = project_id.bytes
        derived = HKDF(SHA256(), KEY_BYTES, salt=None, info=b"turnpike/responses/v1" + self._project).derive(key.key)
        self._cipher = AESGCM(derived)

    def seal(self, content: bytes, associated: bytes, *, packed: bool = True) -> bytes:
        """The content, sealed, and packed if that is worth it. `associated`: what it belongs to, without which it does
        not open (AEAD). `packed`: False where its length must be known beforehand."""
        packs = packed and len(content) > _WORTH_PACKING
        form = _PACKED + zlib.compress(content, _LEVEL) if packs else _PLAIN + content
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, form, self._project + associated)

    def open(self, sealed: bytes, associated: bytes) -> bytes:
        """What was sealed. Raises Unreadable."""
        try:
            packed = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], self._project + associated)
        except (InvalidTag, ValueError) as error:
            raise Unreadable from error
        return zlib.decompress(packed[1:]) if packed[:1] == _PACKED else packed[1:]


class ReasoningSeal:
    """Seals reasoning that a client keeps for the next turn (`encrypted_content`), so that it comes back as it was."""

    def __init__(self, seal: ContentSeal) -> None:
        self._seal = seal

    def seal(self, text: str) -> str:
        """The reasoning, sealed, as text."""
        return base64.urlsafe_b64encode(self._seal.seal(text.encode(errors="replace"), _REASONING)).decode()

    def open(self, sealed: str) -> str | None:
        """What was sealed; None for what is foreign, too old or altered."""
        if len(sealed) > _LONGEST_REASONING:
            return None
        try:
            raw = base64.urlsafe_b64decode(sealed.encode(errors="replace"))
            return self._seal.open(raw, _REASONING).decode(errors="replace")
        except (Unreadable, binascii.Error, ValueError):
            return None


class ThinkingSeal:
    """Signs thinking that a client keeps for the next turn, for all projects, so that it comes back as it was.

    Clients keep it and we nothing, so no key of ours is destroyed with it. A signature is a MAC; where the client asked
    not to be shown the text, it is the text, sealed. `master_key`: the secret that all gateways share. Source:
    https://docs.anthropic.com/en/docs/build-with-claude/extended-thinking.
    """

    def __init__(self, master_key: bytes) -> None:
        self._key = HKDF(SHA256(), KEY_BYTES, salt=None, info=b"turnpike/thinking/v1").derive(master_key)

    def sign(self, project: UUID, text: str) -> str:
        """The signature of a text that the client is shown."""
        return _as_text(_SHOWN + self._mac(project, text))

    def seal(self, project: UUID, text: str) -> str:
        """The signature that stands for a text that the client is not shown."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _as_text(_SEALED + nonce + self._cipher(project).encrypt(nonce, _bytes(text), None))

    def read(self, project: UUID, text: str, signature: str) -> str | None:
        """What a block with this text and signature says. None: another project's or vendor's, or altered.

        A block without a signature says its text, as in the dialects that have no signatures.
        """
        if not signature:
            return text
        try:
            raw = base64.b64decode(_bytes(signature), validate=True)
            if raw[:1] == _SEALED:
                sealed = raw[1:]
                raw_text = self._cipher(project).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
                opened = raw_text.decode(errors="surrogatepass")
                return opened if text in ("", opened) else None
        except (InvalidTag, binascii.Error, ValueError):
            return None
        return text if hmac.compare_digest(raw, _SHOWN + self._mac(project, text)) else None

    def _mac(self, project: UUID, text: str) -> bytes:
        return hmac.digest(self._project_key(project, b"mac"), _bytes(text), "sha256")

    def _cipher(self, project: UUID) -> AESGCM:
        return AESGCM(self._project_key(project, b"seal"))

    def _project_key(self, project: UUID, use: bytes) -> bytes:
        # Each project has keys of its own, so that none is used for more messages than AES-GCM allows.
        return hmac.digest(self._key, use + project.bytes, "sha256")


def _bytes(text: str) -> bytes:
    # JSON may hold half of a surrogate pair.
    return text.encode(errors="surrogatepass")


def _as_text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
