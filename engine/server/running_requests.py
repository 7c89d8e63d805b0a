"""Which requests a replica has, in which attempts, and whose they are: until the word of their end was heard."""

from __future__ import annotations

from engine.server.gateway_link import GatewayLink


class RunningRequests:
    """The gateway's link of each attempt. Of one request an earlier attempt may still be ending when the next begins.

    Changed in one thread; `owner` may be called in another.
    """

    def __init__(self) -> None:
        self._attempts: dict[str, dict[int, GatewayLink]] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def add(self, id: str, attempt: int, link: GatewayLink) -> None:
        """An attempt is, from now on, of this link."""
        self._attempts[id] = {**self._attempts.get(id, {}), attempt: link}

    def end(self, id: str, attempt: int) -> GatewayLink | None:
        """Forget an attempt; returns whose it was."""
        left = dict(self._attempts.get(id, {}))
        link = left.pop(attempt, None)
        if left:
            self._attempts[id] = left
        else:
            self._attempts.pop(id, None)
        return link

    def owner(self, id: str, attempt: int) -> GatewayLink | None:
        """Whose an attempt is; None if it has ended, or was never here."""
        return self._attempts.get(id, {}).get(attempt)

    def attempts(self, id: str) -> dict[int, GatewayLink]:
        """The attempts of a request, with their owners; not to be changed."""
        return self._attempts.get(id, {})

    def all(self) -> list[tuple[str, int]]:
        """All, by id and attempt."""
        return [(id, attempt) for id, attempts in self._attempts.items() for attempt in attempts]

    def of_link(self, link: GatewayLink) -> list[tuple[str, int]]:
        """Those of a link."""
        return [(id, attempt) for id, attempt in self.all() if self._attempts[id][attempt] is link]

    def of_epoch(self, epoch: str) -> list[tuple[str, int]]:
        """Those of a gateway epoch."""
        return [(id, attempt) for id, attempt in self.all() if self._attempts[id][attempt].epoch == epoch]
