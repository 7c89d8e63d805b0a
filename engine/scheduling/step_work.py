"""The work of one step: tokens of requests to compute, and KV blocks to copy and to clear; and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from engine.scheduling.request import Request
from engine.scheduling.tier import Transfer
from prompt_cache.kv.grouped_pool import Block
from protocol.requests import TokenLogprob

if TYPE_CHECKING:
    from engine.grammar.guide import Guide
    from engine.scheduling.restoring import Restore


@dataclass(slots=True)
class Prefill:
    """Compute the KV of `count` prompt tokens from `start`. `samples`: they reach the last token, so one is sampled."""

    request: Request
    start: int
    count: int
    samples: bool
    drafts: ClassVar[Sequence[int]] = ()

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens to compute."""
        return self.request.tokens[self.start : self.start + self.count]


class Decode:
    """Compute the KV of a request's last token, and of `drafts` that may follow it; sample behind each of these rows.

    `count` rows from `start` on: one where nothing is drafted. A draft is accepted if it is the token that was sampled
    in the row before it, so that a request gets the tokens of plain decoding. One object serves all steps that decode
    the request. `revision` grows whenever its block table or its number of rows may have changed.
    """

    __slots__ = ("count", "drafts", "request", "revision")

    samples: ClassVar[bool] = True

    def __init__(self, request: Request) -> None:
        self.request = request
        self.revision = 0
        self.count = 1
        self.drafts: Sequence[int] = ()

    @property
    def start(self) -> int:
        """The position of the first token to compute."""
        return len(self.request.tokens) - 1

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens to compute."""
        return (self.request.tokens.last, *self.drafts)

    def draft(self, tokens: Sequence[int]) -> None:
        """Let the next step verify these drafts; none of them: plain decoding."""
        self.drafts, self.count = tokens, 1 + len(tokens)
        self.revision += 1


Work: TypeAlias = Prefill | Decode


@dataclass(slots=True)
class StepPipeline:
    """What a runner that queues decode steps ahead and whoever drafts for them say to each other.

    `queues`: whether steps are ever queued before the tokens of the one before are known. `queued`: the next decode
    step is, so that it verifies no drafts. `held`: behind the step that runs now none is to be queued, since drafts
    for it may be verified. `most_rows`: of all decodes in a step that verifies drafts.
    """

    most_rows: int = 1 << 30
    queues: bool = False
    queued: bool = False
    held: bool = False


@dataclass(frozen=True, slots=True)
class Returned:
    """For whom a block is copied back: the request, the index in its table, and the block's key, if it has one.

    `restore` is the restore that brings it. None: the step's own work reads it, as that of a preempted request does.
    """

    request: Request
    index: int
    key: bytes
    restore: Restore | None


class Step:
    """What one step does, in this order: copy blocks `out`, clear `fresh` ones, copy blocks `back`, do the `work`.

    On a GPU copies go on beside the work, and beside later steps. They are done when `Scheduler.copied` is called.
    """

    __slots__ = ("ahead", "back", "began", "fresh", "out", "pins", "returns", "saves", "work")

    def __init__(self) -> None:
        self.ahead = 0
        """How many of `out` were written ahead: their places on the device are not needed yet."""
        self.out: list[tuple[Block, Block]] = []
        """(block on the device, block in host memory)"""
        self.back: list[tuple[Block, Block]] = []
        """(block in host memory, block on the device)"""
        self.returns: list[Returned] = []
        """For each pair of `back`: for whom."""
        self.pins: list[Block] = []
        """Blocks of host memory with one more reference until the copies are done."""
        self.saves: list[Transfer] = []
        """What is to be written to the tiers once the copies are done."""
        self.work: Sequence[Work] = ()
        """Decodes first, then prefills of one token. The same object as in the last step if the same requests decode
        and nothing else."""
        self.began: list[Request] = []
        """Requests that were admitted for the first time."""
        self.fresh: list[Block] = []
        """Blocks that were allocated and must be cleared."""

    @property
    def copies(self) -> bool:
        """Whether something waits for copies of this step, or of those before."""
        return bool(self.out or self.back or self.pins or self.saves)

    @property
    def needs_copies(self) -> bool:
        """Whether its work reads what it copies back."""
        return any(returned.restore is None for returned in self.returns)


class NotFinite(Exception):
    """The model computed NaN or infinity for this request."""


class DeviceFailed(Exception):
    """The device computes nothing more for this process, whatever it is asked."""


@dataclass(slots=True)
class WorkOutcome:
    """What became of a work: the tokens that it sampled, or why it failed.

    `accepted` are its drafts that were sampled, `token` the one behind them; None if it does not sample. `logprobs`: of
    each of these, if they are asked for. `scored` are log probabilities of prompt tokens, from the work's second token
    on. `put_off`: the work's last token is to be computed again in a later step. `grammar_s`: CPU seconds that the
    request's grammar took. `guide`: a copy of the request's that has accepted these tokens, where drafts were accepted.
    """

    token: int | None = None
    error: Exception | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    accepted: Sequence[int] = ()
    scored: tuple[TokenLogprob, ...] = ()
    put_off: bool = False
    grammar_s: float = 0.0
    guide: Guide | None = None
