"""The ids of users, sessions and invitations as others see them, and the form of e-mail addresses."""

from __future__ import annotations

import re
from uuid import UUID

from storage.database.public_ids import PREFIXES, public_id
from tenancy.users.errors import FieldRefused

USER_PREFIX, SESSION_PREFIX, INVITATION_PREFIX = (PREFIXES[kind] for kind in ("user", "session", "invitation"))
MOST_EMAIL = 254
_EMAIL = re.compile(r"[^\s@<>()\[\],;:\\\"]+@[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?", re.ASCII)


def user_public_id(user_id: UUID) -> str:
    """A user's public id."""
    return public_id("user", user_id)


def session_public_id(session_id: UUID) -> str:
    """A session's public id, which is not its token."""
    return public_id("session", session_id)


def invitation_public_id(invitation_id: UUID) -> str:
    """An invitation's public id, which is not its token."""
    return public_id("invitation", invitation_id)


def check_email(text: str, *, field: str = "email") -> str:
    """The e-mail address as it is kept: in lower case. Raises FieldRefused."""
    email = text.strip().lower()
    if len(email) > MOST_EMAIL or not email.isprintable() or not _EMAIL.fullmatch(email):
        raise FieldRefused(field, "not an e-mail address")
    return email
