"""Who is taken out of a directory while a group, or a sign-in, gives roles: nothing comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from audit_log.actors import Actor, acting_as
from storage.bus import LocalBus
from storage.database.base import from_instant, new_id
from storage.database.database import Database
from tenancy.identity.directories import Directories
from tenancy.identity.directory_people import DirectoryPeople, Person, PersonFields
from tenancy.identity.directory_roles import end_membership
from tenancy.identity.known_people import KnownPeople
from tenancy.identity.providers import Provider
from tenancy.identity.refusals import IdentityRefused
from tenancy.identity.tables import DirectoryUser, IdentityProvider
from tenancy.keys import Peppers
from tenancy.repositories import Tenancy
from tenancy.rights.principals import Membership, Principal
from tenancy.users.service import Users
from tenancy.users.tables import MembershipRow

pytestmark = pytest.mark.both_databases

ANN, BOB = "ann@acme.example", "bob@acme.example"
ROOT = Principal(kind="command", id=new_id(), public_id="", memberships=(Membership("owner"),))


class Place:
    """A tenant with a directory, whose people are viewers, and what changes it."""

    def __init__(self, database: Database, users: Users, bus: LocalBus) -> None:
        self.database, self.users = database, users
        self.tenancy = Tenancy(database, Peppers({1: b"p" * 32}, 1), bus)
        self.directories = Directories(database, users.secrets)
        self.people = DirectoryPeople(database, users, self.tenancy, self.directories)
        self.tenant_id = new_id()

    async def open(self) -> None:
        self.tenant_id = (await self.tenancy.open_tenant("acme"))[0].id
        await self.directories.create_token(ROOT, self.tenant_id, self.users.clock())
        await self.directories.change(ROOT, self.tenant_id, member_role="viewer", revoke_keys=None)

    async def add(self, email: str) -> Person:
        """A person whose account is known."""
        viewer = (Membership("developer", self.tenant_id),)
        await self.users.accounts.create(email, email, self.users.clock(), viewer)
        return await self.people.put_person(self.tenant_id, fields(email))

    async def roles(self, person: Person) -> list[str]:
        query = select(MembershipRow.role).where(
            MembershipRow.user_id == person.user_id, MembershipRow.tenant_id == self.tenant_id
        )
        async with self.database.reading() as session:
            return list((await session.execute(query)).scalars())

    async def leave_while(self, person: Person, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """What comes of work that begins before it is committed that the person has left, and ends after it."""
        async with self.database.transaction() as session:
            query = self.database.locked(select(DirectoryUser).where(DirectoryUser.id == person.id))
            row = (await session.execute(query)).scalar_one()
            row.active = 0
            await session.flush()
            await end_membership(session, self.database, row, self.users.clock())
            task = asyncio.create_task(work())
            await asyncio.sleep(0.2)  # it is past what it reads without waiting
        return (await asyncio.gather(task, return_exceptions=True))[0]


def fields(email: str) -> PersonFields:
    return PersonFields(user_name=email, external_id=email, email=email, active=True, content={})


@pytest.fixture
async def place(database: Database) -> AsyncIterator[Place]:
    bus = LocalBus()
    users = Users(database, b"m" * 32, bus)
    with acting_as(Actor("command", "tester", "tester")):
        place = Place(database, users, bus)
        await place.open()
        yield place
    await users.close()
    await bus.close()


async def test_a_group_gives_nothing_back(place: Place) -> None:
    ann = await place.add(ANN)
    group = await place.people.put_group(place.tenant_id, "All", "", [])
    done = await place.leave_while(ann, lambda: place.people.put_group(place.tenant_id, "All", "", [ann.id], group.id))
    assert [one for one, _ in done.members] == [ann.id]
    assert await place.roles(ann) == []


async def test_a_role_of_a_group_gives_nothing_back(place: Place) -> None:
    ann = await place.add(ANN)
    group = await place.people.put_group(place.tenant_id, "All", "", [ann.id])
    done = await place.leave_while(
        ann, lambda: place.people.set_group_role(ROOT, place.tenant_id, group.id, "admin", None)
    )
    assert done.role == "admin"
    assert await place.roles(ann) == []


async def test_a_sign_in_gives_nothing_back(place: Place) -> None:
    ann = await place.add(ANN)
    assert ann.user_id is not None
    provider = await _provider(place)
    known = KnownPeople(place.database, place.users)

    async def sign_in(user_id: UUID) -> None:
        async with place.database.transaction() as session:
            await known.set_roles(session, provider, {"sub": ANN}, user_id, place.users.clock())

    user_id = ann.user_id
    done = await place.leave_while(ann, lambda: sign_in(user_id))
    assert isinstance(done, IdentityRefused)
    assert done.reason == "left"
    assert await place.roles(ann) == []


async def test_groups_of_the_same_people_change_at_once(place: Place) -> None:
    """None waits for another that waits for it."""
    people = [await place.add(email) for email in (ANN, BOB, "cat@acme.example")]
    groups = [await place.people.put_group(place.tenant_id, name, "", []) for name in "abcdef"]
    for members in ([one.id for one in people], [], [one.id for one in reversed(people)]):
        work = [place.people.put_group(place.tenant_id, one.name, "", members, one.id) for one in groups]
        again = [place.people.put_person(place.tenant_id, fields(one.user_name), one.id) for one in people]
        await asyncio.gather(*work, *again)
    assert [await place.roles(one) for one in people] == [["developer"]] * 3


async def _provider(place: Place) -> Provider:
    row = IdentityProvider(id=new_id(), tenant_id=place.tenant_id, name="Acme", issuer="https://acme.example")
    row.client_id, row.scopes, row.groups_claim, row.acr_values = "turnpike", "openid", "", ""
    row.owner_by_group, row.enabled, row.created_at = 0, 1, from_instant(place.users.clock())
    async with place.database.transaction() as session:
        session.add(row)
    return Provider(
        id=row.id,
        tenant_id=row.tenant_id,
        name=row.name,
        issuer=row.issuer,
        client_id=row.client_id,
        has_secret=False,
        scopes=row.scopes,
        groups_claim="",
        acr_values="",
        owner_by_group=False,
        enabled=True,
        domains=(),
        groups=(),
        created_at=0,
    )
