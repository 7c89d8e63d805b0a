"""The life of one request: its phases, the events that move it on, and the outcome that they come to.

    reserving ──sent──▶ running ──answered──▶ delivering ──delivered──▶ recording ──recorded──▶ ended
                        │  ▲  │                 ▲   ▲
             will_retry │  │  │ stop_string     │   │
                        ▼  │  │ client_left     │   │
               retrying ───┘  │ reader_failed   │   │
               │  (sent)      │ interrupted     │   │
               │              │ timed_out       │   │
    no_replica │              ▼ money_ended     │   │
               │          stopping ──answered───┘   │
               │              │ replica_lost        │
               └──────────▶ lost ─────answered──────┘

`TRANSITIONS` is the whole table. `stopping` waits for the replica's answer to an abort. `lost` waits for the only one
that knows what was done: a lost replica's journal, or a database that did not answer `reserve`. `failed` ends any
phase.

A request gets an outcome with the first event that carries one. A later event may replace it by a graver one
(`OVERRIDES`), until it is recorded. Only a request without an outcome is sent to a replica.

Another way to end is another event or row here, not a flag. Cancelling by API is an event like `client_left`. A
background run, and a reader that may come back, do not report `client_left`. A background run that cannot go on reports
`reader_failed`: that is our fault. Going on at another replica is `will_retry`, whether tokens have come or not. How
one of several choices ended, `Choices` knows, and `Attempts` whether another attempt may follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from billing.usage import Status
from gateway.errors import GatewayError

Phase = Literal["reserving", "running", "stopping", "retrying", "lost", "delivering", "recording", "ended"]
Event = Literal[
    "sent", "stop_string", "money_ended", "client_left", "interrupted", "timed_out", "will_retry", "replica_lost",
    "no_replica", "hold_unknown", "answered", "input_refused", "delivered", "recorded", "failed", "reader_failed",
]  # fmt: skip

_ACTIVE: Mapping[Phase, Phase] = {"running": "stopping", "stopping": "stopping"}
_ANSWERED: Mapping[Phase, Phase] = dict.fromkeys(("running", "stopping", "retrying", "lost"), "delivering")
_BEFORE_END: tuple[Phase, ...] = ("reserving", "running", "stopping", "retrying", "lost", "delivering", "recording")
_UNREAD: Mapping[Phase, Phase] = {phase: _ACTIVE.get(phase, phase) for phase in _BEFORE_END if phase != "recording"}

TRANSITIONS: Mapping[Event, Mapping[Phase, Phase]] = {
    "sent": {"reserving": "running", "retrying": "running"},
    "stop_string": {"running": "stopping"},
    "money_ended": {"running": "stopping"},
    "client_left": _UNREAD,
    "reader_failed": _UNREAD,
    "interrupted": {**_ACTIVE, "reserving": "reserving", "retrying": "retrying"},
    "timed_out": {**_ACTIVE, "lost": "lost"},
    "will_retry": {"running": "retrying"},
    "replica_lost": {"running": "lost", "stopping": "lost", "lost": "lost"},
    "no_replica": {"retrying": "lost"},
    "hold_unknown": {"reserving": "lost"},
    "answered": _ANSWERED,
    "input_refused": _ANSWERED,
    "delivered": {"delivering": "recording"},
    "recorded": {"recording": "ended"},
    "failed": dict.fromkeys(_BEFORE_END, "ended"),
}
"""For each event, the phases in which it may come and the phase that follows."""

OVERRIDES: Mapping[Event, tuple[Status, ...]] = {
    "client_left": ("ok",),
    "reader_failed": ("ok",),
    "interrupted": ("ok", "cancelled"),
    "timed_out": ("ok",),
    "no_replica": ("cancelled",),
    "input_refused": ("ok", "cancelled", "failed"),
    "failed": ("ok",),
}
"""The earlier outcomes that an event's outcome takes the place of. Any event's outcome is taken where there is none."""

_AT_ANY_TIME: tuple[Event, ...] = ("client_left", "reader_failed", "interrupted")
"""Come from outside: ignored in a phase that the table does not name."""


class Outcome(Struct, frozen=True):
    """How a request ended. `reason`: the replica's, "lost" if it never said one; "" until it is known.

    `failure` is what the client is told, None after a good end or when nobody is there to be told.
    """

    status: Status
    reason: str
    failure: GatewayError | None = None


def failed(failure: GatewayError, reason: str = "") -> Outcome:
    """The outcome of a request that ends with this error."""
    return Outcome("failed", reason, failure)


class InvalidTransition(Exception):
    """This event cannot come in this phase: a defect of ours."""


class RequestState:
    """The phase of one request, and its outcome as far as it is decided."""

    def __init__(self) -> None:
        self.phase: Phase = "reserving"
        self.outcome: Outcome | None = None

    def move(self, event: Event, outcome: Outcome | None = None) -> bool:
        """Go where this event leads, and take its outcome if that counts. True if the phase is another one now.

        Raises InvalidTransition.
        """
        phase = TRANSITIONS[event].get(self.phase)
        if phase is None and event in _AT_ANY_TIME:
            return False
        if phase is None or (phase == "running" and self.outcome is not None):
            raise InvalidTransition(f"{event} while {self.phase}, {self.outcome}")
        if outcome is not None:
            self._take(event, outcome)
        before, self.phase = self.phase, phase
        return phase != before

    def _take(self, event: Event, outcome: Outcome) -> None:
        earlier = self.outcome
        if earlier is None:
            self.outcome = outcome
        elif earlier.status not in OVERRIDES.get(event, ()):
            self.outcome = replace(earlier, reason=earlier.reason or outcome.reason)
        elif outcome.status == "cancelled":
            self.outcome = replace(earlier, status="cancelled")  # it leaves an answer whose reason stands
        else:
            self.outcome = outcome
