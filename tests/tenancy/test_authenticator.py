"""Authentication: the right key is accepted, all wrong ones fail alike, a revoked one is dropped at once."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from storage.bus import LocalBus, RedisBus
from storage.database.database import Database, DatabaseUnavailable
from tenancy.authenticator import AddressNotAllowed, AuthenticationFailed, Authenticator
from tenancy.keys import Peppers, generate_key
from tenancy.repositories import Tenancy
from tenancy.rights.key_limits import key_limits
from tenancy.tables import ApiKey
from tests.awake import Awake

PEPPERS = Peppers({1: b"p" * 32, 2: b"q" * 32}, 2)


@pytest.fixture
async def bus() -> AsyncIterator[LocalBus]:
    bus = LocalBus()
    yield bus
    await bus.close()


@pytest.fixture
async def tenancy(database: Database, bus: LocalBus) -> Tenancy:
    return Tenancy(database, PEPPERS, bus)


@pytest.fixture
async def authenticator(database: Database, bus: LocalBus) -> AsyncIterator[Authenticator]:
    authenticator = Authenticator(database, PEPPERS, bus, ttl=30)
    await authenticator.start()
    yield authenticator
    await authenticator.close()


async def test_a_key_says_who_is_asking(tenancy: Tenancy, authenticator: Authenticator) -> None:
    tenant = await tenancy.create_tenant("acme")
    project = await tenancy.create_project(tenant.id, "web")
    issued = await tenancy.create_key(tenant.id, project.id, "laptop")
    principal = await authenticator.authenticate(issued.key)
    assert (principal.tenant, principal.project, principal.kind) == ("acme", "web", "project_key")
    assert (principal.tenant_id, principal.project_id) == (tenant.id, project.id)
    admin = await authenticator.authenticate((await tenancy.create_key(tenant.id, None)).key)
    assert (admin.project_id, admin.project, admin.kind) == (None, None, "admin_key")
    await authenticator.close()
    used = {key.public_id: key.last_used_at for key in await tenancy.list_keys(tenant.id)}
    assert used[issued.public_id] is not None


async def test_an_operators_key_is_no_tenants_and_the_other_way_round(
    tenancy: Tenancy, authenticator: Authenticator
) -> None:
    tenant = await tenancy.create_tenant("acme")
    admin, ann = await tenancy.create_key(tenant.id, None), await tenancy.create_operator_key(" Ann ")
    assert (await authenticator.authenticate_operator(ann.key)).name == "Ann"
    operator = await authenticator.authenticate(ann.key)
    assert (operator.kind, operator.tenant_id, operator.may("prices.approve")) == ("operator_key", None, True)
    with pytest.raises(AuthenticationFailed):
        await authenticator.authenticate_operator(admin.key)
    assert [key.public_id for key in await tenancy.list_keys(tenant.id)] == [admin.public_id]
    assert [key.public_id for key in await tenancy.list_operator_keys()] == [ann.public_id]
    await authenticator.close()


async def test_a_key_under_an_older_pepper_still_works(database: Database, bus: LocalBus) -> None:
    old = Tenancy(database, Peppers({1: b"p" * 32}, 1), bus)
    tenant = await old.create_tenant("acme")
    issued = await old.create_key(tenant.id, None)
    authenticator = Authenticator(database, PEPPERS, bus)
    assert (await authenticator.authenticate(issued.key)).tenant == "acme"
    await authenticator.close()
    gone = Authenticator(database, Peppers({2: b"q" * 32}, 2), bus)
    with pytest.raises(AuthenticationFailed):
        await gone.authenticate(issued.key)


async def test_every_wrong_key_fails_alike(tenancy: Tenancy, authenticator: Authenticator, database: Database) -> None:
    tenant = await tenancy.create_tenant("acme")
    good = await tenancy.create_key(tenant.id, None)
    other = await tenancy.create_key(tenant.id, None)
    expired = await tenancy.create_key(tenant.id, None, expires_at=time.time_ns() // 1000 - 1)
    revoked = await tenancy.create_key(tenant.id, None)
    assert await tenancy.revoke(revoked.public_id, tenant.id)
    unknown = await tenancy.create_key(tenant.id, None)
    async with database.transaction() as session:
        await session.execute(
            update(ApiKey).where(ApiKey.public_id == unknown.public_id).values(public_id="000000000000")
        )
    spliced = good.key.replace(good.public_id, other.public_id)
    wrong = ["", "tp_live_", good.key[:-1], good.key + "0", good.key.lower(), spliced, expired.key, revoked.key]
    messages = set()
    for key in [*wrong, unknown.key, "Bearer " + good.key, good.key + "\n", "\0", "🔑" * 50, "x" * 100_000]:
        with pytest.raises(AuthenticationFailed) as failure:
            await authenticator.authenticate(key)
        messages.add(str(failure.value))
    assert messages == {"incorrect API key provided"}


async def test_a_wrong_secret_fails_though_the_key_is_remembered(
    tenancy: Tenancy, authenticator: Authenticator
) -> None:
    from tenancy import keys

    tenant = await tenancy.create_tenant("acme")
    issued = await tenancy.create_key(tenant.id, None)
    await authenticator.authenticate(issued.key)
    forged, _ = keys.generate_key()
    body = forged.key.replace(forged.public_id, issued.public_id).rsplit("_", 1)[0]
    with pytest.raises(AuthenticationFailed):
        await authenticator.authenticate(f"{body}_{keys._checksum(body)}")


async def test_known_and_unknown_ids_do_the_same_work(
    tenancy: Tenancy, authenticator: Authenticator, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same statements to the database and the same MACs, whatever is wrong with the key."""
    from tenancy import keys

    tenant = await tenancy.create_tenant("acme")
    issued = await tenancy.create_key(tenant.id, None)
    work: list[str] = []
    reading, mac = database.reading, Peppers.mac

    def counted_reading() -> AbstractAsyncContextManager[AsyncSession]:
        work.append("read")
        return reading()

    def counted_mac(self: Peppers, version: int, secret: str) -> bytes:
        work.append("mac")
        return mac(self, version, secret)

    monkeypatch.setattr(database, "reading", counted_reading)
    monkeypatch.setattr(Peppers, "mac", counted_mac)
    forged, _ = keys.generate_key()
    body = forged.key.replace(forged.public_id, issued.public_id).rsplit("_", 1)[0]
    for key in (f"{body}_{keys._checksum(body)}", forged.key):
        for expected in (["read", "mac"], ["mac"]):  # not remembered, then remembered
            work.clear()
            with pytest.raises(AuthenticationFailed):
                await authenticator.authenticate(key)
            assert work == expected


async def test_nothing_shows_a_secret(tenancy: Tenancy, caplog: pytest.LogCaptureFixture) -> None:
    from tenancy.keys import parse_key

    tenant = await tenancy.create_tenant("acme")
    issued = await tenancy.create_key(tenant.id, None)
    secret = issued.key.split("_")[3]
    (row,) = await tenancy.list_keys(tenant.id)
    for thing in (issued, parse_key(issued.key), row, PEPPERS):
        assert secret not in repr(thing)
        assert "ppp" not in repr(thing)
    assert secret.encode() not in row.mac
    assert secret not in caplog.text


async def test_without_a_database_a_remembered_key_works_and_another_is_not_called_wrong(
    tenancy: Tenancy, authenticator: Authenticator, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await tenancy.create_tenant("acme")
    known, other = await tenancy.create_key(tenant.id, None), await tenancy.create_key(tenant.id, None)
    await authenticator.authenticate(known.key)

    def away() -> AbstractAsyncContextManager[AsyncSession]:
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(database, "reading", away)
    await authenticator.authenticate(known.key)
    with pytest.raises(DatabaseUnavailable):
        await authenticator.authenticate(other.key)


@pytest.mark.alone
async def test_a_revocation_is_heard_on_the_bus(database: Database, redis_url: str, patient_bus: None) -> None:
    here, there = RedisBus(redis_url), RedisBus(redis_url)
    tenancy, authenticator = Tenancy(database, PEPPERS, here), Authenticator(database, PEPPERS, there)
    await authenticator.start()
    try:
        tenant = await tenancy.create_tenant("acme")
        issued = await tenancy.create_key(tenant.id, None)
        await authenticator.authenticate(issued.key)
        with Awake() as awake:
            assert await tenancy.revoke(issued.public_id)
            await _ask_until_refused(authenticator, issued.key)
            assert awake.seconds < 1
    finally:
        await authenticator.close()
        await here.close()
        await there.close()


async def test_a_rotated_key_has_two_secrets_until_then(
    database: Database, bus: LocalBus, authenticator: Authenticator
) -> None:
    old, new = Tenancy(database, Peppers({1: b"p" * 32}, 1), bus), Tenancy(database, PEPPERS, bus)
    tenant = await old.create_tenant("acme")
    issued = await old.create_key(tenant.id, None)
    until = time.time_ns() // 1000 + 1_000_000
    rotated, _ = await new.rotate_key(issued.public_id, tenant.id, until=until)  # under another pepper
    assert (await authenticator.authenticate(rotated.key)).old_secret is False
    assert (await authenticator.authenticate(issued.key)).old_secret is True
    await asyncio.sleep(max(0.0, until / 1e6 - time.time()) + 0.01)
    with pytest.raises(AuthenticationFailed):
        await authenticator.authenticate(issued.key)
    await authenticator.authenticate(rotated.key)
    await new.revoke(issued.public_id)
    await asyncio.sleep(0)
    with pytest.raises(AuthenticationFailed):
        await authenticator.authenticate(rotated.key)


async def test_a_key_works_from_its_networks_alone(tenancy: Tenancy, authenticator: Authenticator) -> None:
    tenant = await tenancy.create_tenant("acme")
    limits = key_limits(networks=["192.0.2.0/24"])
    issued = await tenancy.create_key(tenant.id, None, limits=limits)
    await authenticator.authenticate(issued.key, "192.0.2.9")
    for address in ("192.0.3.9", "", "::1"):
        with pytest.raises(AddressNotAllowed):
            await authenticator.authenticate(issued.key, address)
    wrong, _ = generate_key(issued.public_id)
    with pytest.raises(AuthenticationFailed):  # a wrong secret is not told about the address
        await authenticator.authenticate(wrong.key, "192.0.3.9")


@pytest.mark.alone
@pytest.mark.slow
async def test_a_revocation_by_another_process_without_a_bus_is_seen_within_a_second(
    database: Database, database_url: str
) -> None:
    bus = LocalBus()
    authenticator, tenancy = Authenticator(database, PEPPERS, bus), Tenancy(database, PEPPERS, bus)
    await authenticator.start()
    tenant = await tenancy.create_tenant("acme")
    issued = await tenancy.create_key(tenant.id, None)
    await authenticator.authenticate(issued.key)
    command = [sys.executable, "-m", "tests.tenancy.revoke_child", database_url, issued.public_id]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    asking = asyncio.create_task(_ask_until_refused(authenticator, issued.key))
    assert await child.stdout.readline() == b"revoked\n"
    with Awake() as awake:
        while not asking.done():
            assert awake.seconds < 1
            await asyncio.sleep(0.01)
    await asking
    await child.communicate()
    assert child.returncode == 0
    await authenticator.close()
    await bus.close()


async def _ask_until_refused(authenticator: Authenticator, key: str) -> None:
    with contextlib.suppress(AuthenticationFailed):
        while True:
            await authenticator.authenticate(key)
            await asyncio.sleep(0.01)
