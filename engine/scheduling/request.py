"""One request as the engine sees it: its tokens, its blocks, what was counted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.scheduling.step_costs import Rates
from engine.scheduling.token_sequence import TokenSequence
from prompt_cache.kv.block_keys import BLOCK_TOKENS, block_key, chain, prefix_key
from prompt_cache.kv.grouped_pool import Block
from protocol.requests import Counts, Lane, Sampling, StorePolicy

if TYPE_CHECKING:  # scheduling alone, as simulators drive it, needs no tensors
    from engine.sampling.request_state import SamplingState


@dataclass(slots=True, eq=False)
class Request:
    """`tokens` grows: the prompt, what another replica had emitted, then our output. Counts are in tokens."""

    id: str
    attempt: int
    arrival: int
    """Place in the order of arrival; kept when the request is preempted."""
    tokens: TokenSequence
    prompt: int
    """How many of `tokens` are context: prompt and emitted."""
    segments: tuple[tuple[int, bytes, str], ...]
    """(until, scope root, scope id), in order."""
    root: bytes
    """Where the chain of block keys begins: the served model."""
    sampling: Sampling
    max_output: int
    credit: int
    """How many output tokens may be sent in all so far."""
    deadline: float | None = None
    lane: Lane = "standard"
    flow: str = ""
    sub_flow: str = ""
    weight: int = 1
    read: bool = True
    store: StorePolicy = "all"
    arrived_at: float = 0.0
    row: SamplingState | None = None
    """The sampler's state; None where nothing is sampled."""
    choice: int = 0
    """Which output of its family it is."""
    input_root: bytes | None = None
    """The served model, where `root` is one that nobody else can make."""
    scored: int = 0
    """Up to which prompt token log probabilities were told, if they are wanted."""

    table: list[Block] = field(default_factory=list)
    """One block for each 64 tokens; the first ones may be shared."""
    laid: int = 0
    """How many of the table's first blocks have their parts in groups with windows, but for what left the window."""
    slot: int = -1
    """Its place in the batch of those that decode; -1 while it is not there."""
    due: int = 0
    """The step after which it needs attention while it decodes."""
    keys: list[bytes] = field(default_factory=list)
    """Keys of the whole blocks of `tokens`, as far as they were needed."""
    published: int = 0
    """How many of the table's first blocks are in the index, or were found there."""
    seen: int = 0
    """The most tokens that ever had their KV: what lies before was counted, and is recomputation when done again."""
    began: bool = False
    passed: int = 0
    """How many later requests of its flow were served before it."""
    placed: int = 0
    """Place in the order in which requests got their blocks."""
    placed_at: float = 0.0
    """When it got its blocks, in seconds of the policy's clock."""
    swapped: list[Block] = field(default_factory=list)
    """While it was preempted and its KV kept: the blocks of the swap space, for its first `kept` tokens."""
    kept: int = 0
    lost: float = 0.0
    """µs that its last preemption cost: for copies, and for what has to be computed again."""
    rates: Rates = field(default_factory=Rates)
    """What its tokens cost, as known when it was queued or last got its blocks."""
    estimate: float = 0.0
    """µs of engine time that it is thought to need, while it waits."""
    charged: float = 0.0
    """µs that its flow and lane were charged for it so far, ahead of what it got."""
    served: float = 0.0
    """µs of what it got that are in its flow's total of service."""
    debt_repaid: bool = False
    """Whether it is known to have `has_recovered`."""
    computed: int = 0
    read_hbm: int = 0
    recomputed: int = 0
    extra: float = 0.0
    """µs that it got beside its tokens: for its grammar."""
    _kv: int = 0
    _placed_seen: int = 0
    _placed_output: int = 0
    _placed_tokens: int = 0

    @property
    def kv(self) -> int:
        """How many tokens have their KV in the table's blocks: while it decodes, all but the last."""
        return len(self.tokens) - 1 if self.slot >= 0 else self._kv

    @property
    def output(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.prompt

    @property
    def paused(self) -> bool:
        """Out of credit: what it would sample may not be sent."""
        return len(self.tokens) - self.prompt >= self.credit

    @property
    def spent(self) -> float:
        """µs of engine time that it got so far; what is computed again is our cost and not the flow's."""
        return self.extra + self.rates.cost(self.computed, self.read_hbm, len(self.tokens) - self.prompt)

    def ahead(self, tokens: int) -> float:
        """µs that it got so far and that so many more tokens of output cost, less what it was charged."""
        output = self.tokens.take() - self.prompt + tokens
        return self.extra + self.rates.cost(self.computed, self.read_hbm, output) - self.charged

    @property
    def fresh_output(self) -> int:
        """Output tokens sampled since the request last got its blocks."""
        return self.output - self._placed_output

    @property
    def has_recovered(self) -> bool:
        """Whether it made progress since it last got its blocks, as much as it had lost by giving them up before."""
        if not self.debt_repaid:
            earned = self._earned_back()
            self.debt_repaid = earned > 0 and earned >= self.lost
        return self.debt_repaid

    @property
    def resume_cost(self) -> float:
        """µs that preemption now is thought to cost: full blocks stay in the index, the rest is computed again."""
        kept = self.published * BLOCK_TOKENS if self.read else 0
        return max(0, self.kv - kept) * self.rates.uncached

    @property
    def tokens_to_recover(self) -> int:
        """Output tokens to come until it has recovered."""
        if self.debt_repaid or self.has_recovered:
            return 0
        return max(1, math.ceil((self.lost - self._earned_back()) / self.rates.decoded))

    def _earned_back(self) -> float:
        prefilled = min(self.kv, self._placed_tokens) - self._placed_seen
        return self.rates.cost(max(0, prefilled), 0, self.fresh_output)

    def counts(self) -> Counts:
        """What was done so far (E2)."""
        return Counts(
            prompt=self.computed + self.read_hbm,
            computed=self.computed,
            read_hbm=self.read_hbm,
            output=self.output,
            recomputed=self.recomputed,
        )

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold this many tokens."""
        return -(-tokens // BLOCK_TOKENS)

    def extend_keys(self, blocks: int) -> list[bytes]:
        """The keys of the first `blocks` whole blocks of `tokens`; only new ones are hashed."""
        keys = self.keys
        while len(keys) < blocks:
            self.name(len(keys))
        return keys

    def name(self, index: int) -> tuple[bytes, str]:
        """The key of a whole block of `tokens`, and the scope id; those before it have their keys."""
        keys, segments = self.keys, self.segments
        _, scope, id = segments[0] if len(segments) == 1 else self.segment_at(index * BLOCK_TOKENS)
        if index < len(keys):
            return keys[index], id
        key = block_key(scope, keys[-1] if index else self.root, self.tokens.block(index))
        keys.append(key)
        return key, id

    def input_key(self) -> bytes:
        """The prefix key of the prompt as it was sent: what it is known by, under its scopes, when it does harm."""
        until, scope, _ = self.segments[-1]
        whole = until // BLOCK_TOKENS
        rest = self.tokens[whole * BLOCK_TOKENS : until]
        if self.input_root is None:
            root, keys = self.root, self.extend_keys(whole)
        else:
            root, scopes = self.input_root, [(end, scope) for end, scope, _ in self.segments]
            keys = chain(root, scopes, self.tokens[:until])
        return prefix_key(scope, keys[whole - 1] if whole else root, rest)

    def segment_at(self, block_start: int) -> tuple[int, bytes, str]:
        """The segment that the block beginning at this token belongs to: the one of its last token."""
        segments = self.segments
        return next((segment for segment in segments if segment[0] >= block_start + BLOCK_TOKENS), segments[-1])

    def place(self, table: list[Block], found: int, tokens: int, copies: float = 0.0) -> None:
        """The request got its blocks, the first `found` of them out of the index; its first `tokens` tokens have their
        KV. Those beyond the ones that it had before were read. `copies`: µs that its swapping took.
        """
        self.table = table
        self.laid = max(found, self.blocks_for(tokens))
        self.published = found
        self.lost = max(0, self.seen - tokens) * self.rates.uncached + copies
        self.read_hbm += max(0, min(tokens, self.prompt) - self.seen)
        self._kv = tokens
        self.seen = max(self.seen, tokens)
        self._placed_seen, self._placed_output, self._placed_tokens = self.seen, self.output, len(self.tokens)
        self.debt_repaid = False

    def account(self, end: int) -> None:
        """Count that the tokens kv..end are computed now: new ones of the prompt, or again after preemption."""
        again = min(end, self.seen)
        if again > self._kv:
            self.recomputed += again - self._kv
        fresh = max(self._kv, self.seen)
        self.computed += max(0, min(end, self.prompt) - fresh)
        self._kv = end
        self.seen = max(self.seen, end)

    def rest(self) -> None:
        """It leaves the batch of those that decode; its KV stays."""
        self._kv = len(self.tokens) - 1
        self.seen = max(self.seen, self._kv)
        self.slot = -1

    def release_blocks(self) -> None:
        """Its blocks are gone."""
        self.table = []
        self.laid = 0
        self.published = 0
        self._kv = 0
