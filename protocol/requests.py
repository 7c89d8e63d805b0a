"""The messages about one request: what is asked, what comes back, what it took."""

from __future__ import annotations

from typing import Literal

import msgspec

from protocol.message import Message, Part

CLAIMS = 3
"""From this version on a replica gives back a request's `claim`."""

ATTEMPTS = 6
"""From this version on a replica tells the attempts of a request apart: a later one ends the one before it, and what is
said to one attempt means no other."""

MOST_CHOICES = 128

Lane = Literal["interactive", "standard", "batch"]
LANES: tuple[Lane, ...] = ("interactive", "standard", "batch")
"""From the highest to the lowest."""
StorePolicy = Literal["all", "hbm", "none"]
"""`all`: blocks may go to any tier. `hbm`: never leave the device (`no-store`). `none`: not even shared there."""
Reason = Literal["stop", "length", "budget", "abort", "deadline", "rejected", "error", "crash"]
"""Why a request ended. `rejected`: never scheduled, `error` says why; `crash`: replayed from a dead epoch's journal."""
MissCause = Literal["cold", "diverged", "evicted", "other_scope", "no_read"]


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
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
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
    """Run a request. A later `attempt` of one that this gateway run has running here ends the earlier one first, which
    is answered by a `Done` of its own.

    The last segment ends at `len(tokens)`; what is generated belongs to the last segment's scope.

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
    emitted: list[int] = msgspec.field(default_factory=list)
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
    attempt: int = 0
    """The attempt that is meant; 0 for whichever runs. So in `Extend` and `Abort`."""


class Extend(Message, frozen=True, tag="Extend"):
    """Raise the output limit and/or the deadline of a request, and/or change its lane."""

    id: str
    max_tokens: int
    deadline: float | None = None
    lane: Lane | None = None
    attempt: int = 0


class Abort(Message, frozen=True, tag="Abort"):
    """Stop the request at the next step; `Done` follows. An unknown id, or attempt, is answered with a `rejected`
    `Done`.

    With `choice` only that one stops, and `Done` follows when the last choice has ended.
    """

    id: str
    why: str = "client"
    choice: int | None = None
    attempt: int = 0


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
