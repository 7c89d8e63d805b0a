"""Changes of one thing at once: each sees what the one before it made. SQLite writes one after the other; PostgreSQL
does not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from uuid import uuid4

import pytest
from sqlalchemy import select

from audit_log.tables import audit_entry
from storage.bus import LocalBus
from storage.database.database import Database
from tenancy.authenticator import AuthenticationFailed, Authenticator
from tenancy.keys import Peppers
from tenancy.rate_limits import Limits, LimitSubject, RateLimits
from tenancy.repositories import InvalidKeyChange, Tenancy
from tenancy.rights.permissions import Role
from tenancy.rights.principals import Membership, Principal
from tenancy.tables import Project, Tenant
from tenancy.users.errors import LastOwner, NoSuchUser
from tenancy.users.members import Scope
from tenancy.users.service import Users

pytestmark = pytest.mark.both_databases

PEPPERS = Peppers({1: b"p" * 32}, 1)
AT_ONCE = 8
ROOT = Principal(kind="operator_key", id=uuid4(), public_id="key_root", memberships=(Membership("owner"),))


class Place:
    """A tenant with a project."""

    def __init__(self, database: Database, bus: LocalBus, tenant: Tenant, project: Project) -> None:
        self.database, self.bus = database, bus
        self.tenancy = Tenancy(database, PEPPERS, bus)
        self.tenant_id, self.project_id = tenant.id, project.id

    async def entries(self, action: str) -> list[tuple[str | None, str | None]]:
        """`before` and `after` of what was recorded of this kind, in order."""
        entry = audit_entry.c
        query = select(entry.before, entry.after).where(entry.action == action).order_by(entry.number)
        async with self.database.reading() as session:
            return [(row.before, row.after) for row in await session.execute(query)]


@pytest.fixture
async def place(database: Database) -> AsyncIterator[Place]:
    bus = LocalBus()
    yield Place(database, bus, *await Tenancy(database, PEPPERS, bus).open_tenant("acme"))
    await bus.close()


def follow_each_other(entries: list[tuple[str | None, str | None]]) -> bool:
    """Whether each entry begins where the one before it ended."""
    return all(later[0] == earlier[1] for earlier, later in pairwise(entries))


async def test_rotations_of_one_key_follow_each_other(place: Place) -> None:
    first = await place.tenancy.create_key(place.tenant_id, place.project_id)
    until = time.time_ns() // 1000 + 10**9
    rotating = (place.tenancy.rotate_key(first.public_id, place.tenant_id, until=until) for _ in range(AT_ONCE))
    secrets = [issued.key for issued, _ in await asyncio.gather(*rotating)]
    authenticator = Authenticator(place.database, PEPPERS, place.bus)
    valid = []
    for secret in (first.key, *secrets):
        try:
            valid.append((secret, (await authenticator.authenticate(secret)).old_secret))
        except AuthenticationFailed:
            continue
    await authenticator.close()
    assert sorted(old for _, old in valid) == [False, True], "the last secret, and the one before it"
    assert first.key not in dict(valid)


async def test_a_revoked_key_is_not_rotated(place: Place) -> None:
    keys = [await place.tenancy.create_key(place.tenant_id, place.project_id) for _ in range(4)]
    until = time.time_ns() // 1000 + 10**9
    work = [place.tenancy.revoke(key.public_id) for key in keys for _ in range(3)]
    work += [place.tenancy.rotate_key(key.public_id, until=until) for key in keys]  # type: ignore[misc]
    done = await asyncio.gather(*work, return_exceptions=True)
    assert all(not isinstance(one, Exception) or isinstance(one, InvalidKeyChange) for one in done), done
    assert len(await place.entries("key.revoked")) == len(keys), "each was revoked once"


async def test_limits_set_at_once_follow_each_other(place: Place) -> None:
    store, subject = RateLimits(place.database, place.bus), LimitSubject(place.tenant_id, place.project_id)
    wanted = [Limits(requests_per_minute=number + 1) for number in range(AT_ONCE)]
    before = await asyncio.gather(*(store.set(subject, limits) for limits in wanted))
    found = await store.get(subject)
    assert found is not None
    assert before.count(None) == 1
    earlier = {one.requests_per_minute for one in before if one is not None}
    assert earlier | {found.limits.requests_per_minute} == {one.requests_per_minute for one in wanted}
    assert follow_each_other(await place.entries("limits.set"))
    removed = await asyncio.gather(*(store.remove(subject) for _ in range(AT_ONCE)))
    assert [one for one in removed if one is not None] == [found.limits]


@pytest.fixture
async def users(place: Place) -> AsyncIterator[Users]:
    users = Users(place.database, b"m" * 32, place.bus)
    yield users
    await users.close()


async def test_roles_given_at_once_follow_each_other(place: Place, users: Users) -> None:
    now, scope = users.clock(), Scope(place.tenant_id)
    user = await users.accounts.create("ann@x.com", "Ann", now)
    roles: list[Role] = ["viewer", "developer", "admin", "viewer", "finance", "viewer", "admin", "viewer"]
    await asyncio.gather(*(users.members.set(ROOT, user.id, scope, role, now) for role in roles))
    assert len(await place.entries("member.added")) == 1
    changes = await place.entries("member.added") + await place.entries("member.role_changed")
    assert follow_each_other(changes)
    removing = (users.members.remove(ROOT, user.id, scope) for _ in range(AT_ONCE))
    done = await asyncio.gather(*removing, return_exceptions=True)
    assert [type(one) for one in done if one is not None] == [NoSuchUser] * (AT_ONCE - 1)


async def test_of_owners_who_go_at_once_one_stays(place: Place, users: Users) -> None:
    now, scope = users.clock(), Scope(place.tenant_id)
    owner = Membership("owner", place.tenant_id)
    people = [await users.accounts.create(f"{name}@x.com", name, now, (owner,)) for name in "abcd"]
    work = [users.members.remove(ROOT, one.id, scope) for one in people[:2]]
    work += [users.members.set(ROOT, one.id, scope, "viewer", now) for one in people[2:]]
    done = await asyncio.gather(*work, return_exceptions=True)
    assert [type(one) for one in done if one is not None] == [LastOwner]
    assert [one.role for one in await users.members.at(scope)].count("owner") == 1
