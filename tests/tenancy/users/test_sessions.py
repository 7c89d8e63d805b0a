"""Sessions: they outlive a restart, end everywhere at once, and keep to a model of what a session is."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text

from storage.bus import LocalBus, RedisBus
from storage.database.database import Database
from tenancy.users import totp
from tenancy.users.errors import LinkRefused, SignInRefused
from tenancy.users.second_factors import NewAuthenticator
from tenancy.users.service import Users
from tenancy.users.sessions import ABSOLUTE_US, IDLE_US, MOST_SESSIONS, NewSession
from tests.awake import Awake
from tests.gateway.browser import CLIENT, PASSWORD, make_user
from tests.servers import RedisServer
from tests.tenancy.users.conftest import quicken


async def enter(users: Users, email: str = "ann@x.com") -> str:
    """The token of a new session."""
    made = await users.sign_in.with_password(email, PASSWORD, CLIENT)
    assert isinstance(made, NewSession)
    assert made.token not in repr(made)
    return made.token


@pytest.mark.both_databases
async def test_a_session_survives_a_restart(users: Users, database: Database, bus: LocalBus) -> None:
    await make_user(users, "ann@x.com", "owner")
    token = await enter(users)
    again = Users(database, b"m" * 32, bus)
    assert await again.authenticator.authenticate(token) is not None
    await again.close()
    stranger = Users(database, b"another master key" * 2, bus)
    assert await stranger.authenticator.authenticate(token) is None
    await stranger.close()


@pytest.fixture
async def gateways(database: Database, redis: RedisServer, patient_bus: None) -> AsyncIterator[tuple[Users, Users]]:
    """Two gateways on one database and one Redis, which remember sessions for long."""
    buses = [RedisBus(redis.url) for _ in range(2)]
    both = [Users(database, b"m" * 32, bus, ttl=60) for bus in buses]
    for users in both:
        quicken(users.passwords)
        await users.start()
    yield both[0], both[1]
    for users in both:
        await users.close()
    for bus in buses:
        await bus.close()


@pytest.mark.alone
async def test_revoked_roles_and_sessions_are_so_at_every_gateway_within_a_second(
    gateways: tuple[Users, Users],
) -> None:
    here, there = gateways
    user = await make_user(here, "ann@x.com", "viewer")
    token = await enter(here)

    async def until(wanted: object, seconds: float) -> None:
        with Awake() as awake:
            while True:
                found = await there.authenticator.authenticate(token)
                if (None if found is None else len(found.session.memberships)) == wanted:
                    return
                assert awake.seconds < seconds
                await asyncio.sleep(0.005)

    await until(1, 10)
    await here.sessions.revoke_all(user.id, here.clock())
    await until(None, 1)
    token = await enter(here)
    await until(1, 10)
    await here.accounts.disable(user.id, here.clock())
    await until(None, 1)


async def test_a_session_ends_when_idle_and_when_old(users: Users) -> None:
    await make_user(users, "ann@x.com", "owner")
    token = await enter(users)
    for _ in range(13):
        users.clock.ahead += IDLE_US - 60_000_000
        found = await users.authenticator.authenticate(token)
        assert found is not None
        assert not found.fresh
        await users.authenticator.close()
        users.authenticator.cache.forget_all()
    assert users.clock.ahead < ABSOLUTE_US
    users.clock.ahead = ABSOLUTE_US
    assert await users.authenticator.authenticate(token) is None
    token = await enter(users)
    users.clock.ahead += IDLE_US
    users.authenticator.cache.forget_all()
    assert await users.authenticator.authenticate(token) is None


async def test_the_oldest_of_too_many_sessions_ends(users: Users) -> None:
    user = await make_user(users, "ann@x.com", "owner")
    first = await enter(users)
    for _ in range(MOST_SESSIONS):
        users.clock.ahead += 1
        await enter(users)
    assert await users.authenticator.authenticate(first) is None
    assert len(await users.sessions.alive(user.id, users.clock())) == MOST_SESSIONS


@pytest.mark.both_databases
async def test_one_of_many_requests_rotates_the_token(users: Users) -> None:
    user = await make_user(users, "ann@x.com", "owner")
    token = await enter(users)
    async with users.accounts._database.transaction() as session:
        await session.execute(text("UPDATE user_session SET rotate = 1"))
    found = await asyncio.gather(*(users.authenticator.authenticate(token) for _ in range(5)))
    new = [each.new_token for each in found if each is not None and each.new_token is not None]
    assert len(found) - found.count(None) == 5
    assert len(new) == 1
    assert await users.authenticator.authenticate(new[0]) is not None
    assert (await users.authenticator.authenticate(token)) is not None
    users.clock.ahead = 31_000_000
    users.authenticator.cache.forget_all()
    assert await users.authenticator.authenticate(token) is None
    assert len(await users.sessions.alive(user.id, users.clock())) == 1


@pytest.mark.both_databases
async def test_of_many_uses_of_a_link_one_works(users: Users) -> None:
    user = await make_user(users, "ann@x.com", "owner")
    link = await users.links.create(user.id, "sign_in", users.clock())
    assert link.token not in repr(link)
    outcomes = await asyncio.gather(
        *(users.sign_in.with_link(link.token, CLIENT) for _ in range(5)), return_exceptions=True
    )
    assert sorted(type(each).__name__ for each in outcomes) == ["LinkRefused"] * 4 + ["NewSession"]
    with pytest.raises(LinkRefused):
        await users.sign_in.with_link(link.token, CLIENT)


async def test_no_secret_of_a_user_is_in_the_database(users: Users, database: Database, bus: LocalBus) -> None:
    user = await make_user(users, "ann@x.com", "owner")
    token = await enter(users)
    link = await users.links.create(user.id, "password_reset", users.clock())
    made = await users.second_factors.begin(user.id, users.clock())
    secrets = [token, link.token, PASSWORD, made.secret]
    raw = [*(each.encode() for each in secrets), base64.b32decode(made.secret)]
    for table in ("credential", "user_session", "one_time_token", "user_account"):
        async with database.reading() as session:
            for row in (await session.execute(text(f"SELECT * FROM {table}"))).all():
                kept = b"|".join(v if isinstance(v, bytes) else str(v).encode() for v in row)
                assert not any(each in kept for each in raw), table


async def test_after_another_master_key_a_second_factor_is_set_up_anew(
    users: Users, database: Database, bus: LocalBus, caplog: pytest.LogCaptureFixture
) -> None:
    user, now = await make_user(users, "ann@x.com", "owner"), users.clock()
    begun = await users.second_factors.begin(user.id, now)
    other = Users(database, b"x" * 32, bus)
    with pytest.raises(SignInRefused):
        await other.second_factors.confirm(user.id, _code(begun, now), now)
    assert "cannot be read under this master key" in caplog.text
    codes = await users.second_factors.confirm(user.id, _code(begun, now), now)
    async with database.transaction() as session:
        for code in (_code(begun, now, 1), codes[0]):
            assert await other.second_factors.use(session, user.id, code, now) is None
    await other.second_factors.remove(user.id)  # as `turnpike users reset EMAIL --second-factor` does
    again = await other.second_factors.begin(user.id, now)
    assert await other.second_factors.confirm(user.id, _code(again, now), now)
    await other.close()


def _code(made: NewAuthenticator, now: int, later: int = 0) -> str:
    return totp.code_at(base64.b32decode(made.secret), now // 1_000_000 // totp.STEP_S + later)


@pytest.mark.both_databases
async def test_what_is_over_is_removed_in_the_end(users: Users) -> None:
    user = await make_user(users, "ann@x.com", "owner")
    await enter(users)
    await users.links.create(user.id, "sign_in", users.clock())
    assert await users.forget_old() == 0
    users.clock.ahead = 40 * 86_400 * 1_000_000
    assert await users.forget_old() > 3
    assert await users.forget_old() == 0
