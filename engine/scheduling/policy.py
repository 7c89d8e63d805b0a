"""The interface of a scheduling policy: order of admission and prefill, preemption.

A replica has `fairness.fair_share`; the policies that it is measured against are in `benchmarks/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from engine.scheduling.request import Request

Matched: TypeAlias = Callable[[Request], int]
"""request -> how many of its tokens have cached KV."""


@dataclass(frozen=True)
class Capacity:
    """What a replica has for running requests: slots, and KV blocks."""

    slots: int
    blocks: int


Claim: TypeAlias = tuple[Request, Iterable[Request]]
"""A waiting request, and the running requests that may be preempted for it, in this order, until it fits."""


class Policy(Protocol):
    """Holds the queue and decides who is next. Methods named by a participle report what the scheduler has done."""

    protects_awaited_blocks: bool
    """Whether cached blocks that waiting requests will read are evicted after all others."""

    def begin_step(self, now: float) -> bool:
        """A step begins at `now`, in seconds since the Unix epoch. True if `peek` may return another request now."""

    def push(self, request: Request) -> None:
        """Queue a request. A preempted one comes again, with its old `arrival`."""

    def peek(self, matched: Matched, last: bool = False) -> Request | None:
        """The request to admit next; None if the queue is empty. `last`: it would take the last slot."""

    def admitted(self, request: Request) -> None:
        """The request that `peek` returned was admitted: take it out of the queue."""

    def remove(self, request: Request) -> None:
        """Take a waiting request that has ended out of the queue."""

    def __len__(self) -> int:
        """How many wait."""

    def waiting(self) -> Iterable[Request]:
        """All waiting requests, in no particular order."""

    def placed(self, request: Request) -> None:
        """An admitted request got its blocks; its counts include the tokens that it read."""

    def restored(self, request: Request) -> None:
        """Blocks of a prefilling request came from a farther tier; its counts include their tokens."""

    def grown(self, requests: Iterable[Request]) -> None:
        """Each of these running requests got one more block to decode into."""

    def charge_extra(self, request: Request, cost: float) -> None:
        """A running request took `cost` µs of a step for itself, beside what its tokens cost."""

    def released(self, request: Request) -> None:
        """A running request is about to give its blocks back: it ended, or is preempted."""

    def next_prefill(self, pending: Sequence[Request]) -> Request | None:
        """The request whose chunk goes into the step next; None ends the step's prefill.

        `pending`: at least one request, in order of placement. The first call of a step never returns None.
        """

    def prefilled(self, request: Request, tokens: int) -> None:
        """A chunk of `tokens` tokens of the request went into the step."""

    def victim(self, candidates: Iterable[Request]) -> Request | None:
        """The candidate to preempt first; None if there are none."""

    def prefills_before(self, request: Request, left: int, pending: Sequence[Request]) -> Iterable[Request]:
        """The requests of `pending` (in order of placement) whose prefill would precede that of `request`, were it
        admitted now with `left` tokens to compute."""

    def outranks(self, request: Request, other: Request) -> bool:
        """Whether the waiting request may preempt `other`, a running request that has recovered."""

    @property
    def claims_due(self) -> bool:
        """Whether `claims` may return any now."""

    def claims(self, capacity: Capacity) -> Iterable[Claim]:
        """Waiting requests whose flows hold less than their share of slots and memory, the most urgent first.

        Only requests that have recovered are named as victims.
        """

    def displaced(self, request: Request, victims: Sequence[Request]) -> None:
        """A claim is carried out: the victims are about to be preempted for the request."""
