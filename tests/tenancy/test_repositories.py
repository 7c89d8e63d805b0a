"""Tenants, projects and keys: names are unique, and no tenant sees another's rows."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest
from msgspec.structs import replace

from storage.bus import BusUnavailable, LocalBus
from storage.database.base import new_id
from storage.database.database import Database
from storage.free_text import InvalidText
from tenancy.administration.operators import TooFewOperators, check_two_remain, two_decide
from tenancy.keys import IssuedKey, Peppers
from tenancy.repositories import InvalidKeyChange, KeyChange, NameTaken, NoSuchRecord, Tenancy, grant_of

pytestmark = pytest.mark.both_databases


@pytest.fixture
def tenancy(database: Database) -> Tenancy:
    return Tenancy(database, Peppers({1: b"p" * 16}, 1), LocalBus())


async def test_names_are_taken_once(tenancy: Tenancy) -> None:
    acme, zoo = await tenancy.create_tenant("acme"), await tenancy.create_tenant("zoo")
    with pytest.raises(NameTaken, match="acme"):
        await tenancy.create_tenant("acme")
    web = await tenancy.create_project(acme.id, "web")
    await tenancy.create_project(zoo.id, "web")
    with pytest.raises(NameTaken, match="web"):
        await tenancy.create_project(acme.id, "web")
    for name in ("", "  ", "a\nb", "x" * 201):
        with pytest.raises(InvalidText, match="name: "):
            await tenancy.create_tenant(name)
    assert (await tenancy.tenant("acme")).id == acme.id
    assert (await tenancy.project(acme.id, "web")).id == web.id
    assert [t.name for t in await tenancy.list_tenants()] == ["acme", "zoo"]
    assert [p.name for p in await tenancy.list_projects(acme.id)] == ["web"]


async def test_a_tenant_sees_and_touches_only_its_own(tenancy: Tenancy) -> None:
    acme, zoo = await tenancy.create_tenant("acme"), await tenancy.create_tenant("zoo")
    theirs = await tenancy.create_project(zoo.id, "web")
    key = await tenancy.create_key(zoo.id, theirs.id, "laptop")
    with pytest.raises(NoSuchRecord):
        await tenancy.project(acme.id, "web")
    with pytest.raises(NoSuchRecord):
        await tenancy.create_key(acme.id, theirs.id)
    with pytest.raises(NoSuchRecord):
        await tenancy.revoke(key.public_id, acme.id)
    assert await tenancy.list_keys(acme.id) == []
    assert await tenancy.list_projects(acme.id) == []
    (listed,) = await tenancy.list_keys(zoo.id)
    assert (listed.public_id, listed.name, listed.kind, listed.revoked_at) == (key.public_id, "laptop", "project", None)
    with pytest.raises(NoSuchRecord):
        await tenancy.tenant("nobody")
    with pytest.raises(NoSuchRecord):
        await tenancy.revoke("nobody")
    with pytest.raises(NoSuchRecord):
        await tenancy.create_key(acme.id, new_id())
    with pytest.raises(NoSuchRecord):
        await tenancy.create_project(new_id(), "web")


async def test_a_revocation_holds_though_the_bus_is_down(database: Database) -> None:
    class Deaf(LocalBus):
        async def publish(self, topic: str, payload: bytes) -> None:
            raise BusUnavailable

    tenancy = Tenancy(database, Peppers({1: b"p" * 16}, 1), Deaf())
    tenant = await tenancy.create_tenant("acme")
    key = await tenancy.create_key(tenant.id, None)
    assert not await tenancy.revoke(key.public_id, tenant.id)
    (listed,) = await tenancy.list_keys(tenant.id)
    first = listed.revoked_at
    assert first is not None
    await tenancy.revoke(key.public_id)
    (listed,) = await tenancy.list_keys(tenant.id)
    assert listed.revoked_at == first


async def test_a_tenant_has_a_bounded_number_of_keys(tenancy: Tenancy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenancy.repositories.MOST_KEYS", 2)
    acme, zoo = await tenancy.create_tenant("acme"), await tenancy.create_tenant("zoo")
    first = await tenancy.create_key(acme.id, None)
    await tenancy.create_key(acme.id, None)
    with pytest.raises(InvalidKeyChange):
        await tenancy.create_key(acme.id, None)
    await tenancy.create_key(zoo.id, None)
    await tenancy.revoke(first.public_id)
    await tenancy.create_key(acme.id, None)


async def test_keys_that_are_made_at_once_are_bounded_too(tenancy: Tenancy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenancy.repositories.MOST_KEYS", 3)
    acme = await tenancy.create_tenant("acme")
    made = await asyncio.gather(*(tenancy.create_key(acme.id, None) for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(one, InvalidKeyChange) for one in made) == 5
    assert len(await tenancy.list_keys(acme.id)) == 3


async def test_of_three_operators_two_remain_though_all_are_revoked_at_once(tenancy: Tenancy) -> None:
    keys = [await tenancy.create_operator_key(name) for name in ("ann", "bob", "cat")]
    ended = await asyncio.gather(
        *(tenancy.revoke(key.public_id, guard=partial(check_two_remain, public_id=key.public_id)) for key in keys),
        return_exceptions=True,
    )
    assert sum(isinstance(one, TooFewOperators) for one in ended) == 2
    assert sum(key.revoked_at is None for key in await tenancy.list_operator_keys()) == 2


async def test_the_last_owners_keys_are_given_no_end(tenancy: Tenancy) -> None:
    """Once one had expired, nobody could approve anything or turn approvals off."""
    later = (time.time_ns() // 1000) + 3600 * 1_000_000
    ann = await tenancy.create_operator_key("ann")
    await tenancy.create_operator_key("bob", expires_at=later)
    assert not two_decide(await tenancy.list_operator_keys())
    cat = await tenancy.create_operator_key("cat")
    assert two_decide(await tenancy.list_operator_keys())

    async def end(key: IssuedKey, at: int | None) -> None:
        after = replace(grant_of(await tenancy.key(key.public_id)), expires_at=at)
        guard = partial(check_two_remain, public_id=key.public_id, after=after)
        await tenancy.change_key(key.public_id, KeyChange(expires_at=at), guard=guard)

    with pytest.raises(TooFewOperators, match="does not expire"):
        await end(ann, later)
    with pytest.raises(TooFewOperators):
        await tenancy.revoke(cat.public_id, guard=partial(check_two_remain, public_id=cat.public_id))
    dan = await tenancy.create_operator_key("dan")
    await end(ann, later)
    with pytest.raises(TooFewOperators):
        await end(dan, later)


async def test_where_all_owners_keys_expire_they_may_be_prolonged(tenancy: Tenancy) -> None:
    """As an earlier version let it come about: what makes it better, or no worse, is no fault."""
    now = time.time_ns() // 1000
    ann, _ = [await tenancy.create_operator_key(name, expires_at=now + 10**9) for name in ("ann", "bob")]
    for at in (now + 2 * 10**9, None):
        after = replace(grant_of(await tenancy.key(ann.public_id)), expires_at=at)
        guard = partial(check_two_remain, public_id=ann.public_id, after=after)
        await tenancy.change_key(ann.public_id, KeyChange(expires_at=at), guard=guard)
    with pytest.raises(TooFewOperators):
        await tenancy.revoke(ann.public_id, guard=partial(check_two_remain, public_id=ann.public_id))


async def test_owners_keys_are_not_revoked_for_keys_that_cannot_turn_approvals_off(tenancy: Tenancy) -> None:
    ann, bob = [await tenancy.create_operator_key(name) for name in ("ann", "bob")]
    for name in ("cat", "dan"):
        await tenancy.create_operator_key(name, role="finance")
    await tenancy.create_operator_key("bob ")  # another key of the same person
    with pytest.raises(TooFewOperators):
        await tenancy.revoke(ann.public_id, guard=partial(check_two_remain, public_id=ann.public_id))
    await tenancy.revoke(bob.public_id, guard=partial(check_two_remain, public_id=bob.public_id))
