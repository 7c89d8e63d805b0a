"""Finds replicas by DNS: looks names up again and again, and lets the fleet dial what comes and drop what went.

DNS says where to dial, and a replica's `Hello` who it is. So a link whose address left its name gets no new request and
stays open as long as the replica keeps it: requests run to their end there, and usage is acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from gateway.fleet.replica_link import ReplicaLink
from protocol.addresses import Address, parse_address
from protocol.service_names import Resolve, ServiceName, replica_addresses

log = structlog.get_logger("gateway.fleet")

MOST_REPLICAS = 256
"""Addresses of one name that are dialed."""


class ReplicaDiscovery:
    """Keeps `links` at the addresses of `names`; those that are there at the start stay whatever DNS says.

    `dial` adds a link to `links`, and `drop` removes one. `interval`: seconds between two lookups of a name. A link
    whose address left is dropped when it ends, or when nothing was heard of its replica for `silence` seconds.
    """

    def __init__(
        self,
        names: Sequence[ServiceName],
        links: Sequence[ReplicaLink],
        *,
        dial: Callable[[Address], None],
        drop: Callable[[ReplicaLink], None],
        resolve: Resolve,
        interval: float,
        silence: float,
    ) -> None:
        self._names = names
        self._links = links
        self._fixed = {link.address.text for link in links}
        self._dial = dial
        self._drop = drop
        self._resolve = resolve
        self._interval = interval
        self._silence = silence
        self._answers: dict[str, set[str]] = {name.text: set() for name in names}
        """name -> addresses of the last answer that had any."""
        self._problems: dict[str, str] = {}

    async def run(self) -> None:
        """Look up for ever, each name by itself: one that hangs holds up no other."""
        await asyncio.gather(*(self._watch(name) for name in self._names))

    async def _watch(self, name: ServiceName) -> None:
        while True:
            try:
                await self._look_up(name)
                self._adjust_links()
            except Exception:  # this must not end: replicas would come and go unseen
                log.exception("replicas could not be looked up, trying again", name=name.text)
            await asyncio.sleep(self._interval)

    async def _look_up(self, name: ServiceName) -> None:
        """Take the name's answer. Without one, or with an empty one, the last stands: DNS may be down."""
        known = self._answers[name.text]
        try:
            found = replica_addresses(name, await self._resolve(name))
            problem = "" if found else "the name has no address"
        except (OSError, TimeoutError) as error:
            found, problem = set(), str(error) or "the lookup timed out"
        if len(found) > MOST_REPLICAS:
            problem = f"the name has {len(found)} addresses, of which {MOST_REPLICAS} are dialed"
        if problem != self._problems.get(name.text, ""):
            self._problems[name.text] = problem
            if problem:
                log.warning("replicas not found by DNS", name=name.text, problem=problem, kept=len(known))
            else:
                log.info("replicas found by DNS", name=name.text, replicas=len(found))
        if found:
            stable_order = sorted(found, key=lambda text: (text not in known, text))
            self._answers[name.text] = set(stable_order[:MOST_REPLICAS])

    def _adjust_links(self) -> None:
        """Dial the addresses that came, and let the links go whose addresses went."""
        wanted = set[str]().union(*self._answers.values())
        for link in list(self._links):
            text = link.address.text
            if text in self._fixed:
                continue
            if link.leaving != (text not in wanted):
                link.leaving = not link.leaving
                log.info("replica left DNS" if link.leaving else "replica is in DNS again", address=text)
            if link.leaving and (not link.up or link.silent_for > self._silence):
                self._drop(link)
        for text in sorted(wanted - {link.address.text for link in self._links}):
            self._dial(parse_address(text))
