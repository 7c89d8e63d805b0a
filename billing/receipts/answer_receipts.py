"""Receipts that come with answers: the event's statement, signed before the answer ends.

A signature costs more than all else that a request costs us. So the receipts of one tenant that are asked for while
another of it waits for the spool are signed together: one signature of the root of their Merkle tree, and with each the
path from its leaf to that root. Nobody's receipt has a hash of another tenant's.

A receipt has no number: numbers without gaps are given at settlement, in the day's file (`billing.receipts.day_files`),
which has the same digest.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from billing.receipts.merkle import MerkleTree, leaf_hash
from billing.receipts.signing_keys import ReceiptKeys, to_base64
from billing.receipts.statements import FORM, statement_digest, statement_of
from billing.usage import UsageEvent

_MOST = 1024
"""Receipts that are signed together at most: their paths have ten hashes."""


class AnswerDigests(Struct, frozen=True, gc=False):
    """Digests of what was asked and answered, in hexadecimal: the SHA-256 of the prompt's tokens, and of each choice's
    output, as little-endian 32-bit integers."""

    prompt: str
    output: tuple[str, ...]


class Signature(Struct, frozen=True, kw_only=True, gc=False):
    """What is signed for all receipts of a batch: the root of their tree, its size and the instant. `key` names the
    signing key. The signed text is this as canonical JSON without `sig`."""

    kind: str = "receipts"
    at: int
    key: str
    root: str
    size: int
    sig: str | UnsetType = UNSET


class Receipt(Struct, frozen=True, kw_only=True, gc=False):
    """A receipt: the statement, its digest, the digests of the answer, and the proof that it was signed. The leaf of
    the tree is the canonical JSON of `answer` and `digest`; `path` goes from the leaf at `index` to the root."""

    kind: str = "receipt"
    v: int = FORM
    event: Annotated[
        Raw,
        Meta(
            description="The statement.",
            extra_json_schema={"type": "object", "additionalProperties": True},
            examples=[{}],
        ),
    ]
    digest: str
    answer: AnswerDigests
    index: int
    path: tuple[str, ...]
    signed: Signature


class _Leaf(Struct, frozen=True, gc=False):
    answer: AnswerDigests
    digest: str


_encode = msgspec.json.Encoder(order="sorted").encode


def tokens_as_bytes(tokens: Sequence[int]) -> bytes:
    """Tokens as their digests have them."""
    return struct.pack(f"<{len(tokens)}I", *tokens)


def tokens_digest(tokens: Sequence[int]) -> str:
    """The digest of tokens."""
    return sha256(tokens_as_bytes(tokens)).hexdigest()


class _Batch:
    """Receipts of a tenant that are signed together, once the first of them is wanted."""

    def __init__(self, tenant_id: UUID) -> None:
        self.tenant_id = tenant_id
        self.leaves: list[bytes] = []
        self.tree: MerkleTree | None = None
        self.signature: Signature | None = None

    def sign(self, keys: ReceiptKeys) -> tuple[MerkleTree, Signature]:
        """The tree and its signature. No leaf may follow."""
        if self.tree is None or self.signature is None:
            self.tree = MerkleTree(self.leaves)
            signature = Signature(
                at=time.time_ns() // 1000, key=keys.id, root=self.tree.root.hex(), size=len(self.leaves)
            )
            self.signature = msgspec.structs.replace(signature, sig=to_base64(keys.sign(_encode(signature))))
        return self.tree, self.signature


class PendingReceipt:
    """A receipt whose event is not durable yet."""

    def __init__(self, issuer: ReceiptIssuer, batch: _Batch, statement: bytes, leaf: _Leaf, index: int) -> None:
        self._issuer = issuer
        self._batch = batch
        self._statement = statement
        self._leaf = leaf
        self._index = index

    def issue(self) -> Receipt:
        """The receipt: to be called when the event is durable."""
        tree, signature = self._issuer.sign(self._batch)
        return Receipt(
            event=Raw(self._statement),
            digest=self._leaf.digest,
            answer=self._leaf.answer,
            index=self._index,
            path=tuple([beside.hex() for beside in tree.path(self._index)]),
            signed=signature,
        )


class ReceiptIssuer:
    """Makes the receipts of one gateway worker."""

    def __init__(self, keys: ReceiptKeys) -> None:
        self.keys = keys
        self._open: dict[UUID, _Batch] = {}

    def prepare(self, event: UsageEvent, answer: AnswerDigests) -> PendingReceipt:
        """Take an event into its tenant's batch, before it is made durable."""
        statement = statement_of(event)
        leaf = _Leaf(answer, statement_digest(statement).hex())
        batch = self._open.get(event.tenant_id)
        if batch is None or batch.signature is not None or len(batch.leaves) >= _MOST:
            batch = self._open[event.tenant_id] = _Batch(event.tenant_id)
        batch.leaves.append(leaf_hash(_encode(leaf)))
        return PendingReceipt(self, batch, statement, leaf, len(batch.leaves) - 1)

    def sign(self, batch: _Batch) -> tuple[MerkleTree, Signature]:
        """Sign a batch that may have been signed already; nothing is added to it any more."""
        tree, signature = batch.sign(self.keys)
        if self._open.get(batch.tenant_id) is batch:
            del self._open[batch.tenant_id]
        return tree, signature
