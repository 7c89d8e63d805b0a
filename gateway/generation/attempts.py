"""The attempts of one request at replicas: whether another may follow one that came to nothing, and how it goes on.

The next attempt goes on after all tokens that have come, shown or not: the gateway keeps the text, the calls and the
stop strings that they made, and the replica the state of its sampler. So a client sees a pause. The last attempt is the
request's; those before it are billed to nobody, and their journals may be acknowledged once the next one's journal has
the request, since that has what they had.

A request may be why its replica died. It goes on after the first death, and after a second one it ends: so it ends two
replicas at most. `gateway.fleet.fleet` keeps one that is suspected to the replica that it was on.
"""

from __future__ import annotations

from msgspec.structs import replace

from billing.holds.records import Hold
from gateway.fleet.replica_stream import ReplicaStream
from gateway.generation.choices import Choices
from gateway.generation.outcome import ChoiceEnd, Undone, left_undone
from gateway.recovery.lost_attempts import LostAttempts
from protocol.requests import Began, Counts, Done, Generate

MOST_ATTEMPTS = 4
MOST_LOSSES = 2
"""Of these attempts, those that end with the loss of a replica."""


class Attempts:
    """Those of one request. `number`: of the current one, from `first` on."""

    def __init__(self, lost_attempts: LostAttempts, first: int = 1) -> None:
        self.number = first
        self._last = first + MOST_ATTEMPTS - 1
        self._lost_attempts = lost_attempts
        self._losses = 0
        self._over: list[tuple[ReplicaStream, Done | None]] = []
        """Those that came to nothing, until they are watched."""

    def may_follow(self, stream: ReplicaStream, done: Done | None, ends: list[ChoiceEnd]) -> Undone | None:
        """Why this attempt came to nothing, if another may follow it; else None."""
        undone = left_undone(done, ends, linked=stream.link is not None)
        self._losses += undone == "lost"
        return undone if self.number < self._last and self._losses < MOST_LOSSES else None

    def begin_next(self, before: ReplicaStream, done: Done | None) -> None:
        """Another attempt follows this one."""
        self.number += 1
        self._over.append((before, done))

    def watch(self, hold: Hold) -> None:
        """Let those that came to nothing be recorded: the current one is in a journal, or over."""
        for stream, done in self._over:
            self._lost_attempts.watch(stream, hold, done)
        self._over.clear()

    def leave(self) -> list[ReplicaStream]:
        """Leave those that are not watched yet to whoever hears of them next; returns them."""
        left, self._over = [stream for stream, _ in self._over], []
        return left


def continued(message: Generate, choices: Choices, began: Began | None, delivered: int) -> Generate:
    """The message of an attempt that goes on after what has come, of which `delivered` tokens reached the client."""
    return replace(
        message,
        sampling=replace(message.sampling, prompt_logprobs=None),  # they came before the first token
        emitted=choices.emitted,
        stopped=tuple(choice for choice, end in enumerate(choices.ends) if end is not None),
        counted=Counts() if began is None else began.counts,
        delivered=delivered,
    )
