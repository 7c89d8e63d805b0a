"""Which requests a replica runs, in which attempts, and on which gateway links: until their end was delivered."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.output_processor import Event
from engine.server.done_outbox import DoneOutbox
from engine.server.gateway_link import GatewayLink
from protocol.requests import Done


class RunningRequests:
    """The link of each attempt. An earlier attempt of a request may still be ending when the next begins.

    One thread makes changes; `owner` and `epoch_of` may be called in another.
    """

    def __init__(self) -> None:
        self._attempts: dict[str, dict[int, GatewayLink]] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def add(self, id: str, attempt: int, link: GatewayLink) -> None:
        """From now on an attempt is of this link."""
        self._attempts[id] = {**self._attempts.get(id, {}), attempt: link}

    def end(self, id: str, attempt: int) -> GatewayLink | None:
        """Forget an attempt; returns its link."""
        left = dict(self._attempts.get(id, {}))
        link = left.pop(attempt, None)
        if left:
            self._attempts[id] = left
        else:
            self._attempts.pop(id, None)
        return link

    def owner(self, id: str, attempt: int) -> GatewayLink | None:
        """The link of an attempt; None if its end was delivered, or it never ran here."""
        return self._attempts.get(id, {}).get(attempt)

    def epoch_of(self, id: str, attempt: int) -> str:
        """The gateway epoch that an attempt is of; empty if its end was delivered."""
        owner = self.owner(id, attempt)
        return owner.epoch if owner is not None else ""

    def attempts(self, id: str) -> dict[int, GatewayLink]:
        """The attempts of a request, with their links; not to be changed."""
        return self._attempts.get(id, {})

    def all(self) -> list[tuple[str, int]]:
        """(id, attempt) of all."""
        return [(id, attempt) for id, attempts in self._attempts.items() for attempt in attempts]

    def of_link(self, link: GatewayLink) -> list[tuple[str, int]]:
        """(id, attempt) of those of a link."""
        return [(id, attempt) for id, attempt in self.all() if self._attempts[id][attempt] is link]

    def of_epoch(self, epoch: str) -> list[tuple[str, int]]:
        """(id, attempt) of those of a gateway epoch."""
        return [(id, attempt) for id, attempt in self.all() if self._attempts[id][attempt].epoch == epoch]

    def deliver(self, events: Sequence[Event], outbox: DoneOutbox) -> None:
        """Send events, in order, to the links of their attempts; a `Done` that is journaled goes to the outbox."""
        outgoing: dict[GatewayLink, list[Event]] = {}
        for event in events:
            ended = isinstance(event, Done)
            link = self.end(event.id, event.attempt) if ended else self.owner(event.id, event.attempt)
            if isinstance(event, Done) and event.sequence:
                outbox.add(event, link)
            elif link is not None:
                outgoing.setdefault(link, []).append(event)
        for link, messages in outgoing.items():
            link.send(messages)
