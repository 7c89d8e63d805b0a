"""The choices of one `Generate` (its `n` outputs), each a request of its own; only the first computes the prompt.

The others wait until the prompt's KV is in memory. Then each is queued as if it had been preempted there: it shares
the prompt's whole blocks through the index and computes what is in the last, partial block again. So the prompt is
counted once, what is computed again counts as `recomputed`, and the scheduler sees a choice as a request like any
other.

A request that goes on after an earlier attempt has counts as if it had run here from the start: they begin with what
that attempt counted, and whatever is computed here for the prompt and for what was emitted counts as `recomputed`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from engine.core.request_timeline import RequestTimeline
from engine.scheduling.request import Request
from protocol.requests import Counts, Generate, Reason


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
    trace_id: str | None = None
    """The trace that it belongs to, for logs."""
    earlier: Counts | None = None
    """What an earlier attempt counted, where this one goes on after it."""

    def __post_init__(self) -> None:
        self.first = self.children[0]
        """The choice that computes the prompt; it stands for the request while all wait for it."""
        self.waiting = self.children[1:]

    def go_on(self, generate: Generate) -> None:
        """Go on after what an earlier attempt had emitted; its choices may have ended with that."""
        emitted = generate.emitted
        self.earlier = msgspec.structs.replace(generate.counted, output=sum(map(len, emitted)))
        self.delivered = min(generate.delivered, self.earlier.output)
        for child in self.children:
            reason = _ended(child, generate)
            if reason is not None:
                self.ended[child.choice] = reason
        if running := self.open():
            self.first, *self.waiting = running

    @property
    def output(self) -> int:
        """Output tokens so far, of all choices together."""
        return sum(child.emitted + child.output for child in self.children)

    def counts(self) -> Counts:
        """What was done so far, for all choices together (E2)."""
        if len(self.children) == 1:
            counts = self.first.counts()
        else:
            several = [msgspec.structs.astuple(child.counts()) for child in self.children]
            counts = Counts(*map(sum, zip(*several, strict=True)))
        if self.earlier is None:
            return counts
        return msgspec.structs.replace(
            self.earlier,
            output=self.earlier.output + counts.output,
            recomputed=self.earlier.recomputed + counts.computed + counts.recomputed,
            drafted=self.earlier.drafted + counts.drafted,
            accepted=self.earlier.accepted + counts.accepted,
        )

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


def _ended(child: Request, generate: Generate) -> Reason | None:
    """Why this choice has ended with what was emitted; None if it goes on."""
    emitted = generate.emitted[child.choice]
    if child.choice in generate.stopped:
        return "abort"
    guide = None if child.row is None else child.row.guide
    if emitted and (guide.ended if guide is not None else emitted[-1] in generate.sampling.stop_tokens):
        return "stop"
    return None if child.max_output else "length"
