"""Which adapters the replicas of this worker have ready, by their heartbeats, and whose they are."""

from __future__ import annotations

from collections.abc import Iterable

from file_store.adapters import AdapterStore, StoredAdapter
from gateway.fleet.replica_link import ReplicaLink
from protocol.adapters import project_of


def ready_at(link: ReplicaLink) -> list[str]:
    """The names of the adapters that a replica has ready, as it last said."""
    if not link.up or link.beat is None:
        return []
    return [one.name for one in link.beat.adapters if one.ready]


def replicas_with(links: Iterable[ReplicaLink], name: str) -> list[str]:
    """The replicas that have this adapter ready."""
    return sorted({link.replica for link in links if name in ready_at(link)})


async def adapters_at(
    store: AdapterStore | None, links: Iterable[ReplicaLink]
) -> dict[str, list[tuple[str, StoredAdapter | None]]]:
    """By replica the adapters that it has ready: their names, and what is known of each. Raises DatabaseUnavailable."""
    ready = {link.replica: ready_at(link) for link in links}
    keys = {name: project_of(name) for names in ready.values() for name in names}
    known = {} if store is None else await store.of_digests({key for key in keys.values() if key is not None})
    return {
        replica: [(name, None if (key := keys[name]) is None else known.get(key)) for name in sorted(names)]
        for replica, names in ready.items()
    }
