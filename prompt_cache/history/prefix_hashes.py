"""The keyed hashes by which the history of requests finds how much of a prompt an earlier request had.

Each token has a hash of 4 bytes over all tokens up to it, so the first difference between two prompts is the first
difference between their hashes. They are the blocks of AES-256-CBC over (token, position), cut short: a CBC-MAC of
every prefix, at the speed of the processor's AES instructions. The key belongs to a project's *family*: a served
model, its text digest and the client's partition of the cache. Prompts of two families have nothing in common, and
neither the tokens nor a key can be computed from the hashes.

No hash tells a single token: the hash of the first token is withheld, and so are the hashes of pieces of text that end
before `LEAST_PIECE` tokens.
"""

from __future__ import annotations

import hashlib
import hmac
from array import array
from collections.abc import Iterable, Iterator, Sequence

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from msgspec import Struct

HASH_BYTES = 4
NODE_KEY_BYTES = 12
PIECE_KEY_BYTES = 8
LEAST_PIECE = 16
_TAIL = 64
"""Characters."""
_BOUNDARIES = (64, 128, 256, 512)
_STRIDE = 512
_WORDS = 4
"""Words of 4 bytes in a block of the cipher."""


class Node(Struct, frozen=True):
    """The hashes of the tokens [start, end) of a prompt. Nodes with the same key have the same tokens up to `end`.

    `parent`: the key of the node before it, or the family's for the first.
    """

    key: bytes
    parent: bytes
    start: int
    end: int
    hashes: bytes


class Family(Struct, frozen=True):
    """What the prompts that can be compared token by token have in common. `key` names it, `secret` keys its hashes."""

    key: bytes
    secret: bytes


def history_secret(scope_root: bytes) -> bytes:
    """The secret of a project's history, from the root of its scope. It is in no database."""
    return hmac.new(scope_root, b"turnpike/history/v1", hashlib.sha256).digest()


def family(secret: bytes, model: str, text_digest: str, partition: str) -> Family:
    """The family of prompts for this served model and this partition of the project's cache."""
    made = _keyed(secret, b"family", (model.encode(), text_digest.encode(), partition.encode()))
    return Family(made[:NODE_KEY_BYTES], _keyed(made, b"tokens", ()))


def boundaries(tokens: int) -> Iterator[int]:
    """Where the nodes of a prompt of so many tokens end: close together at first, where most prompts part."""
    for end in _BOUNDARIES:
        if end >= tokens:
            break
        yield end
    else:
        yield from range(2 * _STRIDE, tokens, _STRIDE)
    if tokens:
        yield tokens


def nodes_of(prompt: Sequence[int], of: Family) -> list[Node]:
    """The nodes of a prompt, from its beginning: 10 ms for 100,000 tokens."""
    blocks = array("I", bytes(_WORDS * 4 * len(prompt)))
    blocks[0::_WORDS] = array("I", prompt)
    blocks[1::_WORDS] = array("I", range(len(prompt)))
    encryptor = Cipher(algorithms.AES(of.secret), modes.CBC(bytes(16))).encryptor()
    sealed = encryptor.update(blocks.tobytes()) + encryptor.finalize()
    words = array("I", sealed)[0::_WORDS]
    if words:
        words[0] = 0  # a hash of one token alone
    hashes = words.tobytes()
    nodes: list[Node] = []
    parent, start = of.key, 0
    for end in boundaries(len(prompt)):
        last = sealed[16 * (end - 1) : 16 * end]
        key = last[HASH_BYTES:]
        nodes.append(Node(key, parent, start, end, hashes[HASH_BYTES * start : HASH_BYTES * end]))
        parent, start = key, end
    return nodes


def common_tokens(one: bytes, other: bytes) -> int:
    """How many tokens at the beginning have the same hashes."""
    length = min(len(one), len(other))
    difference = int.from_bytes(one[:length], "big") ^ int.from_bytes(other[:length], "big")
    if not difference:
        return length // HASH_BYTES
    return (8 * length - difference.bit_length()) // (8 * HASH_BYTES)


def piece_keys(secret: bytes, pieces: Iterable[tuple[str, str]]) -> list[bytes]:
    """The chained keys of a conversation's pieces, each (kind, text): the same in all families.

    They tell that two prompts say the same where their tokens cannot be compared, as after a change of model.
    """
    keys: list[bytes] = []
    parent = b""
    for kind, text in pieces:
        parent = _keyed(secret, b"piece", (parent, kind.encode(), text.encode("utf-8", "surrogatepass")))
        keys.append(parent[:PIECE_KEY_BYTES])
    return keys


def tail_key(secret: bytes, text: str) -> bytes:
    """The key of how a text ends, of as many characters as make a piece at least: the same whatever is before."""
    return _keyed(secret, b"tail", (text[-_TAIL:].encode("utf-8", "surrogatepass"),))[:PIECE_KEY_BYTES]


def label(secret: bytes, kind: str, text: str) -> bytes:
    """A key by which two values of a setting can be compared; empty for an empty text."""
    return _keyed(secret, b"label", (kind.encode(), text.encode("utf-8", "surrogatepass")))[:8] if text else b""


def _keyed(secret: bytes, purpose: bytes, fields: Iterable[bytes]) -> bytes:
    parts = b"".join(len(field).to_bytes(8, "big") + field for field in (purpose, *fields))
    return hmac.new(secret, b"turnpike/history/v1" + parts, hashlib.sha256).digest()
