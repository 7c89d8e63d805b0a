"""What one step does: tokens of requests to compute, and blocks to prepare."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from engine.scheduling.request import Request
from prompt_cache.block_groups import Block


@dataclass(slots=True)
class Prefill:
    """Compute the KV of `count` tokens of a request from `start`; `samples` when they reach its last token."""

    request: Request
    start: int
    count: int
    samples: bool


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


Work: TypeAlias = Prefill | Decode


@dataclass
class Step:
    """What one step does, in this order: copy blocks out, clear fresh ones, copy blocks back, work.

    Work of one token comes first.
    """

    out: list[tuple[Block, Block]] = field(default_factory=list)
    """(on the device, in the swap space)"""
    back: list[tuple[Block, Block]] = field(default_factory=list)
    """(in the swap space, on the device)"""
    work: list[Work] = field(default_factory=list)
    began: list[Request] = field(default_factory=list)
    fresh: list[Block] = field(default_factory=list)
