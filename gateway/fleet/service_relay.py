"""What flows got from each replica, told to the others of its served model, so that a flow has one share in all.

A replica's totals only grow and say their epoch, so that it does no harm when several gateways tell the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.fleet.replica_link import ReplicaLink
from protocol.replicas import Beat, Elsewhere, Hello

_SINCE = 2
"""The protocol version that knows `Elsewhere`."""


class ServiceRelay:
    """Passes on what is new with each beat; all that was said, to a link that has heard nothing of that replica."""

    def __init__(self) -> None:
        self._last: dict[ReplicaLink, Mapping[str, int]] = {}
        self._in_step: set[tuple[ReplicaLink, ReplicaLink]] = set()

    def beat(self, source: ReplicaLink, beat: Beat, links: Iterable[ReplicaLink]) -> None:
        """`source` beats; its totals go to those of `links` that serve the same model."""
        hello = source.hello
        if hello is None:
            return
        before = self._last.get(source, {})
        changed = {name: total for name, total in beat.service.items() if before.get(name) != total}
        self._last[source] = beat.service
        for link in links:
            if link is source or not link.up or link.hello is None or not _of_one_model(hello, link.hello):
                continue
            says = changed if (source, link) in self._in_step else beat.service
            self._in_step.add((source, link))
            if says:
                link.send(Elsewhere(hello.replica, hello.epoch, says))

    def closed(self, link: ReplicaLink) -> None:
        """The link is lost: what it says, and what it hears, begins anew."""
        self._last.pop(link, None)
        self._in_step = {pair for pair in self._in_step if link not in pair}


def _of_one_model(source: Hello, other: Hello) -> bool:
    return source.model.name == other.model.name and source.replica != other.replica and other.version >= _SINCE
