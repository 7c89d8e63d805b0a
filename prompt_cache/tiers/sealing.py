"""Seals and opens payloads: AES-256-GCM, under a key of the scope and of the replica's start that wrote the record.

Each start draws 256 random bits, the salt in its records' headers, and seals under HKDF(data key, salt, scope). A nonce
is the record's number in that start and the chunk's number in the record, so no two chunks share key and nonce.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from itertools import count
from typing import TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from prompt_cache.tiers.record_format import CHUNK_BYTES, SALT_BYTES, TAG_BYTES, BadRecord

Bytes: TypeAlias = bytes | bytearray | memoryview
_KEYS = 1024
"""How many keys are kept: one for each scope and start."""


def record_key(data_key: bytes, scope: str, salt: bytes) -> bytes:
    """The 32 bytes under which a start of a replica seals a scope's records. Raises ValueError for a short data key."""
    if len(data_key) != 32 or len(salt) != SALT_BYTES:
        raise ValueError("a data key and a salt have 32 bytes")
    info = b"turnpike/kv-record/v1" + scope.encode()
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=salt, info=info).derive(data_key)


def nonce(counter: int, chunk: int) -> bytes:
    """The 96 bits of a chunk's nonce."""
    return counter.to_bytes(8, "big") + chunk.to_bytes(4, "big")


class Sealer:
    """The keys of one start. May be used from any thread."""

    def __init__(self) -> None:
        self.salt = os.urandom(SALT_BYTES)
        self._counter = count()
        self._lock = threading.Lock()
        self._ciphers: OrderedDict[tuple[str, bytes, bytes], AESGCM] = OrderedDict()

    def next_counter(self) -> int:
        """The number of this start's next record; never the same twice."""
        with self._lock:
            return next(self._counter)

    def seal(self, data_key: bytes, scope: str, header: bytes, counter: int, payload: Bytes) -> Iterator[Bytes]:
        """The chunks of a payload, sealed, in order; each is overwritten by the next."""
        cipher = self._cipher(data_key, scope, self.salt)
        view, buffer = memoryview(payload).cast("B"), bytearray(min(len(payload), CHUNK_BYTES) + TAG_BYTES)
        for number, start in enumerate(range(0, max(1, len(view)), CHUNK_BYTES)):
            part = view[start : start + CHUNK_BYTES]
            sealed = memoryview(buffer)[: len(part) + TAG_BYTES]
            cipher.encrypt_into(nonce(counter, number), part, header, sealed)
            yield sealed

    def opener(self, data_key: bytes, scope: str, salt: bytes, header: bytes, counter: int) -> Opener:
        """What opens the chunks of a record with this header."""
        return Opener(self._cipher(data_key, scope, salt), header, counter)

    def forget(self, scope: str) -> None:
        """Drop the keys of a scope."""
        with self._lock:
            for known in [known for known in self._ciphers if known[0] == scope]:
                del self._ciphers[known]

    def _cipher(self, data_key: bytes, scope: str, salt: bytes) -> AESGCM:
        name = (scope, salt, data_key)
        with self._lock:
            cipher = self._ciphers.get(name)
            if cipher is not None:
                self._ciphers.move_to_end(name)
                return cipher
        cipher = AESGCM(record_key(data_key, scope, salt))
        with self._lock:
            self._ciphers[name] = cipher
            if len(self._ciphers) > _KEYS:
                self._ciphers.popitem(last=False)
        return cipher


class Opener:
    """Opens the chunks of one record."""

    def __init__(self, cipher: AESGCM, header: bytes, counter: int) -> None:
        self._cipher, self._header, self._counter = cipher, header, counter

    def open(self, chunk: int, sealed: Bytes, into: memoryview) -> None:
        """Open the chunk with this number into memory of its length. Raises BadRecord: unsealed."""
        try:
            self._cipher.decrypt_into(nonce(self._counter, chunk), sealed, self._header, into)
        except InvalidTag as error:
            raise BadRecord("unsealed") from error
