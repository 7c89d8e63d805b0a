"""The messages about a replica: opening a link, cache domains, fences, heartbeats."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from protocol.adapters import ResidentAdapter
from protocol.message import Message, Value

BOUNDED_SCOPES_VERSION = 4
"""From this protocol version on, a replica remembers only the last `MAX_SCOPES` scopes of a connection."""
FENCE_VERSION = 5
"""From this protocol version on, a replica names its journal and answers `Fence`."""
DRAIN_VERSION = 7
"""From this protocol version on, a replica knows `Drain`."""
DRAINING = "turnpike_engine_draining"
"""The metric that is 1 while the replica takes no requests because an operator drains it."""
PROMPT_TOKEN_S = "turnpike_engine_prompt_token_seconds"  # noqa: S105  # a metric
"""The metric that is the time of a prompt token that is computed alone. Those below are for routing as well."""
DECODE_STEP_S = "turnpike_engine_decode_step_seconds"
DECODE_ROW_S = "turnpike_engine_decode_row_seconds"
PROMPT_CHUNK = "turnpike_engine_prompt_chunk_tokens"
LEASED_BLOCKS = "turnpike_engine_leased_blocks"
LEASES_END = "turnpike_engine_leases_end_timestamp_seconds"
DISK_FULL = "turnpike_engine_disk_full"
"""The metric that is 1 while the replica takes no requests because the disk of its journal is full."""
ENGINE_DOWN = "turnpike_engine_unreachable"
"""The metric that is 1 while a foreign engine behind the replica does not answer."""
LOAD_S = 0.1
"""A replica tells its queue no more often than this, in seconds, and at once if it did not for so long."""
MAX_SCOPES = 10_000
"""How many scopes a replica remembers on a connection: those that were introduced last."""


class LayerGroup(Value, frozen=True):
    """Layers whose KV has one shape and shares a block pool. `kind` is `full`, `window` or `latent`; `window` is in
    tokens, 0 for none."""

    kind: str
    layers: tuple[int, ...]
    kv_heads: int
    head_dim: int
    window: int
    dtype: str
    block_bytes: int


class Layout(Value, frozen=True):
    """The layout of a block in memory, per layer group: layer → K|V → KV head → [block_tokens, head_dim]."""

    block_tokens: int
    groups: tuple[LayerGroup, ...]


class Capacity(Value, frozen=True):
    """The capacity of a replica: blocks per layer group, tokens of context, requests that run at once."""

    blocks: tuple[int, ...]
    context_tokens: int
    running: int


class ServedModel(Value, frozen=True):
    """The model that a replica serves. `digest` covers weights, dtype, tokenizer and template; `text_digest` covers
    tokenizer and template, which a gateway has too. `vocabulary` is the number of token ids."""

    name: str
    digest: str
    text_digest: str
    dtype: str
    vocabulary: int


class Hello(Message, frozen=True, tag="Hello"):
    """The first frame of a replica. `epoch` grows with each start of the replica, so that gateways can tell an older
    process of the same replica.

    `version` and `oldest` are the protocol versions that it speaks; `challenge` is to be answered in `Dial.proof`.
    """

    version: int
    oldest: int
    replica: str
    epoch: int
    challenge: bytes
    model: ServedModel
    layout: Layout
    capacity: Capacity
    journal: str = ""
    """The identity of the replica's journal. It is another one after the journal's folder was lost."""
    since: int = 0
    """The epoch in which this journal began; 0 if it is older than journal identities."""
    numerics: str = ""
    """What decides the bits of the replica's results beside weights and tokens. Under another id the same request may
    draw other tokens. Empty if the replica is older than that."""
    foreign: str = ""
    """The kind of the engine behind the replica, where it is not ours. Its tokens are not repeatable, a lease keeps
    nothing there, and what is read from its cache is what it says."""


class Dial(Message, frozen=True, tag="Dial"):
    """The first frame of a gateway: its name, and the proof that it knows the link key (see `link_proof`).

    A peer with an empty name is an observer: it gets heartbeats, and never a `Done` that another gateway left
    unacknowledged.
    """

    version: int
    gateway: str
    proof: bytes
    epoch: str = ""
    """Names this run of the gateway. The replica journals its requests under this epoch (see `Fence`)."""


class Fence(Message, frozen=True, tag="Fence"):
    """The gateway run with this epoch has ended: stop its requests, and refuse new ones.

    The replica answers with `Fenced`. It refuses requests of this epoch for ever, after a restart too.
    """

    epoch: str


class Fenced(Message, frozen=True, tag="Fenced"):
    """The requests of a gateway epoch that the replica's journal holds and no gateway has acknowledged: (id, attempt).

    An empty list is final: the journal holds nothing of that epoch, and never will.
    """

    epoch: str
    requests: tuple[tuple[str, int], ...] = ()


Tier = Literal["hbm", "dram", "nvme"]
TIERS: tuple[Tier, ...] = get_args(Tier)


class TierLimit(Value, frozen=True):
    """How many bytes a scope may hold in one tier. Others cannot take its `reserve`; it holds no more than `limit`."""

    tier: Tier
    reserve: int
    limit: int


class Scope(Message, frozen=True, tag="Scope"):
    """Introduce a cache domain on this connection, before the first `Generate` that names it.

    A gateway introduces it again when `MAX_SCOPES` others were introduced since: no message ends the use of a domain.

    `root` is the key of its blocks' hash chain, `data_key` encrypts its records; both are secret. `retention` is the
    longest time in seconds that a block may stay in DRAM or NVMe; with 0 blocks never leave the device.
    """

    scope: str
    root: bytes
    data_key: bytes
    limits: tuple[TierLimit, ...] = ()
    retention: float = 0.0


def owner_of(scope: str) -> str:
    """The scope whose data key, limits and fate this one shares: what stands before the first `/` of its name.

    A client's partitions of a project have roots of their own, and nothing else.
    """
    return scope.partition("/")[0]


class Forget(Message, frozen=True, tag="Forget"):
    """Forget a scope: free its blocks, overwrite its DRAM with zeros, destroy its data key (crypto-erase)."""

    scope: str


class Purge(Message, frozen=True, tag="Purge"):
    """Drop the blocks of a scope that have these keys, from every tier."""

    scope: str
    keys: tuple[bytes, ...]


class Drain(Message, frozen=True, tag="Drain"):
    """Take no more requests from any gateway, and run on what there is; with `drain` false, take requests again.

    The replica refuses a `Generate` until it is resumed or started again, and says so in its heartbeats (`DRAINING`).
    """

    drain: bool = True


class TierLoad(Value, frozen=True):
    """Blocks of a layer group in one tier: `free` + `referenced` + `cached` = `total` (C4)."""

    tier: Tier
    group: int
    free: int
    referenced: int
    cached: int
    total: int


class RemoteService(Message, frozen=True, tag="Elsewhere"):
    """Engine time that flows got from another replica of the same served model: the changed totals of its heartbeat.

    A gateway relays them with each heartbeat. Within an epoch a total only grows, so that repeated and late messages do
    no harm.
    """

    replica: str
    epoch: int
    service: dict[str, int]


class SentPrefix(Value, frozen=True):
    """A prompt that a gateway sent to the replica: see `protocol.requests.Route`."""

    names: bytes
    leased: int = 0
    until: float = 0.0


class Load(Message, frozen=True, tag="Load"):
    """Sent within `LOAD_S` of a change of the queue: what is to be computed, for the gateways' choices.

    `queued`: prompt tokens that are to be computed, by lane, what several requests share once. `decodes`: requests that
    have their first token. `prefixes`: those that other gateways sent since the last one.
    """

    queued: dict[str, int]
    decodes: int
    prefixes: tuple[SentPrefix, ...] = ()


class Heartbeat(Message, frozen=True, tag="Beat"):
    """Sent each second: progress, load, and the engine time that each flow got.

    `steps` must grow while work exists (E3). `running` and `waiting` (by lane) count requests. `service` is cumulative
    engine time in µs per `lane/flow`; a total that falls has begun again from 0. `cache` is a digest of the prefixes
    that the replica holds, for routing. `metrics` are its counters and gauges by Prometheus name. `adapters` are those
    that have a slot, or had one lately.
    """

    steps: int
    running: int
    waiting: dict[str, int]
    memory: tuple[TierLoad, ...]
    service: dict[str, int] = msgspec.field(default_factory=dict)
    cache: bytes = b""
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    adapters: tuple[ResidentAdapter, ...] = ()
