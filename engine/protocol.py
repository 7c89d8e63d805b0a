"""The messages between gateway and replica: the only thing the gateway imports from the engine.

A frame is a 4-byte big-endian length and a msgpack array whose first element is the message's tag. The replica listens
on a Unix or TCP socket; each gateway worker dials it. On connecting, the replica sends `Hello` with a challenge, the
gateway answers `Dial` with its proof; until then the replica accepts nothing else. Both sides speak the lower of the
two protocol versions, and refuse one older than `OLDEST_VERSION`.

Fields are only ever added at the end, with a default, so that version N reads the frames of N-1 and N-1 ignores what
it does not know. A request that means something else without a field that N-1 ignores goes to replicas of version N
alone (`Generate.version`). Times are seconds since the Unix epoch; token counts are tokens; ids are opaque strings.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from typing import Literal, TypeAlias

import msgspec

VERSION = 4
CLAIMS = 3
"""From this version on a replica gives back a request's `claim`."""
SCOPES_ARE_BOUNDED = 4
"""From this version on a connection knows the last `MOST_SCOPES` scopes only."""
OLDEST_VERSION = 1
MAX_FRAME_BYTES = 64 * 1024 * 1024

MOST_CHOICES = 128
MOST_SCOPES = 10_000
"""So many scopes are known on a connection: those that were introduced last."""

Lane = Literal["interactive", "standard", "batch"]
StorePolicy = Literal["all", "hbm", "none"]
"""`all`: blocks may go to any tier. `hbm`: never leave the device (`no-store`). `none`: not even shared there."""
Reason = Literal["stop", "length", "budget", "abort", "deadline", "rejected", "error", "crash"]
"""Why a request ended. `rejected`: never scheduled, `error` says why; `crash`: replayed from a dead epoch's journal."""
MissCause = Literal["cold", "diverged", "evicted", "other_scope", "no_read"]


class Message(msgspec.Struct, frozen=True, array_like=True, tag_field="type", gc=False):
    """Base of all messages: encoded as an array, tagged with the class name."""


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of the values inside messages."""


class Counts(Part, frozen=True):
    """What the engine physically did for one request, in tokens.

    `prompt` is what was computed or read when the request ended, 0 if it was never scheduled:
    `prompt = computed + read_hbm + read_dram + read_nvme` (E2). `output` counts sampled tokens, the end token included.
    `recomputed` (after preemption) and `drafted`/`accepted` (speculation) stand beside them and are never billed.
    """

    prompt: int = 0
    computed: int = 0
    read_hbm: int = 0
    read_dram: int = 0
    read_nvme: int = 0
    output: int = 0
    recomputed: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def read(self) -> int:
        """Prompt tokens whose KV was there, in any tier."""
        return self.read_hbm + self.read_dram + self.read_nvme

    def check(self) -> None:
        """Raise ValueError unless the identity of counts holds (E2)."""
        if min(msgspec.structs.astuple(self)) < 0:
            raise ValueError(f"negative count in {self}")
        if self.prompt != self.computed + self.read:
            raise ValueError(f"prompt is not computed + read in {self}")
        if self.accepted > self.drafted:
            raise ValueError(f"more drafted tokens accepted than drafted in {self}")


# ---------------------------------------------------------------- opening


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


class Dial(Message, frozen=True, tag="Dial"):
    """The gateway's first frame: who it is, and proof that it knows the link key (see `link_proof`).

    Who gives no name only looks: it hears beats, and is never handed what others left unacknowledged.
    """

    version: int
    gateway: str
    proof: bytes


# ---------------------------------------------------------------- scopes


class TierLimit(Part, frozen=True):
    """What a scope may hold in one tier, in bytes: `reserve` cannot be taken by others, `limit` cannot be passed."""

    tier: Literal["hbm", "dram", "nvme"]
    reserve: int
    limit: int


class Scope(Message, frozen=True, tag="Scope"):
    """Introduce a cache domain on this connection, before the first `Generate` that names it, and again once
    `MOST_SCOPES` others were introduced since: nobody says when a domain will not be used any more.

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


# ---------------------------------------------------------------- a request


class Segment(Part, frozen=True):
    """Tokens before position `until` (and after the last segment's) belong to `scope`. Scopes only narrow."""

    until: int
    scope: str


class Sampling(Part, frozen=True):
    """How tokens are drawn. `temperature` 0 is greedy. Randomness depends on (`seed`, position) alone.

    What each field does, and in which order: `engine/sampling/sampler.py`.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    stop_tokens: tuple[int, ...] = ()
    """Token ids that end the output; the end token is sampled and counted, and sent like any other."""
    top_k: int = 0
    """0 for no limit."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0
    """No stop token is drawn before so many output tokens, those that were emitted before included."""
    logprobs: int | None = None
    """Tell each output token's log probability, and those of so many likeliest tokens beside it (at most 20)."""
    prompt_logprobs: int | None = None
    """The same of the prompt's tokens from the second on (`PromptLogprobs`). All of the prompt is then computed:
    nothing is read from memory, and counts say so. `max_tokens` may be 0."""

    @property
    def version(self) -> int:
        """The protocol version that a replica must know to draw in this way."""
        newer = Sampling(self.max_tokens, self.temperature, self.top_p, self.seed, self.stop_tokens)
        return 1 if self == newer else 2


class Retain(Part, frozen=True):
    """Keep the KV of the first `tokens` tokens until `until`, if that is possible."""

    tokens: int
    until: float


class Generate(Message, frozen=True, tag="Generate"):
    """Run a request. The last segment ends at `len(tokens)`; what is generated belongs to the last segment's scope.

    `emitted` are tokens already delivered by a replica that died: they are context, not output, and the output
    continues after them (positions for the seed go on counting). `credit` is how many output tokens may be sent before
    the first `Credit`. `flow`, `sub_flow` and `weight` say who shares fairly.

    `grammar` is a JSON object with one key, which the output must fulfil: `json_schema` (a schema), `regex` (a regular
    expression), `choice` (a list of texts) or `grammar` (Lark or GBNF). Then it ends where the grammar does, by the
    model's own end tokens or without one when nothing can follow; `stop_tokens` do not end it.
    """

    id: str
    attempt: int
    segments: tuple[Segment, ...]
    tokens: list[int]
    sampling: Sampling
    credit: int
    flow: str = ""
    sub_flow: str = ""
    weight: int = 1
    lane: Lane = "standard"
    deadline: float | None = None
    emitted: list[int] = []
    grammar: str | None = None
    read: bool = True
    store: StorePolicy = "all"
    retain: tuple[Retain, ...] = ()
    choices: int = 1
    """How many outputs are drawn for one prompt, each under a seed derived from `seed` and as its own request would
    be. The prompt is computed and counted once; limits and `credit` are each choice's own; `counts.output` and
    `delivered` are sums over all. With `store` `none` nothing is read either."""
    claim: bytes = b""
    """What whoever bills this request must know of it, if nobody else will: journaled, and given back in `Done`."""

    @property
    def version(self) -> int:
        """The oldest protocol version whose replicas answer this request as it is meant."""
        if self.claim:
            return CLAIMS
        return max(self.sampling.version, 1 if self.choices == 1 and self.grammar is None else 2)


class Miss(Part, frozen=True):
    """Prompt tokens [start, end) had to be computed, because of `cause`."""

    start: int
    end: int
    cause: MissCause


class Began(Message, frozen=True, tag="Began"):
    """The request was scheduled for the first time: what will be read, what computed. Before the first token."""

    id: str
    attempt: int
    counts: Counts
    misses: tuple[Miss, ...] = ()
    queued_s: float = 0.0


class TokenLogprob(Part, frozen=True):
    """A token's natural log probability and the likeliest tokens in its place, as (token, log probability).

    By the model's own distribution: before bias, penalties, grammar and temperature. float32; at least -9999.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class PromptLogprobs(Message, frozen=True, tag="PromptLogprobs"):
    """Of the prompt tokens from `start` on, in order, before the first `Tokens`; only when they were asked for."""

    id: str
    attempt: int
    start: int
    logprobs: tuple[TokenLogprob, ...]


class Tokens(Message, frozen=True, tag="Tokens"):
    """Output tokens of one choice; `start` is the index of the first of them in its output.

    `logprobs` has an entry for each token if they were asked for.
    """

    id: str
    attempt: int
    start: int
    tokens: list[int]
    choice: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


class Credit(Message, frozen=True, tag="Credit"):
    """`delivered` tokens have reached the client so far, of all choices together; up to `limit` of each choice may be
    sent. Both only grow.

    The replica journals `delivered`, so that a bill can be made when the gateway dies.
    """

    id: str
    delivered: int
    limit: int


class Extend(Message, frozen=True, tag="Extend"):
    """Raise the output limit and/or the deadline of a request, and/or change its lane."""

    id: str
    max_tokens: int
    deadline: float | None = None
    lane: Lane | None = None


class Abort(Message, frozen=True, tag="Abort"):
    """Stop the request at the next step; `Done` follows. An unknown id is answered with a `rejected` `Done`.

    With `choice` only that one stops, and `Done` follows when the last choice has ended.
    """

    id: str
    why: str = "client"
    choice: int | None = None


class Refusal(Part, frozen=True):
    """Why a request that is well-formed was not taken: whose bounded queue was full, or `input`, which made the engine
    fail before; and how many seconds it would wait, as far as is known, or is refused."""

    whose: Literal["flow", "lane", "replica", "input"]
    wait_s: float


class Done(Message, frozen=True, tag="Done"):
    """The end of a request: always answers `Generate` and `Abort`, and is repeated until acknowledged.

    `sequence` numbers the replica's journal, and grows across its epochs. `delivered` is the last value that the
    replica heard in `Credit`. With reason `rejected` nothing was done and nothing is journaled (`sequence` 0).
    """

    id: str
    attempt: int
    reason: Reason
    counts: Counts
    sequence: int
    delivered: int = 0
    error: str | None = None
    replayed: bool = False
    refusal: Refusal | None = None
    """With reason `rejected`: the request is well-formed, and could be taken later."""
    reasons: tuple[Reason, ...] = ()
    """Of a request with several choices: why each ended."""
    invalid: str | None = None
    """With reason `rejected` or, once output had begun, `error`: the field of `Generate` in which the client is wrong,
    as only the replica could tell."""
    claim: bytes = b""
    """That of `Generate`."""


class Ack(Message, frozen=True, tag="Ack"):
    """The usage of this request is durable in a spool: the replica may drop it from its journal."""

    id: str
    sequence: int


# ---------------------------------------------------------------- health


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
    service: dict[str, int] = {}
    cache: bytes = b""
    metrics: dict[str, float] = {}


ToReplica: TypeAlias = Dial | Scope | Forget | Purge | Generate | Credit | Extend | Abort | Ack | Elsewhere
ToGateway: TypeAlias = Hello | Began | PromptLogprobs | Tokens | Done | Beat

_encoder = msgspec.msgpack.Encoder()
_to_replica = msgspec.msgpack.Decoder(ToReplica)
_to_gateway = msgspec.msgpack.Decoder(ToGateway)


class AddressError(ValueError):
    """A replica's address is not `unix:PATH` or `tcp:HOST:PORT`."""


class Address(msgspec.Struct, frozen=True):
    """Where a replica listens: a Unix socket's path, or a TCP host and port."""

    text: str
    path: str | None = None
    host: str = ""
    port: int = 0


def parse_address(text: str) -> Address:
    """Read `unix:PATH` or `tcp:HOST:PORT`; an IPv6 host stands in brackets. Raises AddressError."""
    kind, _, rest = text.partition(":")
    if kind == "unix" and rest:
        return Address(text, path=rest)
    host, _, port = rest.rpartition(":")
    if kind == "tcp" and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536:
        return Address(text, host=host.strip("[]"), port=int(port))
    raise AddressError(f"{text!r} is not a replica's address; expected unix:PATH or tcp:HOST:PORT")


class ProtocolError(Exception):
    """The other side sent what this protocol does not allow: an oversized, malformed or unexpected frame."""


def encode(message: ToReplica | ToGateway) -> bytes:
    """The frame of a message: length prefix and body."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return len(body).to_bytes(4, "big") + body


async def _read_frame(reader: asyncio.StreamReader) -> bytes | None:
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame of {size} bytes is over the limit of {MAX_FRAME_BYTES}")
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def read_from_gateway(reader: asyncio.StreamReader) -> ToReplica | None:
    """The next message of a gateway; None when it hung up. Raises ProtocolError."""
    body = await _read_frame(reader)
    try:
        return None if body is None else _to_replica.decode(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"malformed frame from the gateway: {error}") from error


async def read_from_replica(reader: asyncio.StreamReader) -> ToGateway | None:
    """The next message of a replica; None when it hung up. Raises ProtocolError."""
    body = await _read_frame(reader)
    try:
        return None if body is None else _to_gateway.decode(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"malformed frame from the replica: {error}") from error


def link_proof(link_key: bytes, challenge: bytes, gateway: str) -> bytes:
    """What a gateway answers to a replica's challenge: HMAC-SHA256 under the key that both were given."""
    return hmac.new(link_key, b"turnpike/link/v1\0" + challenge + gateway.encode(), hashlib.sha256).digest()


def agree_version(version: int, oldest: int) -> int:
    """The protocol version to speak with a peer that knows `oldest`..`version`. Raises ProtocolError if none."""
    common = min(VERSION, version)
    if common < max(OLDEST_VERSION, oldest):
        raise ProtocolError(f"no common protocol version: ours {OLDEST_VERSION}..{VERSION}, theirs {oldest}..{version}")
    return common
