"""Redis is taken away from a gateway that has cached everything: what others change holds within a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from audit_log.actors import Actor, acting_as
from storage.bus import LocalBus, RedisBus
from storage.database.database import Database
from tenancy.administration.suspension import Suspensions
from tenancy.authenticator import AuthenticationFailed, Authenticator
from tenancy.keys import Peppers
from tenancy.rate_limits import LimitCache, Limits, RateLimits
from tenancy.repositories import Tenancy
from tenancy.users.service import Users
from tenancy.users.sessions import NewSession
from tests.awake import Awake
from tests.gateway.browser import CLIENT, PASSWORD, make_user
from tests.servers import redis_server
from tests.tenancy.users.conftest import quicken

PEPPERS = Peppers({1: b"p" * 32}, 1)


@pytest.mark.alone
@pytest.mark.slow
async def test_keys_sessions_limits_and_suspensions_without_redis(database: Database, patient_bus: None) -> None:
    """Nobody hears of the changes: they are made by a process with a bus of its own."""
    elsewhere = LocalBus()
    tenancy, limits = Tenancy(database, PEPPERS, elsewhere), RateLimits(database, elsewhere)
    operator, users = Suspensions(database, elsewhere), Users(database, b"m" * 32, elsewhere)
    quicken(users.passwords)
    tenant = await tenancy.create_tenant("acme")
    project = await tenancy.create_project(tenant.id, "web")
    issued = await tenancy.create_key(tenant.id, project.id)
    user = await make_user(users, "ann@example.com", "owner")
    signed_in = await users.sign_in.with_password("ann@example.com", PASSWORD, CLIENT)
    assert isinstance(signed_in, NewSession)
    subject = await limits.subject_of_key(issued.public_id)
    assert subject.key_id is not None
    of_key = (subject.key_id, project.id, tenant.id)
    with redis_server() as redis:
        bus = RedisBus(redis.url)
        keys, there = Authenticator(database, PEPPERS, bus), Users(database, b"m" * 32, bus)
        known, suspensions = LimitCache(database, bus), Suspensions(database, bus)
        for cache in (keys, there, known, suspensions):
            await cache.start()
        try:
            await keys.authenticate(issued.key)
            assert await there.authenticator.authenticate(signed_in.token) is not None
            assert await known.load(*of_key) == ()
            redis.stop()
            async with asyncio.timeout(30):
                while bus.connected:  # noqa: ASYNC110  # nothing else says it
                    await asyncio.sleep(0.01)
            with acting_as(Actor("command", "tester", "tester")):
                await tenancy.revoke(issued.public_id, tenant.id)
                await users.sessions.revoke_all(user.id, users.clock())
                await limits.set(subject, Limits(requests_per_minute=7))
                await operator.suspend(tenant.id)

            async def key_is_refused() -> bool:
                with suppress(AuthenticationFailed):
                    await keys.authenticate(issued.key)
                    return False
                return True

            async def session_has_ended() -> bool:
                return await there.authenticator.authenticate(signed_in.token) is None

            async def limit_applies() -> bool:
                applying = known.known(*of_key)
                if applying is None:
                    applying = await known.load(*of_key)
                return [one.limits for one in applying] == [Limits(requests_per_minute=7)]

            async def tenant_is_suspended() -> bool:
                return suspensions.find(tenant.id) == "tenant"

            with Awake() as awake:
                for holds in (key_is_refused, session_has_ended, limit_applies, tenant_is_suspended):
                    await _until(holds, lambda: awake.seconds < 1.5)
        finally:
            await suspensions.close()
            for cache in (keys, there, known):
                await cache.close()
            await bus.close()
    await users.close()


async def _until(holds: Callable[[], Awaitable[bool]], in_time: Callable[[], bool]) -> None:
    while not await holds():
        assert in_time(), f"{holds.__name__}: not within a second"
        await asyncio.sleep(0.02)
