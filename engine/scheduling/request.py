"""One request in the engine: its tokens, its KV blocks, its counts, and what its flow was charged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.scheduling.step_costs import Rates
from engine.scheduling.token_sequence import TokenSequence
from prompt_cache.kv.block_keys import BLOCK_TOKENS, KeyFork, block_key, chain, prefix_key
from prompt_cache.kv.grouped_pool import Block
from prompt_cache.placement.fetch_or_recompute import Place
from protocol.requests import MOST_LOST, Counts, Lane, LossCause, Lost, Sampling, StorePolicy

if TYPE_CHECKING:  # scheduling alone, as simulators drive it, needs no tensors
    from engine.sampling.request_state import SamplingState
    from engine.scheduling.adapter_slots import Adapter
    from engine.scheduling.restoring import Restore


@dataclass(slots=True, eq=False)
class Request:
    """A queued, running or preempted request. Counts are in tokens, costs in µs of engine time."""

    id: str
    attempt: int
    arrival: int
    """Serial number in order of arrival; unchanged by preemption."""
    tokens: TokenSequence
    """The prompt, then output that an earlier attempt had emitted, then output of this one."""
    prompt: int
    """How many of `tokens` are the request's context: prompt and emitted output."""
    segments: tuple[tuple[int, bytes, str], ...]
    """(until token, scope root, scope id), in order."""
    root: bytes
    """The parent of the first block key: the served model's root."""
    sampling: Sampling
    max_output: int
    """How many tokens may be sampled here, so after what was emitted before."""
    credit: int
    """How many of these may be sent (flow control of the stream)."""
    emitted: int = 0
    """Output tokens of an earlier attempt."""
    deadline: float | None = None
    lane: Lane = "standard"
    flow: str = ""
    sub_flow: str = ""
    weight: int = 1
    read: bool = True
    store: StorePolicy = "all"
    speculates: bool = True
    """Whether drafts may be verified for it."""
    prediction: Sequence[int] = ()
    """What the client expects the output to be."""
    arrived_at: float = 0.0
    row: SamplingState | None = None
    """The sampler's state; None where nothing is sampled."""
    choice: int = 0
    """Which of its parent's `n` choices it is."""
    input_root: bytes | None = None
    """The served model's root, where `root` is a random one so that nobody shares the KV."""
    adapter: Adapter | None = None
    weights: object = None
    """The adapter's, while it holds a slot for them: it keeps those that it began with."""
    adapted_from: int = 0
    """From which position on the adapter acts."""
    key_fork: KeyFork | None = None
    """From where on its block keys are its adapter's."""
    scored: int = 0
    """Up to which prompt token log probabilities were sent, if the client wants them."""

    table: list[Block] = field(default_factory=list)
    """The block table: one block for each 64 tokens; the first ones may be shared."""
    blocks_laid: int = 0
    """How many of the table's first blocks are allocated in layer groups with a window (or have left the window)."""
    slot: int = -1
    """Its row in the decode batch; -1 while it is not there."""
    due: int = 0
    """The step count at which it needs attention while it decodes (`decode_batch`)."""
    keys: list[bytes] = field(default_factory=list)
    """Keys of the whole blocks of `tokens`, as far as they were needed."""
    expected_read: int = 0
    """How many first tokens had KV in any tier when it came: reading them costs little of the queue's time."""
    matched: int = 0
    """How many of its first blocks were on the device when it was last looked for them while it waited."""
    published: int = 0
    """How many of the table's first blocks are in the prefix index."""
    max_kv: int = 0
    """The most tokens that ever had KV. Tokens before it were counted once; computing them again is recomputation."""
    began: bool = False
    """Whether it was ever admitted."""
    times_overtaken: int = 0
    """How many later requests of its flow were served before it."""
    placement: int = 0
    """Serial number in the order in which requests got their blocks."""
    placed_at: float = 0.0
    """When it got its blocks, in seconds of the policy's clock."""
    restore: Restore | None = None
    """What of its prompt is on its way from a farther tier, while it has blocks."""
    lost: dict[int, LossCause] = field(default_factory=dict)
    """Indices of blocks that lay in a farther tier when they were looked for, and have not come from there."""
    retain: tuple[tuple[int, float], ...] = ()
    """(tokens, until): its first tokens are wanted until then, in seconds since the Unix epoch."""
    swapped: list[Block] = field(default_factory=list)
    """Blocks of host memory with the KV of its first `swapped_tokens` tokens, while it is preempted."""
    swapped_tokens: int = 0
    preemptions: int = 0
    preemption_cost: float = 0.0
    """µs of its last preemption: copies, and tokens to be recomputed. It must earn them back (`has_recovered`)."""
    rates: Rates = field(default_factory=Rates)
    """Costs of its tokens, as known when it was queued or last admitted."""
    estimate: float = 0.0
    """Estimated cost in µs of what is still to do, while it waits."""
    charged: float = 0.0
    """µs charged to its flow and lane so far, some of it ahead of the service."""
    reported_service: float = 0.0
    """µs of its service that are already in its flow's service total."""
    debt_repaid: bool = False
    """`has_recovered`, remembered once it is true."""
    computed: int = 0
    read_hbm: int = 0
    reads: dict[Place, int] = field(default_factory=dict)
    """Tokens read from each place beyond the device."""
    recomputed: int = 0
    drafted: int = 0
    """Drafts that steps verified for it; `accepted`: how many of them became output."""
    accepted: int = 0
    extra_cost: float = 0.0
    """µs of its service beside its tokens: for its grammar."""
    _kv: int = 0
    _placed_max_kv: int = 0
    _placed_output: int = 0
    _placed_tokens: int = 0

    @property
    def kv(self) -> int:
        """How many tokens have KV in the table's blocks: while it decodes, all but the last."""
        return len(self.tokens) - 1 if self.slot >= 0 else self._kv

    @property
    def output(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.prompt

    @property
    def paused(self) -> bool:
        """Out of credit: the next token could not be sent."""
        return len(self.tokens) - self.prompt >= self.credit

    @property
    def spent(self) -> float:
        """µs of engine time that it got so far. Recomputation is not charged to the flow."""
        return self.extra_cost + self.rates.cost(self.computed, self.read_tokens, len(self.tokens) - self.prompt)

    def cost_ahead(self, tokens: int) -> float:
        """µs to charge so that `tokens` more output tokens are paid for: their cost, and service not charged yet."""
        output = self.tokens.flush() - self.prompt + tokens
        return self.extra_cost + self.rates.cost(self.computed, self.read_tokens, output) - self.charged

    @property
    def read_tokens(self) -> int:
        """Prompt tokens whose KV was found, in any tier."""
        return self.read_hbm + sum(self.reads.values())

    @property
    def to_compute(self) -> int:
        """Tokens that are still to be computed, if what is being restored comes."""
        return len(self.tokens) - self.kv - (0 if self.restore is None else self.restore.expected_tokens)

    @property
    def wanted_tokens(self) -> int:
        """Tokens that it wants computed now: those that no restore is to bring, by the latest plan."""
        return self.to_compute + (0 if self.restore is None else self.restore.computing * BLOCK_TOKENS)

    @property
    def fresh_output(self) -> int:
        """Output tokens sampled since the request last got its blocks."""
        return self.output - self._placed_output

    @property
    def has_recovered(self) -> bool:
        """Whether it has, since it last got its blocks, done work worth at least what its preemption cost."""
        if not self.debt_repaid:
            earned = self._earned_back()
            self.debt_repaid = earned > 0 and earned >= self.preemption_cost
        return self.debt_repaid

    @property
    def resume_cost(self) -> float:
        """Estimated cost in µs of preempting it now: published blocks stay cached, other tokens are recomputed."""
        kept = self.published * BLOCK_TOKENS if self.read else 0
        return max(0, self.kv - kept) * self.rates.uncached

    @property
    def tokens_to_recover(self) -> int:
        """Output tokens until `has_recovered`; 0 if it has."""
        if self.debt_repaid or self.has_recovered:
            return 0
        return max(1, math.ceil((self.preemption_cost - self._earned_back()) / self.rates.decoded))

    def _earned_back(self) -> float:
        prefilled = min(self.kv, self._placed_tokens) - self._placed_max_kv
        return self.rates.cost(max(0, prefilled), 0, self.fresh_output)

    def counts(self) -> Counts:
        """The physical counts so far (E2)."""
        return Counts(
            prompt=self.computed + self.read_tokens,
            computed=self.computed,
            output=self.output,
            recomputed=self.recomputed,
            drafted=self.drafted,
            accepted=self.accepted,
            read_hbm=self.read_hbm,
            **{f"read_{place}": tokens for place, tokens in self.reads.items()},
        )

    def expect_restored(self, first: int, end: int) -> None:
        """The blocks `first`..`end` lie in farther tiers: those that do not come from there are lost."""
        for index in range(first, end):
            if index * BLOCK_TOKENS >= self.max_kv:
                self.lost.setdefault(index, "late")

    def lose(self, causes: Mapping[bytes, LossCause | None]) -> set[bytes]:
        """Blocks of these keys do not come: why, or None if they are not kept any more. Returns the keys of its own
        among them."""
        own = {self.keys[index]: index for index in self.lost if self.keys[index] in causes}
        for key, index in own.items():
            if causes[key] is None and self.lost[index] == "late":
                del self.lost[index]
            elif causes[key] == "corrupted":
                self.lost[index] = "corrupted"
        return set(own)

    def losses(self) -> tuple[Lost, ...]:
        """What of the prompt was computed although it lay in a farther tier; to be asked when all of it has KV."""
        spans: list[Lost] = []
        for index in sorted(self.lost):
            start, cause = index * BLOCK_TOKENS, self.lost[index]
            end = min(start + BLOCK_TOKENS, self.prompt)
            if spans and (spans[-1].end, spans[-1].cause) == (start, cause):
                spans[-1] = Lost(spans[-1].start, end, cause)
            elif start < end and len(spans) < MOST_LOST:
                spans.append(Lost(start, end, cause))
            else:
                break
        return tuple(spans)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold this many tokens."""
        return -(-tokens // BLOCK_TOKENS)

    def extend_keys(self, blocks: int) -> list[bytes]:
        """The keys of at least the first `blocks` whole blocks of `tokens`; only new ones are hashed."""
        keys = self.keys
        if len(keys) < blocks:
            segments = [(until, scope) for until, scope, _ in self.segments]
            tokens = self.tokens[: blocks * BLOCK_TOKENS]
            keys += chain(self.root, segments, tokens, known=keys, fork=self.key_fork)[len(keys) :]
        return keys

    def block_key_and_scope(self, index: int) -> tuple[bytes, str]:
        """The key and scope id of the whole block `index` of `tokens`; the blocks before it must have keys."""
        keys, segments = self.keys, self.segments
        _, scope, id = segments[0] if len(segments) == 1 else self.segment_at(index * BLOCK_TOKENS)
        if index < len(keys):
            return keys[index], id
        parent = keys[-1] if index else self.root
        if self.key_fork is not None:
            parent = self.key_fork.parent(index, parent)
        key = block_key(scope, parent, self.tokens.block(index))
        keys.append(key)
        return key, id

    def input_key(self) -> bytes:
        """The prefix key of the prompt as it was sent. Quarantine knows a harmful input by it."""
        until, scope, _ = self.segments[-1]
        whole = until // BLOCK_TOKENS
        rest = self.tokens[whole * BLOCK_TOKENS : until]
        if self.input_root is None:
            root, keys = self.root, self.extend_keys(whole)
        else:
            root, scopes = self.input_root, [(end, scope) for end, scope, _ in self.segments]
            keys = chain(root, scopes, self.tokens[:until], fork=self.key_fork)
        parent = keys[whole - 1] if whole else root
        return prefix_key(scope, parent if self.key_fork is None else self.key_fork.parent(whole, parent), rest)

    def segment_at(self, block_start: int) -> tuple[int, bytes, str]:
        """The segment of the block that begins at this token: that of the block's last token."""
        segments = self.segments
        return next((segment for segment in segments if segment[0] >= block_start + BLOCK_TOKENS), segments[-1])

    def place(self, table: list[Block], found: int, tokens: int, copies: float = 0.0) -> None:
        """Start with these blocks.

        `found`: how many of them came out of the prefix index. `tokens`: how many first tokens have KV; those beyond
        `max_kv` count as read. `copies`: µs of copying from and to the swap space.
        """
        self.table = table
        self.blocks_laid = max(found, self.blocks_for(tokens))
        self.published = found
        self.preemption_cost = max(0, self.max_kv - tokens) * self.rates.uncached + copies
        self.read_hbm += max(0, min(tokens, self.prompt) - self.max_kv)
        if self.lost:  # but for what was computed, farther tiers are asked again
            self.lost = {
                index: cause
                for index, cause in self.lost.items()
                if index * BLOCK_TOKENS < self.max_kv or (cause == "corrupted" and index >= found)
            }
        self._kv = tokens
        self.max_kv = max(self.max_kv, tokens)
        self._placed_max_kv, self._placed_output, self._placed_tokens = self.max_kv, self.output, len(self.tokens)
        self.debt_repaid = False

    def restored(self, place: Place | None) -> None:
        """The next block's KV has come without being computed here: from a place beyond the device, or (None) from
        another request that computed it on the device meanwhile."""
        end = self._kv + BLOCK_TOKENS
        self.lost.pop(self._kv // BLOCK_TOKENS, None)
        read = max(0, min(end, self.prompt) - max(self._kv, self.max_kv))
        if place is None:
            self.read_hbm += read
        else:
            self.reads[place] = self.reads.get(place, 0) + read
        # What was not computed here earns nothing back.
        self._placed_max_kv += end - max(self._kv, self._placed_max_kv) if end > self._placed_max_kv else 0
        self._kv = end
        self.max_kv = max(self.max_kv, end)

    def count_computed(self, end: int) -> None:
        """Count the tokens `kv`..`end` as computed, or as recomputed where they had KV before."""
        again = min(end, self.max_kv)
        if again > self._kv:
            self.recomputed += again - self._kv
        fresh = max(self._kv, self.max_kv)
        self.computed += max(0, min(end, self.prompt) - fresh)
        self._kv = end
        self.max_kv = max(self.max_kv, end)

    def stop_decoding(self) -> None:
        """Leave the decode batch; the KV stays."""
        self._kv = len(self.tokens) - 1
        self.max_kv = max(self.max_kv, self._kv)
        self.slot = -1

    def release_blocks(self) -> None:
        """Forget the block table, whose blocks were freed."""
        self.table = []
        self.restore = None
        self.blocks_laid = 0
        self.published = 0
        self._kv = 0
