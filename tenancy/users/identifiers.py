"""The ids of users, sessions and invitations as others see them, and the form of e-mail addresses."""

from __future__ import annotations

import re
from uuid import UUID

from tenancy.users.errors import FieldRefused

USER_PREFIX, SESSION_PREFIX, INVITATION_PREFIX = "user_", "session_", "invitation_"
MOST_EMAIL = 254
_EMAIL = re.compile(r"[^\s@<>()\[\],;:\\\"]+@[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?", re.ASCII)


def user_public_id(user_id: UUID) -> str:
    """A user's public id."""
    return f"{USER_PREFIX}{user_id.hex}"


def session_public_id(session_id: UUID) -> str:
    """A session's public id, which is not its token."""
    return f"{SESSION_PREFIX}{session_id.hex}"


def invitation_public_id(invitation_id: UUID) -> str:
    """An invitation's public id, which is not its token."""
    return f"{INVITATION_PREFIX}{invitation_id.hex}"


def check_email(text: str, *, field: str = "email") -> str:
    """The e-mail address as it is kept: in lower case. Raises FieldRefused."""
    email = text.strip().lower()
    if len(email) > MOST_EMAIL or not _EMAIL.fullmatch(email):
        raise FieldRefused(field, "not an e-mail address")
    return email
