"""Operators: who they are, and that enough of them stay for changes that take two.

A key that expires does not count among those that stay. When the last of them had expired, nobody could approve
anything any more, nor turn approvals off, and making another key takes two as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations
from typing import TypeAlias

from audit_log.actors import are_two_people, person_of
from storage.database import clock
from storage.reported_error import ReportedError
from tenancy.repositories import grant_of
from tenancy.rights.delegation import KeyGrant
from tenancy.rights.permissions import Permission
from tenancy.tables import ApiKey

TO_APPOINT: Permission = "platform.write"
"""What lets somebody make others who have a role at the platform."""
_TO_TURN_OFF: frozenset[Permission] = frozenset({"approvals.decide", "platform.write"})
"""What both people need who turn approvals off."""


class TooFewOperators(ReportedError):
    """Fewer than two operators would have a key, while changes take two."""


def holder_of(key: ApiKey) -> str:
    """Who an operator's key is (`audit_log.actors.person_of`)."""
    return person_of(key.name, key.user)


def two_decide(keys: Iterable[ApiKey]) -> bool:
    """Whether keys of two different people, which do not expire, can decide changes and turn approvals off again."""
    return _are_two(_holders(_grants(keys), _decides_for_good))


def anybody_appoints(keys: Iterable[ApiKey]) -> bool:
    """Whether there is an operator's key that is valid now and lets its holder make other operators."""
    return any(
        grant is not None and _is_valid(grant) and TO_APPOINT in grant.permissions() for _, grant in _grants(keys)
    )


def check_two_remain(keys: Iterable[ApiKey], public_id: str, after: KeyGrant | None = None) -> None:
    """Raise TooFewOperators where no two operators would remain to decide changes, or to turn approvals off, now or for
    good, once this key is revoked, or gives what is in `after`. A key whose holder decides nothing may always go."""
    before = _grants(keys)
    later = [(key, after if key.public_id == public_id else grant) for key, grant in before]
    for decides in (_decides, _decides_for_good):
        remaining = _holders(later, decides)
        if not _are_two(remaining) and _holders(before, decides) - remaining:
            raise TooFewOperators(
                "approvals take two operators, and fewer would have an owner's key that does not expire: make "
                "another's key first (`turnpike keys create --operator --name WHO`), or turn approvals off"
            )


_Grants: TypeAlias = list[tuple[ApiKey, KeyGrant | None]]
"""Each key with what it gives, None if it is revoked."""


def _grants(keys: Iterable[ApiKey]) -> _Grants:
    return [(key, grant_of(key) if key.revoked_at is None else None) for key in keys]


def _decides(grant: KeyGrant) -> bool:
    """Whether such a key can decide changes now, and turn approvals off, which takes more."""
    return _is_valid(grant) and grant.permissions() >= _TO_TURN_OFF


def _is_valid(grant: KeyGrant) -> bool:
    return grant.expires_at is None or grant.expires_at > clock.instant()


def _decides_for_good(grant: KeyGrant) -> bool:
    return grant.expires_at is None and _decides(grant)


def _holders(grants: _Grants, decides: Callable[[KeyGrant], bool]) -> frozenset[str]:
    return frozenset(holder_of(key) for key, grant in grants if grant is not None and decides(grant))


def _are_two(people: frozenset[str]) -> bool:
    return any(are_two_people(one, other) for one, other in combinations(people, 2))
