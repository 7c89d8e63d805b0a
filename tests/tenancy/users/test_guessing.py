"""What somebody who guesses meets: limits that do not lock the user out, and answers that tell nothing."""

from __future__ import annotations

import asyncio
import os
import statistics
import threading
import time
from typing import Any

import pytest
from argon2 import PasswordHasher
from sqlalchemy import select, text

from storage.bus import LocalBus
from storage.database.database import Database
from tenancy.users import totp
from tenancy.users.attempts import Limit, SqlAttemptCounter, network_of
from tenancy.users.errors import PasswordsBusy, SignInRefused, TooManyAttempts
from tenancy.users.links import Link
from tenancy.users.passwords import AT_ONCE, Passwords
from tenancy.users.service import Users
from tenancy.users.sessions import Client, NewSession
from tenancy.users.tables import Credential
from tests.gateway.browser import PASSWORD, make_user
from tests.tenancy.users.conftest import quicken

HOME = Client("192.0.2.1")


async def guess(users: Users, address: str, email: str = "ann@x.com", password: str = "a wrong password") -> bool:
    """Whether the attempt was looked at; False: there were too many."""
    try:
        await users.sign_in.with_password(email, password, Client(address))
    except SignInRefused:
        return True
    except TooManyAttempts as error:
        return not 0 < error.retry_after <= 300
    raise AssertionError("a wrong password was accepted")


@pytest.mark.both_databases
async def test_strangers_at_many_addresses_do_not_lock_a_user_out(users: Users) -> None:
    await make_user(users, "ann@x.com", "owner")
    assert isinstance(await users.sign_in.with_password("ann@x.com", PASSWORD, HOME), NewSession)
    guesses = [await guess(users, f"198.51.100.{number}") for number in range(20)]
    assert all(guesses)  # each has its own count
    # All attempts there may be are used up: every stranger is refused, and Ann at her own address is not.
    await users.sign_in._attempts.take([Limit("password-all", 1_000, 300)] * 1)
    async with users.accounts._database.transaction() as session:
        await session.execute(text("UPDATE sign_in_count SET attempts = 5000 WHERE key LIKE 'password-all/%'"))
    assert not await guess(users, "203.0.113.9")
    assert isinstance(await users.sign_in.with_password("ann@x.com", PASSWORD, HOME), NewSession)


async def test_ten_guesses_in_five_minutes_from_an_address(users: Users) -> None:
    await make_user(users, "ann@x.com", "owner")
    await make_user(users, "bob@x.com", "owner")
    assert [await guess(users, "198.51.100.1") for _ in range(12)] == [True] * 10 + [False] * 2
    assert not await guess(users, "198.51.100.1", "bob@x.com")
    assert not await guess(users, "::ffff:198.51.100.1", "nobody@x.com")
    assert await guess(users, "198.51.100.2")
    for number in range(10):
        await guess(users, f"2001:db8::{number}")
    assert not await guess(users, "2001:db8::ffff")
    assert await guess(users, "2001:db8:0:1::1")
    before = users.passwords.verifications
    assert not await guess(users, "198.51.100.1")
    assert users.passwords.verifications == before  # too many are refused before they cost a hash
    users.clock.ahead = 600_000_000
    assert await guess(users, "198.51.100.1")


@pytest.mark.both_databases
async def test_a_limit_counts_attempts_at_once_exactly(database: Database) -> None:
    counters = [SqlAttemptCounter(database, lambda: 1_000_000.0) for _ in range(2)]
    limits = [Limit("a", 7, 300), Limit("b", 100, 300)]
    attempts = [counters[number % 2].take(limits) for number in range(20)]
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert len(refused) == 13
    assert {type(outcome) for outcome in refused} == {TooManyAttempts}
    await counters[0].give_back(next(outcome for outcome in outcomes if not isinstance(outcome, BaseException)))
    await counters[0].take(limits)
    with pytest.raises(TooManyAttempts):
        await counters[1].take(limits)


async def test_what_is_given_back_is_taken_off_the_window_that_it_was_counted_in(database: Database) -> None:
    now = 299.0
    counter, limit = SqlAttemptCounter(database, lambda: now), [Limit("a", 2, 300)]
    good = await counter.take(limit)
    now = 300.0  # another window
    await counter.take(limit)
    await counter.give_back(good)
    async with database.reading() as session:
        rows = await session.execute(text("SELECT slot, attempts FROM sign_in_count ORDER BY slot"))
        assert [tuple(row) for row in rows] == [(0, 0), (1, 1)]
    await counter.take(limit)
    with pytest.raises(TooManyAttempts):
        await counter.take(limit)


async def test_attempts_of_the_window_before_count_in_part(database: Database) -> None:
    now = 1_000_200.0  # the beginning of a window of 300 s
    assert now % 300 == 0
    counter = SqlAttemptCounter(database, lambda: now)
    limit = [Limit("a", 10, 300)]
    for _ in range(10):
        await counter.take(limit)
    now += 300 + 150
    for _ in range(5):
        await counter.take(limit)
    with pytest.raises(TooManyAttempts):
        await counter.take(limit)
    now += 700
    assert await counter.forget_old() == 2


@pytest.mark.both_databases
async def test_an_unknown_user_costs_as_much_as_a_known_one(users: Users) -> None:
    await make_user(users, "ann@x.com", "owner")
    await make_user(users, "new@x.com", "owner", password=None)
    gone = await make_user(users, "gone@x.com", "viewer")
    await users.accounts.disable(gone.id, users.clock())
    said = set()
    for number, (email, password) in enumerate(
        [
            ("ann@x.com", "wrong"),
            ("new@x.com", ""),
            ("gone@x.com", PASSWORD),
            ("no@x.com", PASSWORD),
            ("", "\0" * 999),
            ("ann@x.com\0", "x"),
        ]
    ):
        before = users.passwords.verifications
        with pytest.raises(SignInRefused) as refused:
            await users.sign_in.with_password(email, password, Client(f"198.51.100.{number}"))
        assert users.passwords.verifications == before + 1, email
        said.add(str(refused.value))
    assert len(said) == 1


@pytest.mark.slow
async def test_a_real_hash_takes_as_long_without_a_password() -> None:
    """The dummy has the parameters of a real hash, so that their times differ by noise only."""
    passwords = Passwords()
    kept = await passwords.hash(PASSWORD)
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(12):
        known = number % 2 == 0
        began = time.perf_counter()
        assert not await passwords.verify(kept if known else None, "a wrong password")
        times[known].append(time.perf_counter() - began)
    known_s, unknown_s = (statistics.median(times[each][1:]) for each in (True, False))
    assert 1 / 2 < known_s / unknown_s < 2, times
    passwords.close()


async def test_two_hashes_at_once_and_a_bounded_queue() -> None:
    passwords = Passwords()
    quicken(passwords)
    running, most = 0, 0
    verify = passwords._verify

    def watched(kept: bytes | None, password: str) -> bool:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.002)
        running -= 1
        return verify(kept, password)

    passwords._verify = watched  # type: ignore[method-assign]
    outcomes = await asyncio.gather(*(passwords.verify(None, "x") for _ in range(60)), return_exceptions=True)
    assert most <= AT_ONCE
    assert sum(isinstance(outcome, PasswordsBusy) for outcome in outcomes) == 10
    passwords.close()


async def test_hashes_let_requests_go_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the threads that argon2 starts, which have the priority of the one that starts them."""
    nice: list[int] = []

    class Watching(PasswordHasher):
        def hash(self, *arguments: Any, **named: Any) -> str:
            nice.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            return super().hash(*arguments, **named)

    passwords = Passwords(Watching(time_cost=1, memory_cost=8, parallelism=1))
    await asyncio.gather(*(passwords.hash(PASSWORD) for _ in range(4)))
    passwords.close()
    ours = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert nice == [min(19, ours + 10)] * 4


async def test_a_hash_of_older_parameters_is_replaced_at_sign_in(users: Users, database: Database) -> None:
    user = await make_user(users, "ann@x.com", "owner")
    users.passwords._hasher = PasswordHasher(time_cost=2, memory_cost=16, parallelism=1)
    await users.sign_in.with_password("ann@x.com", PASSWORD, HOME)
    async with database.reading() as session:
        query = select(Credential.secret).where(Credential.user_id == user.id, Credential.kind == "password")
        kept = (await session.execute(query)).scalar_one()
    assert b"m=16,t=2" in kept
    assert not users.passwords.is_outdated(kept)


@pytest.mark.both_databases
async def test_a_code_is_good_once_at_any_gateway(users: Users, database: Database, bus: LocalBus) -> None:
    """The same step twice, at two gateways at once: one of them signs in."""
    other = Users(database, b"m" * 32, bus)
    quicken(other.passwords)
    key, user_id = await with_totp(users)
    steps = [await waiting(each) for each in (users, other)]
    code = totp.code_at(key, int(users.clock() / 1e6) // 30)
    outcomes = await asyncio.gather(
        *(each.sign_in.with_code(step, code, HOME) for each, step in zip((users, other), steps, strict=True)),
        return_exceptions=True,
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NewSession", "SignInRefused"]
    # Neither an earlier code that still lies within the tolerance.
    earlier = totp.code_at(key, int(users.clock() / 1e6) // 30 - 1)
    with pytest.raises(SignInRefused):
        await other.sign_in.check_code(user_id, earlier, HOME)
    await other.close()


async def test_guessed_codes_are_limited_and_do_not_lock_out_the_known_address(users: Users) -> None:
    key, user_id = await with_totp(users)
    await users.sign_in.with_code(await waiting(users), totp.code_at(key, int(users.clock() / 1e6) // 30), HOME)
    for number in range(5):
        with pytest.raises(SignInRefused):
            await users.sign_in.check_code(user_id, "12345x", Client(f"198.51.100.{number}"))
    with pytest.raises(TooManyAttempts):
        await users.sign_in.check_code(user_id, "12345x", Client("203.0.113.1"))
    code = totp.code_at(key, int(users.clock() / 1e6) // 30 + 1)
    await users.sign_in.check_code(user_id, code, HOME)


def test_what_counts_as_one_address() -> None:
    assert network_of("192.0.2.1") == network_of("::ffff:192.0.2.1") == "192.0.2.1"
    assert network_of("2001:db8:1:2:3::4") == network_of("2001:db8:1:2::") == "2001:db8:1:2::/64"
    assert network_of("") == ""
    assert len(network_of("x" * 1000)) == 64


async def with_totp(users: Users) -> tuple[bytes, object]:
    """Ann with an authenticator: its key and her id."""
    import base64

    user = await make_user(users, "ann@x.com", "owner")
    made = await users.second_factors.begin(user.id, users.clock())
    key = base64.b32decode(made.secret)
    codes = await users.second_factors.confirm(
        user.id, totp.code_at(key, int(users.clock() / 1e6) // 30 - 1), users.clock()
    )
    assert len(codes) == 10
    return key, user.id


async def waiting(users: Users) -> str:
    """The token of a sign-in of Ann's that waits for her code."""
    link = await users.sign_in.with_password("ann@x.com", PASSWORD, HOME)
    assert isinstance(link, Link)
    return link.token
