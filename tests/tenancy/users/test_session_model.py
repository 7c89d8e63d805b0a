"""Sessions against a model so simple that it is plainly right: any order of sign-ins, requests, changes and time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from audit_log.actors import acting_as
from storage.bus import LocalBus
from storage.database.database import Database
from tenancy.rights.principals import Membership, Principal
from tenancy.users.members import Scope
from tenancy.users.service import Users
from tenancy.users.sessions import ABSOLUTE_US, FRESH_US, IDLE_US, PREVIOUS_US, NewSession
from tests.fast import examples
from tests.gateway.browser import CLIENT, PASSWORD, TESTER, make_user
from tests.tenancy.users.conftest import quicken

_USE_US = 60_000_000
"""How exactly the time of the last use is known."""


class Session:
    """What a session is: its tokens, the last of them the present one, and its times."""

    def __init__(self, user: int, token: str, now: int) -> None:
        self.user = user
        self.tokens = [token]
        self.previous_until = 0
        self.made = self.proven = self.seen = now
        self.rotate = self.over = False


class SessionMachine(RuleBasedStateMachine):
    """Two users with any number of sessions."""

    database: ClassVar[Database]
    loop: ClassVar[asyncio.AbstractEventLoop]
    tokens: Bundle[str] = Bundle("tokens")

    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[Session] = []
        self.disabled = [False, False]
        self.roles = ["viewer", "viewer"]

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def here() -> Any:
            with acting_as(TESTER):
                done = await work
            await asyncio.sleep(0)  # the bus delivers
            await self.users.authenticator.close()
            return done

        return self.loop.run_until_complete(here())

    @initialize()
    def begin(self) -> None:
        async def make() -> None:
            # Entries stay until they are dropped: a change that is not announced would be seen.
            self.bus = LocalBus()
            self.users = Users(self.database, b"m" * 32, self.bus, ttl=3600.0)
            quicken(self.users.passwords)
            await self.users.start()
            number = id(self)
            self.people = [await make_user(self.users, f"u{each}-{number}@x.com", "viewer") for each in range(2)]
            self.owner = Principal("command", self.people[0].id, "t", "t", (Membership("owner"),))

        self.loop.run_until_complete(make())
        self.now = self.users.clock()
        self.users.clock = self.users.sign_in._clock = self.users.authenticator._clock = lambda: self.now  # type: ignore[assignment]

    @rule(target=tokens, user=st.integers(0, 1))
    def sign_in(self, user: int) -> Any:
        try:
            made = self.run(self.users.sign_in.with_password(self.people[user].email, PASSWORD, CLIENT))
        except Exception:
            assert self.disabled[user]
            return multiple()
        assert not self.disabled[user]
        assert isinstance(made, NewSession)
        self.sessions.append(Session(user, made.token, self.now))
        return made.token

    @rule(target=tokens, token=tokens)
    def use(self, token: str) -> Any:
        session = next(each for each in self.sessions if token in each.tokens)
        current = token == session.tokens[-1]
        previous = len(session.tokens) > 1 and token == session.tokens[-2] and self.now < session.previous_until
        alive = (current or previous) and self.alive(session)
        found = self.run(self.users.authenticator.authenticate(token))
        assert (found is not None) == alive
        if found is None:
            return multiple()
        assert found.fresh == (self.now - session.proven < FRESH_US)
        assert [one.role for one in found.session.memberships] == [self.roles[session.user]]
        assert (found.new_token is not None) == (session.rotate and current)
        if self.now - session.seen >= _USE_US:
            session.seen = self.now
        if found.new_token is None:
            return multiple()
        assert found.new_token not in session.tokens
        session.tokens.append(found.new_token)
        session.rotate, session.previous_until = False, self.now + PREVIOUS_US
        return found.new_token

    @rule(target=tokens, token=tokens)
    def prove(self, token: str) -> Any:
        session = next(each for each in self.sessions if token in each.tokens)
        mac = self.users.sessions.token_mac(token)
        found = self.run(self.users.sessions.find(mac))
        if found is None or not self.alive(session):
            return multiple()
        new = self.run(self.users.sessions.rotate(found.id, mac, self.now, proven=True))
        assert (new is not None) == (token == session.tokens[-1])
        if new is None:
            return multiple()
        session.tokens.append(new)
        session.proven, session.previous_until, session.rotate = self.now, 0, False
        return new

    @rule(seconds=st.sampled_from([1, 31, 61, 901, 6 * 3600, 12 * 3600, 86_400]))
    def wait(self, seconds: int) -> None:
        self.now += seconds * 1_000_000

    @rule(user=st.integers(0, 1), role=st.sampled_from(["viewer", "admin", "finance"]))
    def change_role(self, user: int, role: Any) -> None:
        by = Principal("command", self.owner.id, "other", "other", self.owner.memberships)
        self.run(self.users.members.set(by, self.people[user].id, Scope(), role, self.now))
        if role != self.roles[user]:
            self.roles[user] = role
            for session in self.sessions:
                session.rotate = session.rotate or (session.user == user and not session.over)

    @rule(user=st.integers(0, 1))
    def sign_out_everywhere(self, user: int) -> None:
        self.run(self.users.sessions.revoke_all(self.people[user].id, self.now))
        self.end(user)

    @rule(token=tokens)
    def sign_out(self, token: str) -> None:
        session = next(each for each in self.sessions if token in each.tokens)
        found = self.run(self.users.sessions.find(self.users.sessions.token_mac(session.tokens[-1])))
        self.run(self.users.sessions.revoke(self.people[session.user].id, found.id, self.now))
        session.over = True

    @rule(user=st.integers(0, 1))
    def disable_or_enable(self, user: int) -> None:
        accounts, user_id = self.users.accounts, self.people[user].id
        if self.disabled[user]:
            self.run(accounts.enable(user_id))
        else:
            self.run(accounts.disable(user_id, self.now))
            self.end(user)
        self.disabled[user] = not self.disabled[user]

    @invariant()
    def lists_are_what_is_alive(self) -> None:
        if not hasattr(self, "users"):
            return
        for user in range(2):
            listed = self.run(self.users.sessions.alive(self.people[user].id, self.now))
            wanted = [each for each in self.sessions if each.user == user and self.alive(each)]
            assert len(listed) == len(wanted)

    def alive(self, session: Session) -> bool:
        in_time = self.now < session.made + ABSOLUTE_US and self.now - session.seen < IDLE_US
        return in_time and not session.over and not self.disabled[session.user]

    def end(self, user: int) -> None:
        for session in self.sessions:
            session.over = session.over or session.user == user

    def teardown(self) -> None:
        if hasattr(self, "users"):
            self.run(self.users.close())


@pytest.mark.slow
def test_sessions_behave_like_their_model(empty_again: Callable[[], str]) -> None:
    loop = asyncio.new_event_loop()
    database = loop.run_until_complete(Database.open(empty_again()))
    try:
        machine = type("Here", (SessionMachine,), {"database": database, "loop": loop})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples(8),
                stateful_step_count=25,
                phases=[Phase.generate],
                database=None,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )
    finally:
        loop.run_until_complete(database.close())
        loop.close()
