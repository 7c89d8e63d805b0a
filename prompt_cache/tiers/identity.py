"""What a record must match to be used: the model, how its numbers are made, the layout; and whose it is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from protocol.replicas import LayerGroup, Scope, Tier

TIER: Tier = "nvme"


def _digest(purpose: bytes, *fields: bytes) -> bytes:
    """SHA-256 over the purpose and the fields, each after its length, so that no two tuples hash the same bytes."""
    whole = hashlib.sha256()
    for part in (purpose, *fields):
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.digest()


class _Description(msgspec.Struct, frozen=True):
    model_digest: str
    numerics: str
    groups: tuple[LayerGroup, ...]
    shard: int
    shards: int


@dataclass(frozen=True)
class StoreIdentity:
    """The replica's model and arithmetic: records of another identity are never read.

    `model_digest` and `numerics` are opaque texts; `numerics` names backend, kernel versions, where sums are cut, KV
    format, parallel degree and the fallback that the self-test chose. `groups`: the layout of a block in each layer
    group, whose `block_bytes` is what one record holds. `shard` of `shards`: its part of each block.
    """

    model_digest: str
    numerics: str
    groups: tuple[LayerGroup, ...]
    shard: int = 0
    shards: int = 1

    def __post_init__(self) -> None:
        if not self.groups or not 0 <= self.shard < self.shards:
            raise ValueError("an identity needs layer groups, and a shard below `shards`")

    @cached_property
    def digests(self) -> tuple[bytes, bytes, bytes]:
        """32 bytes each for the model, the numerics and the layout of all groups."""
        layouts = [
            _digest(
                b"turnpike/kv-layout/v1",
                group.kind.encode(),
                ",".join(map(str, group.layers)).encode(),
                group.dtype.encode(),
                *(str(number).encode() for number in (group.kv_heads, group.head_dim, group.window, group.block_bytes)),
            )
            for group in self.groups
        ]
        return (
            _digest(b"turnpike/kv-model/v1", self.model_digest.encode()),
            _digest(b"turnpike/kv-numerics/v1", self.numerics.encode()),
            _digest(b"turnpike/kv-layouts/v1", *layouts),
        )

    @cached_property
    def name(self) -> str:
        """The name of its folder: 32 hex digits that differ wherever any field does."""
        shard = f"{self.shard}/{self.shards}".encode()
        return _digest(b"turnpike/kv-identity/v1", *self.digests, shard).hex()[:32]

    @classmethod
    def described(cls, description: bytes) -> StoreIdentity:
        """The identity that `description` was made of. Raises msgspec.MsgspecError, ValueError."""
        fields = msgspec.json.decode(description, type=_Description)
        return cls(fields.model_digest, fields.numerics, fields.groups, fields.shard, fields.shards)

    @cached_property
    def description(self) -> bytes:
        """JSON for people: what the digests stand for."""
        return msgspec.json.encode(_Description(self.model_digest, self.numerics, self.groups, self.shard, self.shards))


@dataclass(frozen=True)
class ScopeAccess:
    """The right to read and write a scope's records. `data_key`: 32 secret bytes. `retention`: the longest time in
    seconds that a record lives. `reserve`: bytes that others cannot take; `limit`: the most bytes it holds, None for no
    limit but the store's."""

    scope: str
    data_key: bytes = field(repr=False)
    retention: float
    reserve: int = 0
    limit: int | None = None

    @classmethod
    def of(cls, scope: Scope) -> ScopeAccess:
        """The access that a gateway's `Scope` gives."""
        limits = next((limit for limit in scope.limits if limit.tier == TIER), None)
        reserve, limit = (0, None) if limits is None else (limits.reserve, limits.limit)
        return cls(scope.scope, scope.data_key, scope.retention, reserve, limit)
