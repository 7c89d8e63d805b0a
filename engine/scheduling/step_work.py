"""The work of one step: tokens of requests to compute, and KV blocks to copy and to clear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from engine.scheduling.request import Request
from prompt_cache.kv.grouped_pool import Block


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


class Step:
    """What one step does, in this order: copy blocks `out`, clear `fresh` ones, copy blocks `back`, do the `work`."""

    __slots__ = ("back", "began", "fresh", "out", "returns", "work")

    def __init__(self) -> None:
        self.out: list[tuple[Block, Block]] = []
        """(block on the device, block in host memory)"""
        self.back: list[tuple[Block, Block]] = []
        """(block in host memory, block on the device)"""
        self.returns: list[tuple[Request, int]] = []
        """For each pair of `back`: the request, and the index in its table."""
        self.work: Sequence[Work] = ()
        """Work of one token first. The same object as in the last step if the same requests decode and nothing else."""
        self.began: list[Request] = []
        """Requests that were admitted for the first time."""
        self.fresh: list[Block] = []
        """Blocks that were allocated and must be cleared."""
