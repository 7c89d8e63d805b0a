"""Tells each replica how much service the others of its served model gave each flow, so that flows share all replicas.

A replica's totals only grow and name its epoch, so that it does no harm when several gateways send the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.fleet.replica_link import ReplicaLink
from protocol.replicas import Heartbeat, Hello, RemoteService

_SINCE = 2
"""The protocol version that knows `RemoteService`."""


class ServiceRelay:
    """Passes on the totals that changed with each beat; all totals to a link that has none of that replica yet."""

    def __init__(self) -> None:
        self._last: dict[ReplicaLink, Mapping[str, int]] = {}
        self._in_step: set[tuple[ReplicaLink, ReplicaLink]] = set()

    def beat(self, source: ReplicaLink, beat: Heartbeat, links: Iterable[ReplicaLink]) -> None:
        """Send the totals in this beat of `source` to those of `links` that serve the same model."""
        hello = source.hello
        if hello is None:
            return
        before = self._last.get(source, {})
        changed = {name: total for name, total in beat.service.items() if before.get(name) != total}
        self._last[source] = beat.service
        for link in links:
            if link is source or not link.up or link.hello is None or not _of_one_model(hello, link.hello):
                continue
            totals = changed if (source, link) in self._in_step else beat.service
            self._in_step.add((source, link))
            if totals:
                link.send(RemoteService(hello.replica, hello.epoch, totals))

    def closed(self, link: ReplicaLink) -> None:
        """Forget what a lost link sent and was sent: both begin anew."""
        self._last.pop(link, None)
        self._in_step = {pair for pair in self._in_step if link not in pair}


def _of_one_model(source: Hello, other: Hello) -> bool:
    return source.model.name == other.model.name and source.replica != other.replica and other.version >= _SINCE
