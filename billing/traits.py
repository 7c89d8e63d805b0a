"""What events have in common, numbered: each combination of words is stored once, and an event has its number.

There are few: a model, a lane, a replica and how a request ended. They are added before the first event that needs
them, and never change.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy import select

from billing.tables.money import usage_traits
from billing.usage import TRAITS
from storage.database import Database

Traits: TypeAlias = tuple[str, ...]
"""The values of TRAITS, in their order."""

traits_of = attrgetter(*TRAITS)
"""The traits of an event."""

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
