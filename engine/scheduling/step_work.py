"""The work of one step: tokens of requests to compute, and KV blocks to copy and to clear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from engine.scheduling.request import Request
from engine.scheduling.tier import Transfer
from prompt_cache.kv.grouped_pool import Block

if TYPE_CHECKING:
    from engine.scheduling.restoring import Restore


@dataclass(slots=True)
class Prefill:
    """Compute the KV of `count` prompt tokens from `start`. `samples`: they reach the last token, so one is sampled."""

    request: Request
    start: int
    count: int
    samples: bool

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens to compute."""
        return self.request.tokens[self.start : self.start + self.count]


class Decode:
    """Compute the KV of a request's last token and sample the next. One object serves all steps that decode it.

    `revision` grows whenever the request's block table may have changed.
    """

    __slots__ = ("request", "revision")

    count: ClassVar[int] = 1
    samples: ClassVar[bool] = True

    def __init__(self, request: Request) -> None:
        self.request = request
        self.revision = 0

    @property
    def start(self) -> int:
        """The position of the token to compute."""
        return len(self.request.tokens) - 1

    @property
    def tokens(self) -> Sequence[int]:
        """The token to compute."""
        return (self.request.tokens.last,)


Work: TypeAlias = Prefill | Decode


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
        """Work of one token first. The same object as in the last step if the same requests decode and nothing else."""
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
