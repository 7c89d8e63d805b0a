"""Operators: who they are, and that enough of them stay for changes that take two."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from storage.reported_error import ReportedError
from tenancy.delegation import KeyGrant
from tenancy.key_limits import decode_limits
from tenancy.tables import ApiKey


class TooFewOperators(ReportedError):
    """Fewer than two operators would have a key, while changes take two."""


def same_person(name: str, other: str) -> bool:
    """Whether two names are one person's."""
    return name.strip().casefold() == other.strip().casefold()


def deciding_operators(keys: Iterable[ApiKey]) -> frozenset[str]:
    """The names of those who can decide changes now, by keys that are neither revoked nor expired nor too narrow."""
    now = datetime.now(UTC)
    return frozenset(
        key.name.strip().casefold()
        for key in keys
        if key.revoked_at is None
        and (key.expires_at is None or key.expires_at > now)
        and "approvals.decide" in _grant(key).permissions()
    )


def check_two_remain(keys: Iterable[ApiKey], public_id: str) -> None:
    """Raise TooFewOperators where fewer than two operators would remain to decide changes, or to turn approvals off,
    without this key."""
    every = list(keys)
    remaining = deciding_operators(key for key in every if key.public_id != public_id)
    if len(remaining) < 2 and any(key.public_id == public_id for key in every):
        raise TooFewOperators(
            "approvals take two operators, and fewer would have a key: make another's key first "
            "(`turnpike keys create --operator --name WHO`), or turn approvals off"
        )


def _grant(key: ApiKey) -> KeyGrant:
    return KeyGrant("operator", role=key.role or "owner", limits=decode_limits(key.limits))  # type: ignore[arg-type]
