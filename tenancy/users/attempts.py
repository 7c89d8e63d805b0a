"""How often somebody may try to sign in: counts of attempts in SQL, which all gateways share.

An attempt is counted before it is made and given back when it succeeds, so that any number of them at once is counted
exactly. Attempts of the window before count by the part of it that still lies within the limit's time.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias
from uuid import UUID

from msgspec import Struct
from sqlalchemy import delete, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from storage.database.database import Database
from tenancy.users.errors import TooManyAttempts
from tenancy.users.tables import SignInCount

MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400


class Limit(Struct, frozen=True):
    """At most `most` attempts under a key within `seconds`."""

    key: str
    most: int
    seconds: int


Attempt: TypeAlias = "Sequence[tuple[str, int]]"
"""Where an attempt was counted: keys, and the windows of then."""


class AttemptCounter(Protocol):
    """Counts attempts. A store with buckets of its own may take the place of the SQL one."""

    async def take(self, limits: Sequence[Limit]) -> Attempt:
        """Count one attempt under every limit. Raises TooManyAttempts, and counts none, if one of them is reached."""

    async def give_back(self, attempt: Attempt) -> None:
        """Take back what `take` counted, where it was counted: the attempt succeeded."""


def password_limits(email: str, address: str, *, known_address: bool) -> list[Limit]:
    """The limits on passwords for a user from an address.

    Strangers cannot lock a user out: what they try counts for their own addresses, and the limit on all attempts does
    not concern an address that the user has signed in from before.
    """
    at = network_of(address)
    own = Limit(f"password/{email}/{at}", 10, 5 * MINUTE_S)
    if known_address:
        return [own]
    return [own, Limit(f"password-address/{at}", 10, 5 * MINUTE_S), Limit("password-all", 1_000, 5 * MINUTE_S)]


def code_limits(user_id: UUID, address: str, *, known_address: bool) -> list[Limit]:
    """The limits on second factors for a user from an address. Addresses that the user has signed in from before, and
    all others, have counts of their own."""
    at, user = network_of(address), f"code/{'known' if known_address else 'new'}/{user_id.hex}"
    return [
        Limit(user, 5, 5 * MINUTE_S),
        Limit(user, 20, HOUR_S),
        Limit(user, 50, DAY_S),
        Limit(f"code-address/{at}", 10, 5 * MINUTE_S),
        Limit(f"code-address/{at}", 50, HOUR_S),
    ]


def link_limits(address: str) -> list[Limit]:
    """The limits on one-time links from an address."""
    return [Limit(f"link-address/{network_of(address)}", 10, 5 * MINUTE_S)]


def network_of(address: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 that one holder of IPv6 usually has."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


class SqlAttemptCounter:
    """Counts in the table `sign_in_count`. `clock`: seconds since the Unix epoch."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    async def take(self, limits: Sequence[Limit]) -> Attempt:
        """Count one attempt under every limit. Raises TooManyAttempts, DatabaseUnavailable."""
        now = self._clock()
        # In one order, so that two attempts with limits in common never wait for each other.
        rows = sorted((_stored_key(limit), int(now // limit.seconds), limit) for limit in limits)
        longest_wait = 0.0
        async with self._database.transaction() as session:
            for key, slot, limit in rows:
                await self._count(session, key, slot, limit.seconds)
            counts = await _counts(session, [(key, s) for key, slot, _ in rows for s in (slot, slot - 1)])
            for key, slot, limit in rows:
                here, before = counts.get((key, slot), 0), counts.get((key, slot - 1), 0)
                left_s = (slot + 1) * limit.seconds - now
                if here + before * left_s / limit.seconds > limit.most:
                    longest_wait = max(longest_wait, left_s)
            if longest_wait:
                await session.rollback()
        if longest_wait:
            raise TooManyAttempts(longest_wait)
        return [(key, slot) for key, slot, _ in rows]

    async def give_back(self, attempt: Attempt) -> None:
        """Take back what `take` counted. Raises DatabaseUnavailable."""
        async with self._database.transaction() as session:
            for key, slot in attempt:
                row = (SignInCount.key == key) & (SignInCount.slot == slot) & (SignInCount.attempts > 0)
                await session.execute(update(SignInCount).where(row).values(attempts=SignInCount.attempts - 1))

    async def forget_old(self, most: int = 10_000) -> int:
        """Remove counts that no limit looks at any more; how many."""
        async with self._database.transaction() as session:
            old = select(SignInCount.key, SignInCount.slot).where(SignInCount.ends_at < int(self._clock())).limit(most)
            gone = delete(SignInCount).where(tuple_(SignInCount.key, SignInCount.slot).in_(old))
            return int(getattr(await session.execute(gone), "rowcount", 0))

    async def _count(self, session: AsyncSession, key: str, slot: int, seconds: int) -> None:
        values = {"key": key, "slot": slot, "attempts": 1, "ends_at": (slot + 2) * seconds}
        await session.execute(
            self._database.insert(SignInCount.__table__)
            .values(**values)
            .on_conflict_do_update(index_elements=["key", "slot"], set_={"attempts": SignInCount.attempts + 1})
        )


def _stored_key(limit: Limit) -> str:
    return f"{limit.key}/{limit.seconds}"


async def _counts(session: AsyncSession, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
    rows = await session.execute(
        select(SignInCount.key, SignInCount.slot, SignInCount.attempts).where(
            tuple_(SignInCount.key, SignInCount.slot).in_(keys)
        )
    )
    return {(row.key, row.slot): row.attempts for row in rows}
