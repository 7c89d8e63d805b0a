"""What one step does: tokens of requests to compute, and blocks to prepare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from engine.scheduling.request import Request
from prompt_cache.kv.grouped_pool import Block


@dataclass(slots=True)
class Prefill:
    """Compute the KV of `count` tokens of a request from `start`; `samples` when they reach its last token."""

    request: Request
    start: int
    count: int
    samples: bool

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens to compute."""
        return self.request.tokens[self.start : self.start + self.count]


class Decode:
    """Compute the KV of a request's last token and sample the next; the same object in each step that decodes it.

    `revision` grows whenever the request's blocks may have changed.
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
    """What one step does, in this order: copy blocks out, clear fresh ones, copy blocks back, work.

    Work of one token comes first.
    """

    __slots__ = ("back", "began", "fresh", "out", "work")

    def __init__(self) -> None:
        self.out: list[tuple[Block, Block]] = []
        """(on the device, in the swap space)"""
        self.back: list[tuple[Block, Block]] = []
        """(in the swap space, on the device)"""
        self.work: Sequence[Work] = ()
        """The same object as in the step before while all that decode decode on, and nothing else is done."""
        self.began: list[Request] = []
        self.fresh: list[Block] = []
