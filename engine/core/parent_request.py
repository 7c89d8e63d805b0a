"""The outputs of one `Generate`: a request for each choice, of which only the first computes the prompt.

The others wait until the prompt is in memory; then each is queued as if it had been preempted just there: it shares
the prompt's whole blocks through the index and computes what lies in the last, partial one again. So the prompt is
counted once, what is redone stands in `recomputed`, and a choice is a request like any other to the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from engine.scheduling.request import Request
from protocol.requests import Counts, Reason


@dataclass(eq=False)
class ParentRequest:
    """`members` by choice. `waiting`: those for which the first has yet to compute the prompt."""

    members: list[Request]
    delivered: int = 0
    """Output tokens that reached the client, of all choices."""
    private: bool = False
    """Whether its blocks are in the index for its own sake only."""
    claim: bytes = b""
    prompt_only: bool = False
    """The first was stopped before it had computed the prompt for the others: that is all that it does."""
    ended: dict[int, Reason] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.waiting = self.members[1:]

    @property
    def first(self) -> Request:
        """The one that computes the prompt: it stands for all while they are one."""
        return self.members[0]

    @property
    def output(self) -> int:
        """Tokens sampled so far, of all choices."""
        return sum(member.output for member in self.members)

    def counts(self) -> Counts:
        """What was done so far, of all choices together (E2)."""
        if len(self.members) == 1:
            return self.first.counts()
        each = [member.counts() for member in self.members]
        return Counts(*map(sum, zip(*map(msgspec.structs.astuple, each), strict=True)))

    def open(self) -> list[Request]:
        """The choices that have not ended."""
        return [member for member in self.members if member.choice not in self.ended]

    def released(self) -> list[Request]:
        """The prompt is computed: the others as they are to be queued."""
        released, self.waiting = self.waiting, []
        for member in released:
            member.seen = member.prompt
            member.began = True
            member.rates = self.first.rates
        return released

    @property
    def reason(self) -> Reason:
        """Why the whole ended, once every choice has."""
        reasons = set(self.ended.values())
        order: tuple[Reason, ...] = ("error", "deadline", "length", "stop")
        return next((reason for reason in order if reason in reasons), "abort")

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why each choice ended; nothing for a single one."""
        return tuple(self.ended[member.choice] for member in self.members) if len(self.members) > 1 else ()
