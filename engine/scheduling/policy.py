"""Who is admitted next, whose prefill comes first, and who gives way: what a policy decides for the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from engine.scheduling.lazy_heap import LazyHeap
from engine.scheduling.request import Request

Matched = Callable[[Request], int]
"""How many tokens of a request are in memory already."""


@dataclass(frozen=True)
class Capacity:
    """What a replica has for its running requests: slots, and blocks of memory."""

    slots: int
    blocks: int


Claim: TypeAlias = tuple[Request, Iterable[Request]]
"""A waiting request, and the running ones that may be preempted for it, in this order, until it fits."""


class Policy(Protocol):
    """The order of the queue. A preempted request is pushed again and keeps its place by its arrival."""

    protects_awaited_blocks: bool
    """Whether cached blocks that those who wait will look for are evicted after all others."""

    def at(self, now: float) -> bool:
        """A step begins at `now`, in seconds since the Unix epoch. True if that may change what `peek` shows."""

    def push(self, request: Request) -> None:
        """Put a request into the queue."""

    def peek(self, matched: Matched, last: bool = False) -> Request | None:
        """The request to admit next; None when nobody waits. `last`: it would take the last slot."""

    def take(self, request: Request) -> None:
        """Take the request that `peek` showed: it is admitted."""

    def remove(self, request: Request) -> None:
        """Take a waiting request out: it has ended."""

    def __len__(self) -> int:
        """How many wait."""

    def waiting(self) -> Iterable[Request]:
        """All waiting requests, in no particular order."""

    def placed(self, request: Request) -> None:
        """An admitted request has its blocks, and its counts say what was read."""

    def grown(self, requests: Iterable[Request]) -> None:
        """Each of these running requests gets another block to decode into."""

    def worked(self, request: Request, cost: float) -> None:
        """So many µs of a step were a running request's alone, beside what its tokens cost."""

    def released(self, request: Request) -> None:
        """A running request gave its blocks back: it ended, or was preempted."""

    def prefill(self, pending: Sequence[Request]) -> Request | None:
        """Whose chunk goes into the step next, of these in the order of their placing; None if the step is long enough.

        Never called with none; and the first in a step is never None.
        """

    def prefilled(self, request: Request, tokens: int) -> None:
        """So many of its tokens went into the step."""

    def victim(self, candidates: Iterable[Request]) -> Request | None:
        """Who of these gives its memory back first; None if there are none."""

    def before(self, request: Request, left: int, pending: Sequence[Request]) -> Iterable[Request]:
        """Whose prefills, of these in the order of their placing, would come before the `left` tokens to compute of a
        request that is admitted now."""

    def outranks(self, request: Request, other: Request) -> bool:
        """Whether a waiting request may take the slot and the memory of a running one that has recovered."""

    @property
    def claims_due(self) -> bool:
        """Whether `claims` may name any now."""

    def claims(self, capacity: Capacity) -> Iterable[Claim]:
        """Waiting requests whose flows hold less than their part of slots and memory, the first one first.

        Only requests that have recovered are named to be preempted.
        """

    def displaced(self, request: Request, victims: Sequence[Request]) -> None:
        """The running requests are preempted now for the waiting one, as `claims` named them."""


class FirstComeFirstServed:
    """By arrival; the youngest gives way first, and before all others one that is out of credit anyway."""

    protects_awaited_blocks = False

    def __init__(self) -> None:
        self._waiting: dict[int, Request] = {}
        self._order: LazyHeap[tuple[int, Request]] = LazyHeap(lambda entry: self._waiting.get(entry[0]) is entry[1])

    def at(self, now: float) -> bool:
        return False

    def push(self, request: Request) -> None:
        self._waiting[request.arrival] = request
        self._order.push((request.arrival, request))

    def peek(self, matched: Matched, last: bool = False) -> Request | None:
        first = self._order.first()
        return None if first is None else first[1]

    def take(self, request: Request) -> None:
        del self._waiting[request.arrival]

    def remove(self, request: Request) -> None:
        del self._waiting[request.arrival]

    def __len__(self) -> int:
        return len(self._waiting)

    def waiting(self) -> Iterable[Request]:
        return self._waiting.values()

    def placed(self, request: Request) -> None:
        """Nobody is charged."""

    def grown(self, requests: Iterable[Request]) -> None:
        """Nobody is charged."""

    def worked(self, request: Request, cost: float) -> None:
        """Nobody is charged."""

    def released(self, request: Request) -> None:
        """Nobody is charged."""

    def prefill(self, pending: Sequence[Request]) -> Request:
        return pending[0]

    def prefilled(self, request: Request, tokens: int) -> None:
        """Nobody is charged."""

    def victim(self, candidates: Iterable[Request]) -> Request | None:
        return max(candidates, key=lambda request: (request.paused, request.arrival), default=None)

    def before(self, request: Request, left: int, pending: Sequence[Request]) -> Iterable[Request]:
        return pending

    def outranks(self, request: Request, other: Request) -> bool:
        return False

    @property
    def claims_due(self) -> bool:
        return False

    def claims(self, capacity: Capacity) -> Iterable[Claim]:
        return ()

    def displaced(self, request: Request, victims: Sequence[Request]) -> None:
        """Nobody claims anything."""
