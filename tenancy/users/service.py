"""All that there is about users, put together for one process."""

from __future__ import annotations

from storage.bus import Bus
from storage.database import clock
from storage.database.database import Database
from tenancy.users.accounts import Accounts
from tenancy.users.attempts import AttemptCounter, SqlAttemptCounter
from tenancy.users.changes import UserChanges
from tenancy.users.links import Links
from tenancy.users.members import Members
from tenancy.users.password_changes import PasswordChanges
from tenancy.users.passwords import Passwords
from tenancy.users.second_factors import SecondFactors
from tenancy.users.session_authenticator import SessionAuthenticator
from tenancy.users.sessions import Sessions
from tenancy.users.sign_in import SignIn
from tenancy.users.tokens import UserSecrets


class Clock:
    """The present, in microseconds since the Unix epoch; `ahead` moves it, for tests."""

    def __init__(self) -> None:
        self.ahead = 0

    def __call__(self) -> int:
        """Microseconds since the Unix epoch."""
        return clock.instant() + self.ahead


class Users:
    """Accounts, memberships, sessions and the ways to sign in. A gateway calls `start` before use; whoever made it
    calls `close` at the end.

    `ttl`: seconds for which a session is cached, by default as the bus allows. `timeout`: seconds to
    wait for the database when a session is not cached. `attempts`: where attempts are counted, by default in it.
    """

    def __init__(
        self,
        database: Database,
        master_key: bytes,
        bus: Bus,
        *,
        ttl: float | None = None,
        timeout: float = 5.0,
        attempts: AttemptCounter | None = None,
    ) -> None:
        secrets, changes = UserSecrets(master_key), UserChanges(bus)
        self.secrets, self.changes = secrets, changes
        self.clock = Clock()
        self._sql_attempts = SqlAttemptCounter(database, lambda: self.clock() / 1_000_000)
        self.passwords = Passwords()
        self.accounts = Accounts(database, changes)
        self.members = Members(database, changes)
        self.sessions = Sessions(database, secrets, changes)
        self.links = Links(database, secrets)
        self.second_factors = SecondFactors(database, secrets)
        self.attempts = attempts or self._sql_attempts
        self.sign_in = SignIn(
            database,
            passwords=self.passwords,
            sessions=self.sessions,
            links=self.links,
            second_factors=self.second_factors,
            attempts=self.attempts,
            clock=self.clock,
        )
        self.password_changes = PasswordChanges(
            database,
            passwords=self.passwords,
            links=self.links,
            sign_in=self.sign_in,
            changes=changes,
            clock=self.clock,
        )
        self.authenticator = SessionAuthenticator(self.sessions, bus, self.clock, ttl=ttl, timeout=timeout)

    async def start(self) -> None:
        """Subscribe to changes that other processes make."""
        await self.authenticator.start()

    async def close(self) -> None:
        """Wait for what is written in the background, and end the threads."""
        await self.authenticator.close()
        self.passwords.close()

    async def forget_old(self) -> int:
        """Remove sessions, links and counts that nothing looks at any more; how many. Raises DatabaseUnavailable."""
        now = self.clock()
        removed = await self.sessions.forget_old(now) + await self.links.forget_old(now)
        return removed + await self._sql_attempts.forget_old()
