"""Operators: who they are, and that enough of them stay for changes that take two."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from audit_log.actors import are_two_people, person_of
from storage.database import clock
from storage.reported_error import ReportedError
from tenancy.repositories import grant_of
from tenancy.rights.delegation import KeyGrant
from tenancy.rights.permissions import Permission
from tenancy.tables import ApiKey

_TO_TURN_OFF: frozenset[Permission] = frozenset({"approvals.decide", "platform.write"})
"""What both people need who turn approvals off."""


class TooFewOperators(ReportedError):
    """Fewer than two operators would have a key, while changes take two."""


def holder_of(key: ApiKey) -> str:
    """Who an operator's key is (`audit_log.actors.person_of`)."""
    return person_of(key.name, key.user)


def two_decide(keys: Iterable[ApiKey]) -> bool:
    """Whether keys of two different people can decide changes, and turn approvals off again, now."""
    return _are_two(_deciding(keys))


def decides(grant: KeyGrant) -> bool:
    """Whether a key that gives this can decide changes now, and turn approvals off, which takes more."""
    now = clock.instant()
    ended = grant.expires_at is not None and grant.expires_at <= now
    return not ended and grant.permissions() >= _TO_TURN_OFF


def check_two_remain(keys: Iterable[ApiKey], public_id: str) -> None:
    """Raise TooFewOperators where no two operators would remain to decide changes, or to turn approvals off, without
    this key; a key whose holder decides nothing may always go."""
    every = list(keys)
    remaining = _deciding(key for key in every if key.public_id != public_id)
    if not _are_two(remaining) and remaining != _deciding(every):
        raise TooFewOperators(
            "approvals take two operators, and fewer would have an owner's key: make another's key first "
            "(`turnpike keys create --operator --name WHO`), or turn approvals off"
        )


def _deciding(keys: Iterable[ApiKey]) -> frozenset[str]:
    return frozenset(holder_of(key) for key in keys if key.revoked_at is None and decides(grant_of(key)))


def _are_two(people: frozenset[str]) -> bool:
    return any(are_two_people(one, other) for one, other in combinations(people, 2))
