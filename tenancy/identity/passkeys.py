"""Passkeys (WebAuthn, discoverable credentials): registered, named, removed, and what one signs in with.

The authenticator must verify its user, so that a passkey is proof enough alone. A challenge is a one-time token, bound
to the browser by a cookie; the origin and its host (the RP id) are those under which the browser reached us.
"""

from __future__ import annotations

import base64
import hmac
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from msgspec import Struct
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from webauthn import (
    generate_authentication_options,
    generate_registration_options,
    options_to_json,
    verify_authentication_response,
    verify_registration_response,
)
from webauthn.helpers import parse_authentication_credential_json, parse_registration_credential_json
from webauthn.helpers.exceptions import WebAuthnException
from webauthn.helpers.structs import (
    AuthenticatorSelectionCriteria,
    PublicKeyCredentialDescriptor,
    ResidentKeyRequirement,
    UserVerificationRequirement,
)

from audit_log.record import record_change
from storage.database.base import from_instant, new_id, to_instant
from storage.database.database import Database
from storage.free_text import NAME, check_text
from tenancy.identity.refusals import IdentityRefused
from tenancy.identity.tables import Passkey
from tenancy.users.accounts import locked_user
from tenancy.users.attempts import MINUTE_S, Limit, network_of
from tenancy.users.errors import LinkRefused, NoSuchUser, WrongState
from tenancy.users.identifiers import user_public_id
from tenancy.users.links import LinkKind
from tenancy.users.service import Users
from tenancy.users.sessions import Client, NewSession, SessionRecord
from tenancy.users.tables import UserAccount

MOST_PASSKEYS = 20
"""Of one user."""
_MOST_BEGUN = 60
_NAME = "Turnpike"


class PasskeyFacts(Struct, frozen=True):
    """A passkey as its user sees it. Instants in microseconds since the Unix epoch."""

    id: UUID
    name: str
    created_at: int
    used_at: int | None


class Challenge(Struct, frozen=True):
    """What the browser's authenticator is asked, as JSON, and the cookie that binds it."""

    options: str
    cookie: str


class Passkeys:
    """The passkeys of all users. Every method may raise DatabaseUnavailable."""

    def __init__(self, database: Database, users: Users) -> None:
        self._database = database
        self._users = users

    async def begin_registration(self, signed_in: SessionRecord, origin: str) -> Challenge:
        """What to ask an authenticator that makes a passkey. Raises WrongState."""
        async with self._database.transaction() as session:
            present = await _of_user(session, signed_in.user_id)
            if len(present) >= MOST_PASSKEYS:
                raise WrongState(f"you have {MOST_PASSKEYS} passkeys, the most allowed: remove one first")
            challenge = await self._challenge(session, "new_passkey", signed_in.user_id)
        options = generate_registration_options(
            rp_id=_host(origin),
            rp_name=_NAME,
            user_id=signed_in.user_id.bytes,
            user_name=signed_in.email,
            user_display_name=signed_in.name,
            challenge=_bytes(challenge),
            authenticator_selection=AuthenticatorSelectionCriteria(
                resident_key=ResidentKeyRequirement.REQUIRED,
                require_resident_key=True,
                user_verification=UserVerificationRequirement.REQUIRED,
            ),
            exclude_credentials=[PublicKeyCredentialDescriptor(id=row.credential_id) for row in present],
        )
        return Challenge(options_to_json(options), challenge)

    async def register(
        self, signed_in: SessionRecord, cookie: str, credential: str, name: str, origin: str
    ) -> PasskeyFacts:
        """Keep the passkey that an authenticator made. Raises IdentityRefused, WrongState, InvalidText."""
        check_text("name", name, NAME)
        now, user_id = self._users.clock(), signed_in.user_id
        try:
            parsed = parse_registration_credential_json(credential)
            challenge = _challenge_of(parsed.response.client_data_json, cookie)
            async with self._database.transaction() as session:
                row = await self._users.links.take(session, "new_passkey", challenge, now)
                if row.user_id != user_id:
                    raise IdentityRefused("other_browser")
            verified = verify_registration_response(
                credential=parsed,
                expected_challenge=_bytes(challenge),
                expected_rp_id=_host(origin),
                expected_origin=origin,
                require_user_verification=True,
            )
        except (WebAuthnException, LinkRefused, ValueError, KeyError, TypeError) as error:
            raise IdentityRefused("passkey_refused", str(error)) from error
        async with self._database.transaction() as session:
            await locked_user(session, self._database, user_id)
            known = select(Passkey.id).where(Passkey.credential_id == verified.credential_id)
            if (await session.execute(known)).first() is not None:
                raise WrongState("this passkey is known already")
            passkey = Passkey(
                id=new_id(),
                user_id=user_id,
                credential_id=verified.credential_id,
                public_key=verified.credential_public_key,
                counter=verified.sign_count,
                name=name.strip(),
                created_at=from_instant(now),
                used_at=None,
            )
            session.add(passkey)
            await _record(session, "passkey_added", passkey)
        return _facts(passkey)

    async def begin_sign_in(self, origin: str, client: Client, user_id: UUID | None = None) -> Challenge:
        """What to ask an authenticator that has a passkey. `user_id`: of who proves itself again; None: whoever it
        is. Raises TooManyAttempts."""
        await self._users.attempts.take(
            [Limit(f"passkey-address/{network_of(client.address)}", _MOST_BEGUN, 5 * MINUTE_S)]
        )
        async with self._database.transaction() as session:
            present = [] if user_id is None else await _of_user(session, user_id)
            challenge = await self._challenge(session, "passkey", user_id)
        options = generate_authentication_options(
            rp_id=_host(origin),
            challenge=_bytes(challenge),
            allow_credentials=[PublicKeyCredentialDescriptor(id=row.credential_id) for row in present] or None,
            user_verification=UserVerificationRequirement.REQUIRED,
        )
        return Challenge(options_to_json(options), challenge)

    async def sign_in(self, cookie: str, credential: str, origin: str, client: Client) -> NewSession:
        """A session for who has the passkey. Raises IdentityRefused, TooManyAttempts."""
        async with self._users.sign_in.link_attempt(client):
            user_id = await self._verify(cookie, credential, origin, None)
            async with self._database.transaction() as session:
                user = await session.get_one(UserAccount, user_id)
                if user.disabled_at is not None:
                    raise IdentityRefused("user_disabled")
                now = self._users.clock()
                return await self._users.sign_in.open_session(session, user_id, "passkey", client, now)

    async def confirm(
        self, signed_in: SessionRecord, cookie: str, credential: str, origin: str, client: Client
    ) -> None:
        """Prove again who is signed in. Raises IdentityRefused, TooManyAttempts."""
        async with self._users.sign_in.link_attempt(client):
            await self._verify(cookie, credential, origin, signed_in.user_id)

    async def of_user(self, user_id: UUID) -> list[PasskeyFacts]:
        """A user's passkeys, the oldest first."""
        async with self._database.reading() as session:
            return [_facts(row) for row in await _of_user(session, user_id)]

    async def rename(self, user_id: UUID, passkey_id: UUID, name: str) -> PasskeyFacts:
        """Give a passkey another name. Raises NoSuchUser, InvalidText."""
        check_text("name", name, NAME)
        async with self._database.transaction() as session:
            row = await _own(session, user_id, passkey_id)
            if row.name != name.strip():
                row.name = name.strip()
                await _record(session, "passkey_renamed", row)
            return _facts(row)

    async def remove(self, user_id: UUID, passkey_id: UUID) -> None:
        """Remove a passkey. Raises NoSuchUser."""
        async with self._database.transaction() as session:
            row = await _own(session, user_id, passkey_id)
            await session.delete(row)
            await _record(session, "passkey_removed", row)

    async def _challenge(self, session: AsyncSession, kind: LinkKind, user_id: UUID | None) -> str:
        link = await self._users.links.create_within(session, user_id, kind, self._users.clock())
        return link.token

    async def _verify(self, cookie: str, credential: str, origin: str, user_id: UUID | None) -> UUID:
        """Whose passkey has signed the challenge of this browser, which is used up. Raises IdentityRefused."""
        try:
            return await self._verified(cookie, credential, origin, user_id)
        except (WebAuthnException, LinkRefused, ValueError, KeyError, TypeError) as error:
            await self._users.sign_in.record_failure(user_id, "passkey", "passkey_refused")
            raise IdentityRefused("passkey_refused", str(error)) from error
        except IdentityRefused as error:
            await self._users.sign_in.record_failure(user_id, "passkey", error.reason)
            raise

    async def _verified(self, cookie: str, credential: str, origin: str, user_id: UUID | None) -> UUID:
        now = self._users.clock()
        parsed = parse_authentication_credential_json(credential)
        challenge = _challenge_of(parsed.response.client_data_json, cookie)
        async with self._database.transaction() as session:
            step = await self._users.links.take(session, "passkey", challenge, now)
        if step.user_id != user_id:
            raise IdentityRefused("other_browser")
        async with self._database.transaction() as session:
            query = self._database.locked(select(Passkey).where(Passkey.credential_id == parsed.raw_id))
            row: Passkey | None = (await session.execute(query)).scalar_one_or_none()
            handle = parsed.response.user_handle
            if row is None or user_id not in (None, row.user_id) or handle not in (None, row.user_id.bytes):
                raise IdentityRefused("passkey_unknown")
            verified = verify_authentication_response(
                credential=parsed,
                expected_challenge=_bytes(challenge),
                expected_rp_id=_host(origin),
                expected_origin=origin,
                credential_public_key=row.public_key,
                credential_current_sign_count=0,
                require_user_verification=True,
            )
            if row.counter and verified.new_sign_count <= row.counter:
                raise IdentityRefused("passkey_cloned", f"{verified.new_sign_count} after {row.counter}")
            row.counter, row.used_at = verified.new_sign_count, from_instant(now)
            return row.user_id


def _challenge_of(client_data: bytes, cookie: str) -> str:
    """The challenge that was signed, if it is the one of this browser. Raises IdentityRefused, ValueError."""
    challenge = msgspec.json.decode(client_data, type=dict[str, Any]).get("challenge")
    if not isinstance(challenge, str) or not hmac.compare_digest(challenge.encode(), cookie.encode()):
        raise IdentityRefused("other_browser")
    return challenge


def _bytes(challenge: str) -> bytes:
    return base64.urlsafe_b64decode(challenge + "=" * (-len(challenge) % 4))


def _host(origin: str) -> str:
    return urlsplit(origin).hostname or ""


async def _of_user(session: AsyncSession, user_id: UUID) -> list[Passkey]:
    query = select(Passkey).where(Passkey.user_id == user_id).order_by(Passkey.id)
    return list((await session.execute(query)).scalars())


async def _own(session: AsyncSession, user_id: UUID, passkey_id: UUID) -> Passkey:
    row = await session.get(Passkey, passkey_id)
    if row is None or row.user_id != user_id:
        raise NoSuchUser(f"there is no passkey {passkey_id}")
    return row


def _facts(row: Passkey) -> PasskeyFacts:
    used = None if row.used_at is None else to_instant(row.used_at)
    return PasskeyFacts(row.id, row.name, to_instant(row.created_at), used)


async def _record(session: AsyncSession, verb: str, row: Passkey) -> None:
    await record_change(
        session,
        f"user.{verb}",
        target="user",
        target_id=user_public_id(row.user_id),
        after={"passkey": row.name},
    )
