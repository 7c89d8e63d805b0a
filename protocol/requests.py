"""The messages about one request: what a gateway asks for, what comes back, what it took."""

from __future__ import annotations

from typing import Literal

import msgspec

from protocol.message import Message, Value

CLAIM_VERSION = 3
"""From this protocol version on, a replica gives back a request's `claim`."""

ATTEMPT_VERSION = 6
"""From this protocol version on, a replica tells the attempts of a request apart. A later attempt ends the earlier
one, and a message about one attempt does not concern another."""

REASONING_VERSION = 8
"""From this protocol version on, a replica knows where an output's reasoning ends (`Generate.reasoning`)."""

PROMPT_VERSION = 9
"""From this protocol version on, a replica tells with the first token what became of the prompt (`Tokens.prompt`)."""

CONTINUE_VERSION = 10
"""From this protocol version on, a replica takes up what an earlier attempt of a request had put out
(`Generate.emitted`)."""

ADAPTER_VERSION = 11
"""From this protocol version on, a replica computes adapters (`Generate.adapter`)."""

ROUTING_VERSION = 12
"""From this protocol version on, a replica tells its queue as it changes (`protocol.replicas.Load`), and which prefixes
other gateways sent (`Generate.route`)."""

WARMING = "warm:"
"""The id of a request that only computes a prefix for others begins so. It has no client and no price: it is not
journaled, and its `Done` has no sequence number. Only replicas of `ROUTING_VERSION` take it."""

MOST_CHOICES = 128
MOST_PREDICTION_TOKENS = 32_768
MOST_MARKER_TOKENS = 64

Lane = Literal["interactive", "standard", "batch"]
LANES: tuple[Lane, ...] = ("interactive", "standard", "batch")
"""From the highest priority to the lowest."""
StorePolicy = Literal["all", "hbm", "none"]
"""`all`: blocks may go to any tier. `hbm`: they never leave the device (`no-store`). `none`: they are not shared there
either."""
Reason = Literal["stop", "length", "budget", "abort", "deadline", "rejected", "error", "crash"]
"""Why a request ended. `rejected`: it was never scheduled, and `error` says why. `crash`: the replica died, and its
journal has the counts."""
MissCause = Literal["cold", "diverged", "evicted", "other_scope", "no_read"]
LossCause = Literal["corrupted", "late"]
"""Why KV that lay in a farther tier was computed. `corrupted`: it failed its check. `late`: computing was quicker than
reading it, or it had not come when computing went on."""


class Counts(Value, frozen=True):
    """What the engine physically did for a request, in tokens.

    `prompt` is what was computed or read when the request ended, 0 if it was never scheduled: `prompt = computed +
    read_hbm + read_dram + read_nvme` (E2). `output` counts sampled tokens, the end token included. `recomputed` (after
    a preemption) and `drafted` and `accepted` (speculation) are counted apart and never billed.

    Another count is a field at the end here and a new protocol version; docs/changes.md lists what it touches.
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
        """Prompt tokens whose KV was in memory, in any tier."""
        return self.read_hbm + self.read_dram + self.read_nvme

    def check(self) -> None:
        """Raise ValueError unless the identity of counts (E2) holds."""
        if min(msgspec.structs.astuple(self)) < 0:
            raise ValueError(f"negative count in {self}")
        if self.prompt != self.computed + self.read:
            raise ValueError(f"prompt is not computed + read in {self}")
        if self.accepted > self.drafted:
            raise ValueError(f"more drafted tokens accepted than drafted in {self}")


class Segment(Value, frozen=True):
    """The prompt's tokens up to position `until` belong to `scope`, from where the previous segment ends. Each scope
    is at most as wide as the one before it."""

    until: int
    scope: str


class Sampling(Value, frozen=True):
    """How tokens are drawn. `temperature` 0 is greedy. Randomness depends on (`seed`, position) alone.

    `engine/sampling/sampler.py` says what each field does, and in which order.
    """

    max_tokens: int
    """0 computes the prompt, so that it is cached, and draws nothing."""
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    stop_tokens: tuple[int, ...] = ()
    """Token ids that end the output. The end token is sampled, counted and sent like any other."""
    top_k: int = 0
    """0 for no limit."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    min_tokens: int = 0
    """No stop token is drawn before so many output tokens."""
    logprobs: int | None = None
    """If set, `Tokens` gives the log probability of each output token, and of this many likeliest tokens in its place
    (at most 20)."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens from the second on (`PromptLogprobs`). The whole prompt is then computed and
    nothing is read from the cache, and counts say so."""

    @property
    def version(self) -> int:
        """The oldest protocol version whose replicas draw tokens in this way."""
        newer = Sampling(self.max_tokens, self.temperature, self.top_p, self.seed, self.stop_tokens)
        return 1 if self == newer else 2


class Retain(Value, frozen=True):
    """Keep the KV of the first `tokens` tokens until `until`, if possible."""

    tokens: int
    until: float


class Reasoning(Value, frozen=True):
    """Where the reasoning stands in an output, in tokens. A grammar applies to the answer after it alone.

    The first token of `end` ends a section of reasoning; where the budget is spent, or the answer's grammar needs the
    tokens that are left, all of `end` is put out. Such tokens are output like any other.
    """

    end: tuple[int, ...]
    begin: tuple[int, ...] = ()
    """What opens a section; where the budget is spent no more is opened. Empty: the output opens none."""
    begun: bool = False
    """Whether the prompt has opened a section."""
    budget: int | None = None
    """Tokens of reasoning, those of `begin` and `end` not among them; None for no limit."""
    opening: tuple[int, ...] = ()
    """Tokens that are put out first, before an answer under a grammar."""
    answer: tuple[int, ...] = ()
    """Tokens that are put out between a section and an answer under a grammar."""


class Route(Value, frozen=True):
    """What routing knows of a prompt. `names`: of its prefixes (`protocol.prefixes`). `expected`: tokens of it that are
    expected to be computed. A lease on its first `leased` tokens lives until `until`."""

    names: bytes
    expected: int
    leased: int = 0
    until: float = 0.0


class Generate(Message, frozen=True, tag="Generate"):
    """Run a request. If this gateway run already runs an earlier `attempt` of it here, that one is ended first and
    answered by a `Done` of its own.

    The last segment ends at `len(tokens)`; the output belongs to its scope.

    `emitted` are the output tokens, by choice, that an earlier attempt had put out; empty in a first attempt. The
    output continues after them as if this replica had drawn them: limits, `credit`, `Tokens.start`, positions for the
    seed and `counts.output` go on from there. `credit` is how many output tokens may be sent before the first `Credit`.
    Fairness is by `lane`, `flow`, `sub_flow` and `weight`.

    `grammar` is a JSON object with one key, which the output must fulfil: `json_schema` (a schema), `regex` (a regular
    expression), `choice` (a list of texts), `grammar` (Lark or GBNF) or `calls` (a Lark text with places for schemas).
    The output then ends where the grammar ends: by the model's own end tokens, or without one when nothing can follow.
    `stop_tokens` do not end it.
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
    emitted: tuple[list[int], ...] = ()
    grammar: str | None = None
    read: bool = True
    store: StorePolicy = "all"
    retain: tuple[Retain, ...] = ()
    choices: int = 1
    """How many outputs are drawn for the prompt: each under a seed derived from `seed`, with the tokens that its own
    request would give. The prompt is computed and counted once. Limits and `credit` are per choice; `counts.output`
    and `delivered` are sums over all choices. With `store` `none` nothing is read from the cache either."""
    claim: bytes = b""
    """What the biller must know of this request if no gateway does any more. It is journaled, and given back in
    `Done`."""
    sent_at: float | None = None
    """When it was sent, by the clock of `deadline`: the gateway's. Hosts' clocks differ, so what counts is how long the
    deadline is after this. None from gateways that do not say it: their clock is taken to be the replica's."""
    reasoning: Reasoning | None = None
    """How the output reasons before it answers, where the replica is to know: for a budget, or beside a grammar."""
    speculation: Literal["auto", "off"] = "auto"
    """`off`: no drafts are verified for it. The output is the same, so that replicas which do not know it may run it;
    so too with `prediction`."""
    prediction: tuple[int, ...] = ()
    """What the client expects the output to be, at most MOST_PREDICTION_TOKENS tokens: drafts come from it."""
    stopped: tuple[int, ...] = ()
    """With `emitted`: the choices of which no more is wanted."""
    counted: Counts = Counts()
    """With `emitted`: what the prompt took in the attempt that computed it, with which the counts of this one begin."""
    delivered: int = 0
    """With `emitted`: how many of these tokens had reached the client, as in `Credit`."""
    traceparent: str = ""
    """The gateway's span of the request (`protocol.trace_context`), for the replica's logs. Empty: it is not traced."""
    adapter: str = ""
    """The name of the adapter that changes the model for it; empty for the model itself. A replica that lacks it asks
    its gateway (`protocol.adapters`)."""
    route: Route | None = None
    """By what the replica was chosen; it tells other gateways. Replicas that do not know it do the same work."""

    def received(self, now: float) -> Generate:
        """The same request with a deadline by the clock of the replica, which received it at `now`."""
        if self.sent_at is None or self.deadline is None:
            return self
        return msgspec.structs.replace(self, deadline=now + (self.deadline - self.sent_at), sent_at=None)

    @property
    def version(self) -> int:
        """The oldest protocol version whose replicas answer this request as it is meant."""
        if self.adapter:
            return ADAPTER_VERSION
        if self.emitted:
            return CONTINUE_VERSION
        if self.reasoning is not None:
            return REASONING_VERSION
        if self.claim:
            return CLAIM_VERSION
        return max(self.sampling.version, 1 if self.choices == 1 and self.grammar is None else 2)


class Miss(Value, frozen=True):
    """Prompt tokens [start, end) had to be computed, because of `cause`."""

    start: int
    end: int
    cause: MissCause


class Began(Message, frozen=True, tag="Began"):
    """The request was scheduled for the first time. `counts` say what is expected to be read and what computed; what
    is to come from farther tiers may not come. Sent before the first token."""

    id: str
    attempt: int
    counts: Counts
    misses: tuple[Miss, ...] = ()


MOST_LOST = 32


class Lost(Value, frozen=True):
    """Prompt tokens [start, end), whose KV lay in a farther tier, were computed because of `cause`."""

    start: int
    end: int
    cause: LossCause


class PromptRead(Value, frozen=True):
    """What became of a prompt, for good: where its KV was read from, and what of it was lost. `lost`: in order, at most
    MOST_LOST; of more, the first."""

    counts: Counts
    lost: tuple[Lost, ...] = ()


class TokenLogprob(Value, frozen=True):
    """The natural log probability of a token, and the likeliest tokens in its place, as (token, log probability).

    They are of the model's own distribution, before bias, penalties, grammar and temperature; float32, at least -9999.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class PromptLogprobs(Message, frozen=True, tag="PromptLogprobs"):
    """Log probabilities of the prompt tokens from `start` on, in order, before the first `Tokens`. Sent only if asked
    for."""

    id: str
    attempt: int
    start: int
    logprobs: tuple[TokenLogprob, ...]


class Tokens(Message, frozen=True, tag="Tokens"):
    """Output tokens of one choice. `start` is the index of the first of them in that choice's output.

    `logprobs` has an entry for each token if they were asked for. `prompt`: with the first tokens of a request; those
    of an older replica have none.
    """

    id: str
    attempt: int
    start: int
    tokens: list[int]
    choice: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt: PromptRead | None = None


class Credit(Message, frozen=True, tag="Credit"):
    """So far `delivered` tokens, of all choices together, have reached the client; up to `limit` of each choice may be
    sent. Both only grow.

    The replica journals `delivered`, so that a request can be billed when the gateway dies.
    """

    id: str
    delivered: int
    limit: int
    attempt: int = 0
    """The attempt that is meant, or 0 for any; so too in `Abort`."""


class Abort(Message, frozen=True, tag="Abort"):
    """Stop the request at the next step; `Done` follows. An unknown id or attempt is answered by a `rejected` `Done`.

    With `choice` only that choice stops, and `Done` follows when the last choice has ended.
    """

    id: str
    why: str = "client"
    choice: int | None = None
    attempt: int = 0


class Refusal(Value, frozen=True):
    """Why a well-formed request was refused: whose bounded queue was full, or `input`, which made the engine fail
    before. `wait_s` is how many seconds it would wait, as far as is known, or for how long it is refused."""

    whose: Literal["flow", "lane", "replica", "input"]
    wait_s: float


class PromptChunk(Value, frozen=True):
    """A part of a prompt that one step computed, from `start` to `end`, in µs as in `Timeline`. `restored`: prompt
    tokens that came from a farther tier, or from another request, since the chunk before."""

    start: int
    end: int
    computed: int
    restored: int = 0


class Timeline(Value, frozen=True):
    """What a replica did when for a request, in µs since its `Generate` arrived, by a clock that never goes back; -1
    for what never happened. It explains and bills nothing: it is not journaled, and a replayed `Done` has none."""

    accepted: int = -1
    """The engine has taken it; before that its grammar was compiled."""
    began: int = -1
    """It was scheduled for the first time, as `Began` says."""
    first: int = -1
    """Its first token was sampled."""
    ended: int = 0
    paused: int = 0
    """For how many µs it had a token to compute and no credit to send it."""
    preemptions: int = 0
    chunks: tuple[PromptChunk, ...] = ()
    """At most MOST_CHUNKS: the last stands for all that follow it."""
    decodes: int = 0
    """Steps that drew its output behind the first token: fewer than the tokens where drafts were accepted."""
    drafting: int = 0
    """For how many µs drafters held up the steps that it had work in, whoever they drafted for."""


MOST_CHUNKS = 32


class Done(Message, frozen=True, tag="Done"):
    """The end of a request: the answer to every `Generate` and `Abort`, repeated until it is acknowledged.

    `sequence` is its number in the replica's journal, and grows across epochs. `delivered` is the last value that a
    `Credit` brought. With reason `rejected` nothing was done and nothing is journaled (`sequence` 0).
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
    """With reason `rejected`: the request is well-formed, and may be sent again later."""
    reasons: tuple[Reason, ...] = ()
    """Why each choice ended, if there were several."""
    invalid: str | None = None
    """With reason `rejected` or `error`: the wrong field of `Generate`, where only the replica could tell."""
    claim: bytes = b""
    """The `claim` of its `Generate`."""
    timeline: Timeline | None = None


class Ack(Message, frozen=True, tag="Ack"):
    """The usage of this request is durable in a spool: the replica may drop it from its journal."""

    id: str
    sequence: int
