"""Operators: who they are, and that enough of them stay for changes that take two."""

from __future__ import annotations

from collections.abc import Iterable

from audit_log.actors import person_of
from storage.database import clock
from storage.reported_error import ReportedError
from tenancy.repositories import grant_of
from tenancy.rights.delegation import KeyGrant
from tenancy.tables import ApiKey


class TooFewOperators(ReportedError):
    """Fewer than two operators would have a key, while changes take two."""


def holder_of(key: ApiKey) -> str:
    """Who an operator's key is (`audit_log.actors.person_of`)."""
    return person_of(key.name, key.user)


def deciding_operators(keys: Iterable[ApiKey]) -> frozenset[str]:
    """Those who can decide changes now, by keys that are neither revoked nor expired nor too narrow."""
    return frozenset(holder_of(key) for key in keys if key.revoked_at is None and decides(grant_of(key)))


def decides(grant: KeyGrant) -> bool:
    """Whether a key that gives this can decide changes now."""
    now = clock.instant()
    ended = grant.expires_at is not None and grant.expires_at <= now
    return not ended and "approvals.decide" in grant.permissions()


def check_two_remain(keys: Iterable[ApiKey], public_id: str) -> None:
    """Raise TooFewOperators where fewer than two operators would remain to decide changes, or to turn approvals off,
    without this key; a key whose holder decides nothing may always go."""
    every = list(keys)
    remaining = deciding_operators(key for key in every if key.public_id != public_id)
    if len(remaining) < 2 and remaining != deciding_operators(every):
        raise TooFewOperators(
            "approvals take two operators, and fewer would have a key: make another's key first "
            "(`turnpike keys create --operator --name WHO`), or turn approvals off"
        )
