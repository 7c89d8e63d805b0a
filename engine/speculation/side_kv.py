"""The side group: a drafter's own KV of the requests' tokens, beside the model's and never part of it.

A whole block is kept under the model's block key together with the drafter's digest. So it is found by whoever may find
the model's block (C1), and by nobody else. Where it is missing, only drafts are. The pool, the memory and the identity
are the drafter's own: finding a prefix, leases, holds and bills know nothing of it. It lives in memory alone.

Of a sequence the first `computed` tokens count: those that the request has, with the KV that they always get. Drafts
are written behind them, and overwritten if the request goes on otherwise.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch

from engine.kv_cache.memory import KvMemory
from engine.scheduling.request import Request
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.block_pool import OutOfBlocks
from prompt_cache.kv.grouped_pool import ABSENT, Block, GroupedPool
from protocol.replicas import LayerGroup


@dataclass(slots=True, eq=False)
class SideSequence:
    """A request's tokens in the drafter's blocks."""

    request: Request
    serial: int
    """No other sequence has it, nor had it."""
    first: int = 0
    """The first position with KV: none before is seen."""
    table: list[Block] = field(default_factory=list)
    revision: int = 0
    """Grows with each change of the table."""
    computed: int = 0
    """How many of the request's tokens have KV, from `first` on."""
    published: int = 0
    """How many of the table's first blocks are in the index, or were looked at and are not to be."""
    embeddable: int = 0
    """How many of the request's first tokens the drafter is known to embed; -1 where it has one that cannot be."""
    drafted: Sequence[int] = ()
    """Tokens whose KV lies behind the computed ones; what the request goes on with may differ."""

    @property
    def missing(self) -> int:
        """How many of the request's tokens have no KV yet."""
        return len(self.request.tokens) - self.computed


class SideKv:
    """The blocks of one drafter, `blocks` of each of its layer groups, and the sequences that are in them.

    `digest`: the drafter's. `like`: type and device. `tail`: elements that are kept beside each block, of its last
    token. `hole`: how many first positions never have KV. Groups with windows have all their blocks: a window is a
    mask, and frees none.
    """

    def __init__(
        self,
        digest: str,
        groups: Sequence[LayerGroup],
        blocks: int,
        like: torch.Tensor,
        *,
        tail: int = 0,
        hole: int = 0,
    ) -> None:
        self.hole = hole
        self.groups = tuple(groups)
        self._serials = count()
        self._identity = hashlib.sha256(b"turnpike/side-kv/v1" + digest.encode()).digest()
        self.pool = GroupedPool([(blocks, 0)] * len(groups), block_bytes=[group.block_bytes for group in groups])
        self.memories = [KvMemory(group, blocks, like) for group in groups]
        self.tails = like.new_zeros(blocks, tail) if tail else None
        self._sequences: OrderedDict[int, SideSequence] = OrderedDict()
        """arrival -> sequence, the one that drafted last at the end"""

    def key(self, block_key: bytes) -> bytes:
        """The side key of the model's block with this key."""
        return hashlib.sha256(self._identity + block_key).digest()

    # ------------------------------------------------------------ sequences

    def __len__(self) -> int:
        return len(self._sequences)

    def sequence(self, request: Request) -> SideSequence | None:
        """The request's sequence, which is now the latest used; None if it has none."""
        sequence = self._sequences.get(request.arrival)
        if sequence is not None:
            self._sequences.move_to_end(request.arrival)
        return sequence

    def begin(self, request: Request, first: int = 0) -> SideSequence:
        """A new sequence of the request, with what is known of its prefix. `first`: where it begins if that does not
        reach to the position before (where blocks have tails, or else to `first`), as nothing can be computed before.
        The blocks before stay without memory."""
        self.drop(request)
        sequence = SideSequence(request, next(self._serials))
        known = self.find(request)
        if known and len(known) * BLOCK_TOKENS >= first - (self.tails is not None):
            self.pool.share(known)
            sequence.table, sequence.published = known, len(known)
            sequence.computed = len(known) * BLOCK_TOKENS
            sequence.first = self.hole
        else:
            sequence.first = sequence.computed = first
            sequence.published = -(-first // BLOCK_TOKENS) if first > self.hole else 0
            sequence.table = [(ABSENT,) * len(self.groups)] * (first // BLOCK_TOKENS)
        sequence.embeddable = sequence.computed
        self._sequences[request.arrival] = sequence
        return sequence

    def find(self, request: Request) -> list[Block]:
        """The side blocks of the request's longest known prefix, without the block of its last token."""
        if not request.read:
            return []
        blocks = (len(request.tokens) - 1) // BLOCK_TOKENS
        return self.pool.find([self.key(key) for key in request.extend_keys(blocks)[:blocks]])

    def drop(self, request: Request) -> None:
        """Forget the request's sequence; what it published stays, as long as nobody needs the memory."""
        sequence = self._sequences.pop(request.arrival, None)
        if sequence is not None:
            self.pool.free(sequence.table)

    def clear(self) -> None:
        """Forget all sequences."""
        for sequence in list(self._sequences.values()):
            self.drop(sequence.request)

    def extend(self, sequence: SideSequence, tokens: int, using: Collection[int] = ()) -> bool:
        """Give the sequence blocks for the request's first `tokens` tokens; False if there is no memory for them.

        Published blocks that nobody has give way first, then the sequences that drafted longest ago, but for those of
        the requests `using` (arrivals).
        """
        missing = -(-tokens // BLOCK_TOKENS) - len(sequence.table)
        if missing <= 0:
            return True
        while self.pool.available < missing:
            oldest = next((arrival for arrival in self._sequences if arrival not in using), None)
            if oldest is None or oldest == sequence.request.arrival:
                return False
            self.drop(self._sequences[oldest].request)
        try:
            blocks = self.pool.allocate(missing)
        except OutOfBlocks:
            return False
        # What another request left there must not reach this one: 0 x NaN is NaN, also where a key is masked.
        for group, memory in enumerate(self.memories):
            memory.zero([block[group] for block in blocks])
        sequence.table += blocks
        sequence.revision += 1
        return True

    # ------------------------------------------------------------ what the drafter computed

    def verify(self, sequence: SideSequence) -> None:
        """Count as computed as many of the drafted tokens as the request has got. Its last token is left to compute:
        what follows it is wanted."""
        tokens = sequence.request.tokens
        end = min(sequence.computed, len(tokens) - 1)
        for draft in sequence.drafted:
            if end >= len(tokens) - 1 or tokens[end] != draft:
                break
            end += 1
        sequence.drafted = ()
        self.advance(sequence, end)

    def advance(self, sequence: SideSequence, computed: int) -> None:
        """The request's first `computed` tokens have KV: publish the blocks that they fill.

        Where blocks have tails, one is full when the token behind it is computed as well.
        """
        sequence.computed = computed
        full, request = (computed - (self.tails is not None)) // BLOCK_TOKENS, sequence.request
        if full <= sequence.published:
            return
        if request.store != "none":
            request.extend_keys(full)
            for index in range(sequence.published, full):
                key, scope = request.block_key_and_scope(index)
                before = sequence.table[index]
                self.pool.publish(sequence.table, index, self.key(key), scope)
                sequence.revision += sequence.table[index] != before
        sequence.published = full

    # ------------------------------------------------------------ tails

    def keep_tails(self, sequence: SideSequence, start: int, states: torch.Tensor) -> None:
        """Of the states of the positions from `start` on, keep those of the last tokens of blocks that are not
        published."""
        if self.tails is None:
            return
        first = max(start // BLOCK_TOKENS, sequence.published)
        for index in range(first, (start + len(states)) // BLOCK_TOKENS):
            self.tails[sequence.table[index][0]] = states[(index + 1) * BLOCK_TOKENS - 1 - start]

    def tail(self, sequence: SideSequence, position: int) -> torch.Tensor | None:
        """[1, tail] what was kept of the token before `position`; None where that is no published block's last."""
        index = position // BLOCK_TOKENS - 1
        if self.tails is None or position % BLOCK_TOKENS or not 0 <= index < sequence.published:
            return None
        if index * BLOCK_TOKENS < sequence.first != self.hole:
            return None
        number = sequence.table[index][0]
        return None if number == ABSENT else self.tails[number : number + 1]

    # ------------------------------------------------------------ isolation

    def forget(self, scope: str) -> None:
        """Make all side blocks of a scope unfindable (C5)."""
        self.pool.forget(scope)
