"""The choices of one `Generate` (its `n` outputs), each a request of its own; only the first computes the prompt.

The others wait until the prompt's KV is in memory. Then each is queued as if it had been preempted there: it shares
the prompt's whole blocks through the index and computes what is in the last, partial block again. So the prompt is
counted once, what is computed again counts as `recomputed`, and the scheduler sees a choice as a request like any
other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from engine.core.request_timeline import RequestTimeline
from engine.scheduling.request import Request
from protocol.requests import Counts, Reason


@dataclass(eq=False)
class ParentRequest:
    """A request of a gateway. `children` are its choices, by number; `waiting` those that wait for the first to
    compute the prompt."""

    children: list[Request]
    delivered: int = 0
    """Output tokens that reached the client, of all choices together."""
    private: bool = False
    """Whether its blocks are in the index only for its own choices (`store` is `none`)."""
    claim: bytes = b""
    prompt_only: bool = False
    """Whether the first choice was stopped before it had computed the prompt: then that is all that it still does."""
    told_prompt: bool = False
    """Whether its gateway was told what became of the prompt: with the first token."""
    ended: dict[int, Reason] = field(default_factory=dict)
    """Choice -> why it ended."""
    timeline: RequestTimeline = field(default_factory=RequestTimeline)

    def __post_init__(self) -> None:
        self.waiting = self.children[1:]

    @property
    def first(self) -> Request:
        """The choice that computes the prompt; it stands for the request while all wait for it."""
        return self.children[0]

    @property
    def output(self) -> int:
        """Tokens sampled so far, of all choices together."""
        return sum(child.output for child in self.children)

    def counts(self) -> Counts:
        """What was done so far, for all choices together (E2)."""
        if len(self.children) == 1:
            return self.first.counts()
        counts = [msgspec.structs.astuple(child.counts()) for child in self.children]
        return Counts(*map(sum, zip(*counts, strict=True)))

    def open(self) -> list[Request]:
        """The choices that have not ended."""
        return [child for child in self.children if child.choice not in self.ended]

    def release_waiting(self) -> list[Request]:
        """The waiting choices, made ready to be queued; to be called when the prompt is computed."""
        released, self.waiting = self.waiting, []
        for child in released:
            child.max_kv = child.prompt
            child.began = True
            child.rates = self.first.rates
        return released

    @property
    def reason(self) -> Reason:
        """Why the request ended, once every choice has: the gravest reason of its choices."""
        reasons = set(self.ended.values())
        gravest_first: tuple[Reason, ...] = ("error", "deadline", "length", "stop")
        return next((reason for reason in gravest_first if reason in reasons), "abort")

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why each choice ended; empty if there is one only."""
        return tuple(self.ended[child.choice] for child in self.children) if len(self.children) > 1 else ()
