"""Second factors: an authenticator's one-time codes, each good once, and recovery codes, which are burned."""

from __future__ import annotations

from uuid import UUID

import structlog
from msgspec import Struct
from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from audit_log.record import record_change
from storage.database.base import from_instant, new_id
from storage.database.database import Database
from tenancy.users import totp
from tenancy.users.accounts import RECOVERY_CODE, TOTP, credential, locked_user
from tenancy.users.errors import SignInRefused, WrongState
from tenancy.users.identifiers import user_public_id
from tenancy.users.tables import Credential
from tenancy.users.tokens import SecretUnreadable, UserSecrets

log = structlog.get_logger(__name__)

_SECOND_US = 1_000_000
WRONG_CODE = "The code is wrong, was used before, or is too old."


class NewAuthenticator(Struct, frozen=True):
    """What a user enters into its authenticator; the repr leaves it out."""

    secret: str
    uri: str

    def __repr__(self) -> str:
        return "NewAuthenticator(…)"


class SecondFactors:
    """Adds, checks and removes second factors. Every method may raise DatabaseUnavailable.

    `now`: microseconds since the Unix epoch.
    """

    def __init__(self, database: Database, secrets: UserSecrets) -> None:
        self._database = database
        self._secrets = secrets

    async def begin(self, user_id: UUID, now: int) -> NewAuthenticator:
        """Make a key for the user's authenticator, in place of one that was not confirmed. It counts when `confirm` is
        given a code of it. Raises WrongState if the user has a second factor already, NoSuchUser."""
        # no entry: it counts when `confirm` records it
        key = totp.new_key()
        async with self._database.transaction() as session:
            user = await locked_user(session, self._database, user_id)
            present = await credential(session, user_id, TOTP)
            if present is not None and present.confirmed_at is not None:
                raise WrongState("there is a second factor already: remove it first")
            if present is not None:
                await session.delete(present)
                await session.flush()
            row = Credential(
                id=new_id(),
                user_id=user_id,
                kind=TOTP,
                identifier="",
                secret=b"",
                counter=0,
                created_at=from_instant(now),
            )
            row.secret = self._secrets.seal(key, row.id)
            session.add(row)
        return NewAuthenticator(totp.key_text(key), totp.provisioning_uri(key, user.email))

    async def confirm(self, user_id: UUID, code: str, now: int) -> list[str]:
        """Let the second factor count from now on; returns the recovery codes, which are shown once.

        Raises WrongState where none was begun, SignInRefused for a wrong code.
        """
        async with self._database.transaction() as session:
            await locked_user(session, self._database, user_id)
            row = await credential(session, user_id, TOTP)
            if row is None or row.confirmed_at is not None:
                raise WrongState("no second factor is being set up")
            step = self._matching_step(row, code, now)
            if step is None:
                raise SignInRefused(WRONG_CODE)
            row.counter, row.confirmed_at = step, from_instant(now)
            codes = await self._replace_recovery_codes(session, user_id, now)
            await _record(session, "user.second_factor_added", user_id)
        return codes

    async def renew_recovery_codes(self, user_id: UUID, now: int) -> list[str]:
        """Other recovery codes in place of the present ones. Raises WrongState without a second factor."""
        async with self._database.transaction() as session:
            await locked_user(session, self._database, user_id)
            row = await credential(session, user_id, TOTP)
            if row is None or row.confirmed_at is None:
                raise WrongState("there is no second factor")
            codes = await self._replace_recovery_codes(session, user_id, now)
            await _record(session, "user.recovery_codes_renewed", user_id)
        return codes

    async def remove(self, user_id: UUID, *, reason: str = "") -> bool:
        """Remove the second factor and its recovery codes; whether there was one. Raises NoSuchUser."""
        async with self._database.transaction() as session:
            await locked_user(session, self._database, user_id)
            kinds = (Credential.user_id == user_id) & Credential.kind.in_((TOTP, RECOVERY_CODE))
            done = await session.execute(delete(Credential).where(kinds))
            found = bool(getattr(done, "rowcount", 0))
            if found:
                await _record(session, "user.second_factor_removed", user_id, reason)
        return found

    async def recovery_codes_left(self, user_id: UUID) -> int:
        """How many recovery codes were not used."""
        where = (Credential.user_id == user_id) & (Credential.kind == RECOVERY_CODE) & Credential.used_at.is_(None)
        async with self._database.reading() as session:
            return len((await session.execute(select(Credential.id).where(where))).all())

    async def use(self, session: AsyncSession, user_id: UUID, code: str, now: int) -> str | None:
        """Use up a code in the caller's transaction: the kind of the second factor, or None if the code is wrong or
        was used. Of several uses of one code at once, one succeeds, whatever gateways they come to."""
        # no entry: signing in is recorded
        row = await credential(session, user_id, TOTP)
        if row is None or row.confirmed_at is None:
            return None
        step = self._matching_step(row, code, now)
        if step is not None:
            unused = (Credential.id == row.id) & (Credential.counter < step)
            done = await session.execute(update(Credential).where(unused).values(counter=step))
            return TOTP if getattr(done, "rowcount", 0) else None
        mac = self._secrets.mac("recovery-code", totp.plain_recovery_code(code), user_id.bytes)
        unused = (
            (Credential.user_id == user_id)
            & (Credential.kind == RECOVERY_CODE)
            & (Credential.secret == mac)
            & Credential.used_at.is_(None)
        )
        done = await session.execute(update(Credential).where(unused).values(used_at=from_instant(now)))
        return RECOVERY_CODE if getattr(done, "rowcount", 0) else None

    def _matching_step(self, row: Credential, code: str, now: int) -> int | None:
        try:
            key = self._secrets.unseal(row.secret, row.id)
        except SecretUnreadable:  # no code of it is right any more: the user sets it up anew
            log.warning("a second factor cannot be read under this master key", user=user_public_id(row.user_id))
            return None
        return totp.matching_step(key, code, now // _SECOND_US, row.counter)

    async def _replace_recovery_codes(self, session: AsyncSession, user_id: UUID, now: int) -> list[str]:
        # no entry: its callers record it
        old = (Credential.user_id == user_id) & (Credential.kind == RECOVERY_CODE)
        await session.execute(delete(Credential).where(old))
        codes = totp.new_recovery_codes()
        moment = from_instant(now)
        for number, code in enumerate(codes, 1):
            mac = self._secrets.mac("recovery-code", totp.plain_recovery_code(code), user_id.bytes)
            session.add(
                Credential(
                    id=new_id(),
                    user_id=user_id,
                    kind=RECOVERY_CODE,
                    identifier=str(number),
                    secret=mac,
                    counter=0,
                    created_at=moment,
                    confirmed_at=moment,
                )
            )
        return codes


async def _record(session: AsyncSession, action: str, user_id: UUID, reason: str = "") -> None:
    await record_change(session, action, target="user", target_id=user_public_id(user_id), reason=reason)
