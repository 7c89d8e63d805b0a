"""The messages about a replica: how its link opens, which cache domains it knows, how it is."""

from __future__ import annotations

from typing import Literal

import msgspec

from protocol.message import Message, Part

BOUNDED_SCOPES_VERSION = 4
"""From this version on a connection knows the last `MAX_SCOPES` scopes only."""
FENCE_VERSION = 5
"""From this version on a replica has a journal identity, and answers `Fence`."""
DISK_FULL = "turnpike_engine_disk_full"
"""The figure of a beat that is 1 while the replica takes no requests because the disk of its journal is full."""
MAX_SCOPES = 10_000
"""So many scopes are known on a connection: those that were introduced last."""


class LayerGroup(Part, frozen=True):
    """Layers whose KV is alike and shares one block pool: `kind` is `full`, `window` or `latent`."""

    kind: str
    layers: tuple[int, ...]
    kv_heads: int
    head_dim: int
    window: int
    dtype: str
    block_bytes: int


class Layout(Part, frozen=True):
    """How a block lies in memory: layer → K|V → KV head → [block_tokens, head_dim], per layer group."""

    block_tokens: int
    groups: tuple[LayerGroup, ...]


class Capacity(Part, frozen=True):
    """How much a replica takes: total blocks per layer group, longest context, requests running at once."""

    blocks: tuple[int, ...]
    context_tokens: int
    running: int


class ServedModel(Part, frozen=True):
    """`digest` covers weights, dtype, tokenizer and template; `text_digest` the last two, which a gateway has too."""

    name: str
    digest: str
    text_digest: str
    dtype: str
    vocabulary: int


class Hello(Message, frozen=True, tag="Hello"):
    """The replica's first frame. `epoch` grows each time the replica starts, and fences its older incarnations."""

    version: int
    oldest: int
    replica: str
    epoch: int
    challenge: bytes
    model: ServedModel
    layout: Layout
    capacity: Capacity
    journal: str = ""
    """The identity of the replica's journal: another one after its folder was lost."""
    since: int = 0
    """The epoch in which this journal began; 0 if it is older than its identity."""


class Dial(Message, frozen=True, tag="Dial"):
    """The gateway's first frame: who it is, and proof that it knows the link key (see `link_proof`).

    Who gives no name only looks: it hears beats, and is never handed what others left unacknowledged.
    """

    version: int
    gateway: str
    proof: bytes
    epoch: str = ""
    """This run of the gateway: what it sends is journaled under it (`Fence`)."""


class Fence(Message, frozen=True, tag="Fence"):
    """The gateway run of this epoch is over: stop what it runs, take nothing more of it, and say what is known of it.

    The replica answers with `Fenced`, and refuses that epoch's requests for ever, after a restart too.
    """

    epoch: str


class Fenced(Message, frozen=True, tag="Fenced"):
    """The requests of a gateway epoch that this journal knows and no gateway has acknowledged, with their attempts.

    No requests: the journal knows nothing more of that epoch, and never will.
    """

    epoch: str
    requests: tuple[tuple[str, int], ...] = ()


class TierLimit(Part, frozen=True):
    """What a scope may hold in one tier, in bytes: `reserve` cannot be taken by others, `limit` cannot be passed."""

    tier: Literal["hbm", "dram", "nvme"]
    reserve: int
    limit: int


class Scope(Message, frozen=True, tag="Scope"):
    """Introduce a cache domain on this connection, before the first `Generate` that names it, and again once
    `MAX_SCOPES` others were introduced since: nobody says when a domain will not be used any more.

    `root` keys the hash chain of its blocks, `data_key` seals its records; both are secrets. `retention`: the longest
    time in seconds that a block may stay in DRAM or NVMe, 0 for never leaving the device.
    """

    scope: str
    root: bytes
    data_key: bytes
    limits: tuple[TierLimit, ...] = ()
    retention: float = 0.0


class Forget(Message, frozen=True, tag="Forget"):
    """Forget a scope: free its blocks, zeroize its DRAM, destroy its data key (crypto-erase)."""

    scope: str


class Purge(Message, frozen=True, tag="Purge"):
    """Drop the blocks with these keys from every tier."""

    scope: str
    keys: tuple[bytes, ...]


class TierLoad(Part, frozen=True):
    """Blocks of one layer group in one tier: `free` + `referenced` + `cached` = `total` (C4)."""

    tier: Literal["hbm", "dram", "nvme"]
    group: int
    free: int
    referenced: int
    cached: int
    total: int


class Elsewhere(Message, frozen=True, tag="Elsewhere"):
    """What flows got from another replica of the same served model: totals of its `Beat.service`, those that changed.

    Gateways relay them with each beat. In one epoch a total only grows, so that it may be told twice, or late.
    """

    replica: str
    epoch: int
    service: dict[str, int]


class Beat(Message, frozen=True, tag="Beat"):
    """Sent each second: how far the replica got, how loaded it is, what each flow received.

    `steps` must grow while work exists (E3). `service` is cumulative engine time in microseconds per `lane/flow`; a
    total that falls has begun again. `cache` is a digest of which prefixes are held, for routing. `metrics` are the
    replica's counters and gauges by Prometheus name.
    """

    steps: int
    running: int
    waiting: dict[str, int]
    memory: tuple[TierLoad, ...]
    service: dict[str, int] = msgspec.field(default_factory=dict)
    cache: bytes = b""
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
