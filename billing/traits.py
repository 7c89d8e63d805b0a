"""What events have in common, numbered: each combination of words is stored once, and an event has its number.

There are few: a model, a lane, a replica and how a request ended. They are added before the first event that needs
them, and never change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy import select

from billing.tables.money import usage_traits
from billing.usage import TRAITS, UsageEvent
from storage.database import Database

Traits: TypeAlias = tuple[str, ...]
"""The values of TRAITS, in their order."""


def all_traits(events: Iterable[UsageEvent]) -> list[Traits]:
    """The traits of each event."""
    return [(e.model, e.model_digest, e.lane, e.status, e.reason, e.delivery, e.source, e.replica) for e in events]


_known: WeakKeyDictionary[Database, dict[Traits, int]] = WeakKeyDictionary()
"""The numbers in each database, as far as this process knows."""


async def numbers(database: Database, kinds: Iterable[Traits]) -> dict[Traits, int]:
    """The numbers of at least these traits; those that have none get one. Raises DatabaseUnavailable."""
    known = _known.setdefault(database, {})
    missing = set(kinds) - known.keys()
    if missing:
        rows = [dict(zip(TRAITS, traits, strict=True)) for traits in sorted(missing)]
        async with database.transaction() as session:
            await session.execute(database.insert(usage_traits).on_conflict_do_nothing(), rows)
        async with database.reading() as session:
            known |= {tuple(row[1:]): row[0] for row in await session.execute(_ALL)}
    return known


_ALL = select(usage_traits.c.id, *(usage_traits.c[name] for name in TRAITS))
