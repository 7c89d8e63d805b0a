"""Tells all gateways that something about a user changed, so that they drop what they remember of its sessions; and
whose change it is while nobody is signed in yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import structlog
from msgspec import structs

from audit_log.actors import acting_as, current_actor
from storage.bus import Bus, BusUnavailable
from tenancy.users.identifiers import user_public_id

USER_CHANGED = "turnpike.users.changed"
"""The bus topic. The payload is the user's id."""
SESSION_CHANGED = "turnpike.sessions.changed"
"""The bus topic. The payload is the MAC of a session's token that was replaced."""

log = structlog.get_logger(__name__)


class UserChanges:
    """Publishes changes, after the transaction that made them."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def announce(self, user_id: UUID) -> bool:
        """The user's sessions, roles or state changed. False if the bus was down: caches then expire by themselves."""
        return await self._publish(USER_CHANGED, user_id.bytes)

    async def announce_session(self, token_mac: bytes) -> bool:
        """A session's token was replaced."""
        return await self._publish(SESSION_CHANGED, token_mac)

    async def _publish(self, topic: str, payload: bytes) -> bool:
        try:
            await self._bus.publish(topic, payload)
        except BusUnavailable:
            log.warning("the bus is down: what changed about a user is noticed when caches expire", topic=topic)
            return False
        return True


@contextmanager
def acting_as_user(user_id: UUID, email: str) -> Iterator[None]:
    """What was done anonymously so far is done by this user from now on, since it has proven who it is."""
    actor = current_actor()
    if actor.means == "anonymous":
        user = user_public_id(user_id)
        actor = structs.replace(actor, means="session", id=user, name=email, user=user)
    with acting_as(actor):
        yield
