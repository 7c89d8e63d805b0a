"""Scope roots, block keys and prefix keys. Only who knows a block's scope root can find it (C1).

A block key is a chain of SHA-256: model root → scope root → parent key → token ids. The scope root is a secret derived
from a server secret and the cache domain, so that keys of different domains neither collide nor can be guessed, in any
tier. Every hash names its purpose and length-prefixes each field, so that different tuples of fields never hash the
same bytes.

An adapter's digest is taken into the chain at the block that has the first row which it changes: the first block, but
for adapters that are invoked later. The blocks before are the base model's.

A block in which a prompt narrows its scope belongs to the narrower scope, that of its last token.
"""

from __future__ import annotations

import hashlib
import hmac
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

BLOCK_TOKENS = 64
KEY_BYTES = 32


class _Lengths(dict[int, bytes]):
    """length -> its 8 bytes as hashed"""

    def __missing__(self, length: int) -> bytes:
        written = length.to_bytes(8, "big")
        if length < 1024:  # lengths of roots, keys and blocks are kept, those of texts are not
            self[length] = written
        return written


_LENGTHS = _Lengths()


def _digest(purpose: bytes, *fields: bytes) -> bytes:
    parts = [_LENGTHS[len(purpose)], purpose]
    for field in fields:
        parts += (_LENGTHS[len(field)], field)
    return hashlib.sha256(b"".join(parts)).digest()


_BLOCK = _LENGTHS[len(b"turnpike/block/v1")] + b"turnpike/block/v1"


def _token_bytes(tokens: Sequence[int]) -> bytes:
    if not (isinstance(tokens, array) and tokens.typecode == "I"):
        tokens = array("I", tokens)
    return tokens.tobytes()


def scope_root(secret: bytes, domain: Sequence[str]) -> bytes:
    """The root of a cache domain such as `("project", tenant_id, project_id)`: HMAC-SHA256(server secret, domain).

    Only the gateway has the secret; engines get roots.
    """
    fields = [len(part.encode()).to_bytes(8, "big") + part.encode() for part in domain]
    return hmac.new(secret, b"turnpike/scope/v1" + b"".join(fields), hashlib.sha256).digest()


def model_root(model_digest: str, adapter_digest: str = "", media_digests: Iterable[str] = ()) -> bytes:
    """The first parent of a served model's keys, from the digests of the model, the adapter and media in the prompt."""
    media = b"".join(_digest(b"turnpike/media/v1", digest.encode()) for digest in media_digests)
    return _digest(b"turnpike/model/v1", model_digest.encode(), adapter_digest.encode(), media)


@dataclass(frozen=True)
class KeyFork:
    """From the block `block` on, a chain is that of an adapter: the blocks before have no row that it changed, and are
    the base model's."""

    block: int
    adapter_digest: str

    def parent(self, index: int, parent: bytes) -> bytes:
        """What the key of the block `index` follows, where its chain would follow `parent`."""
        if index != self.block:
            return parent
        return _digest(b"turnpike/adapter-fork/v1", parent, self.adapter_digest.encode())


def text_root(model: str, text_digest: str) -> bytes:
    """The first parent of a served model's prefix keys at the gateway, from the model's name and its text digest."""
    return _digest(b"turnpike/text-model/v1", model.encode(), text_digest.encode())


def block_key(root: bytes, parent: bytes, tokens: Sequence[int] | bytes) -> bytes:
    """The key of a whole block in the scope with this root, after the block with the key `parent`.

    `tokens`: `BLOCK_TOKENS` token ids, or their bytes, four each in the machine's order.
    """
    # `_digest` inlined, for speed: each running request makes a key every 64 tokens.
    lengths, block = _LENGTHS, tokens if type(tokens) is bytes else _token_bytes(tokens)
    fields = (_BLOCK, lengths[len(root)], root, lengths[len(parent)], parent, lengths[len(block)], block)
    return hashlib.sha256(b"".join(fields)).digest()


def next_keys(root: bytes, parent: bytes, tokens: Sequence[int]) -> list[bytes]:
    """The keys of the whole blocks of `tokens`, all in the scope with this root, after the block with the key `parent`.

    As `block_key` of one after another, in less time: a long prompt has hundreds.
    """
    size = BLOCK_TOKENS * 4
    written = _token_bytes(tokens)
    keys: list[bytes] = []
    head, block = _BLOCK + _LENGTHS[len(root)] + root, _LENGTHS[size]
    for start in range(0, len(written) - size + 1, size):
        fields = (head, _LENGTHS[len(parent)], parent, block, written[start : start + size])
        parent = hashlib.sha256(b"".join(fields)).digest()
        keys.append(parent)
    return keys


def prefix_key(root: bytes, parent: bytes, rest: Sequence[int]) -> bytes:
    """The key of a prefix that ends inside a block: `rest` are its tokens after the block with the key `parent`."""
    return _digest(b"turnpike/prefix/v1", root, parent, _token_bytes(rest))


def chain(
    model: bytes,
    segments: Sequence[tuple[int, bytes]],
    tokens: Sequence[int],
    *,
    known: Sequence[bytes] = (),
    fork: KeyFork | None = None,
) -> list[bytes]:
    """The keys of all whole blocks of `tokens`.

    `model`: the model root. `segments`: (until token, scope root) in order, the last reaching `len(tokens)` or beyond.
    `known`: keys of the first blocks that were computed before. `fork`: where an adapter's keys begin.
    """
    keys = list(known)
    blocks = len(tokens) // BLOCK_TOKENS
    for until, root in [*segments[:-1], (len(tokens), segments[-1][1])]:
        last = min(until // BLOCK_TOKENS, blocks)
        for end in (last,) if fork is None else (min(fork.block, last), last):
            if end > len(keys):
                part = tokens[len(keys) * BLOCK_TOKENS : end * BLOCK_TOKENS]
                parent = keys[-1] if keys else model
                keys += next_keys(root, parent if fork is None else fork.parent(len(keys), parent), part)
    return keys
