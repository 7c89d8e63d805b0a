"""What gateways must know of this replica's queue to route by: the prompt tokens that are to be computed, by lane, what
decodes, and which prefixes each gateway sent, for the others.

Gateways say how many tokens of each prompt they expect to be computed; what the engine then plans takes its place. A
prefix that several waiting requests share is counted once. Called in the event loop's thread.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.core.output_processor import Event
from engine.server.gateway_link import GatewayLink
from protocol.prefixes import PREFIX_ENDS, split_names
from protocol.replicas import Load, SentPrefix
from protocol.requests import LANES, Began, Done, Generate, Lane, Tokens

_KEPT = 512
"""Prefixes that a gateway is told when it connects, and at most at once."""


@dataclass(slots=True)
class _Queued:
    lane: Lane
    tokens: float
    names: list[bytes]
    rows: int
    began_at: float | None = None
    decodes: bool = False


class RoutingLoad:
    """`token_s`: seconds that a prompt token takes now; `changed`: called when gateways should be told."""

    def __init__(
        self, token_s: Callable[[], float], changed: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._token_s = token_s
        self._changed = changed
        self._clock = clock
        self._requests: dict[tuple[str, int], _Queued] = {}
        self._names: Counter[bytes] = Counter()
        """The prefixes of requests whose prompts are to be computed."""
        self._sent: deque[tuple[int, GatewayLink, SentPrefix]] = deque(maxlen=_KEPT)
        self._serial = 0

    def add(self, link: GatewayLink, message: Generate) -> None:
        """A gateway sent a request."""
        route = message.route
        names, tokens = [], len(message.tokens)
        if route is not None:
            names = split_names(route.names)
            shared = (end for name, end in reversed(list(zip(names, PREFIX_ENDS, strict=False))) if name in self._names)
            covered = next(shared, 0)
            tokens = max(1, min(route.expected, tokens - covered))
            self._serial += 1
            self._sent.append((self._serial, link, SentPrefix(route.names, route.leased, route.until)))
        self._names.update(names)
        self._requests[message.id, message.attempt] = _Queued(message.lane, tokens, names, message.choices)
        self._changed()

    def observe(self, events: Sequence[Event]) -> None:
        """What became of requests."""
        changed = False
        for event in events:
            queued = self._requests.get((event.id, event.attempt))
            if queued is None:
                continue
            if isinstance(event, Began):
                queued.tokens, queued.began_at = event.counts.computed, self._clock()
            elif isinstance(event, Tokens):
                if queued.decodes:
                    continue
                self._computed(queued)
                queued.decodes = True
            elif isinstance(event, Done):
                self._computed(queued)
                del self._requests[event.id, event.attempt]
            changed = True
        if changed:
            self._changed()

    def message_for(self, link: GatewayLink, since: int) -> tuple[Load, int]:
        """What to tell a gateway that was told up to the serial number `since`, and up to which it then was."""
        queued, decodes, token_s = dict.fromkeys(LANES, 0.0), 0, max(1e-9, self._token_s())
        for request in self._requests.values():
            if request.decodes:
                decodes += request.rows
                continue
            done = 0.0 if request.began_at is None else (self._clock() - request.began_at) / token_s
            queued[request.lane] += max(0.0, request.tokens - done)
        sent = tuple(
            prefix for serial, source, prefix in self._sent if serial > since and source.gateway != link.gateway
        )
        return Load({lane: int(tokens) for lane, tokens in queued.items()}, decodes, sent), self._serial

    def _computed(self, queued: _Queued) -> None:
        """Its prompt is computed, or is not going to be."""
        for name in queued.names:
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]
        queued.names, queued.tokens = [], 0
