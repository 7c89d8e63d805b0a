"""Tells all gateways that something about a user changed, so that they drop what they remember of its sessions; and
whose change it is while nobody is signed in yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from msgspec import structs

from audit_log.actors import acting_as, current_actor
from storage.bus import Bus, announce
from tenancy.users.identifiers import user_public_id

USER_CHANGED = "turnpike.users.changed"
"""The bus topic. The payload is the user's id."""
SESSION_CHANGED = "turnpike.sessions.changed"
"""The bus topic. The payload is the MAC of a session's token that was replaced."""


class UserChanges:
    """Publishes changes, after the transaction that made them."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def announce(self, user_id: UUID) -> None:
        """The user's sessions, roles or state changed."""
        await announce(self._bus, USER_CHANGED, user_id.bytes)

    async def announce_session(self, token_mac: bytes) -> None:
        """A session's token was replaced."""
        await announce(self._bus, SESSION_CHANGED, token_mac)


@contextmanager
def acting_as_user(user_id: UUID, email: str) -> Iterator[None]:
    """What was done anonymously so far is done by this user from now on, since it has proven who it is."""
    actor = current_actor()
    if actor.means == "anonymous":
        user = user_public_id(user_id)
        actor = structs.replace(actor, means="session", id=user, name=email, user=user)
    with acting_as(actor):
        yield
