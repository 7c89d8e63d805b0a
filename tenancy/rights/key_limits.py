"""What a key is limited to beyond its kind and role: permissions, addresses, models, lanes."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from storage.free_text import NAME, problem_of_text
from storage.reported_error import ReportedError
from tenancy.rights.permissions import PERMISSIONS, Permission, UnknownScope, permissions_of_scopes

MOST = 100
"""The most addresses, models or lanes that a key can be limited to."""
MOST_SCOPES = 2 * len(PERMISSIONS)

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class InvalidLimit(ReportedError, ValueError):
    """A limit that a key cannot have; `field` names it and `problem` says what is wrong."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class KeyLimits(Struct, frozen=True, omit_defaults=True):
    """What a key is limited to; None: not limited in this. Each is sorted.

    `networks`: CIDRs from which it may be used. `models`: names of served models, for inference. `lanes`: likewise.
    """

    permissions: tuple[Permission, ...] | None = None
    networks: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    lanes: tuple[str, ...] | None = None

    def allows_model(self, name: str) -> bool:
        """Whether the key may use this served model."""
        return self.models is None or name in self.models

    def allows_lane(self, name: str) -> bool:
        """Whether the key may use this lane."""
        return self.lanes is None or name in self.lanes


NO_LIMITS = KeyLimits()


def key_limits(
    *,
    scopes: Iterable[str] | None = None,
    networks: Iterable[str] | None = None,
    models: Iterable[str] | None = None,
    lanes: Iterable[str] | None = None,
) -> KeyLimits:
    """Limits as people write them; scopes are permissions or groups of them. Raises InvalidLimit naming the field."""
    return KeyLimits(
        permissions=None if scopes is None else _permissions(list(scopes)),
        networks=None if networks is None else tuple(str(one) for one in parse_networks(list(networks))),
        models=None if models is None else _names("models", list(models)),
        lanes=None if lanes is None else _names("lanes", list(lanes)),
    )


def parse_networks(texts: Sequence[str], field: str = "networks") -> tuple[Network, ...]:
    """CIDRs or single addresses, without doubles. Raises InvalidLimit."""
    _check_count(field, texts)
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text.strip()))
        except ValueError as error:
            raise InvalidLimit(field, f"{text[:80]!r} is no network such as 192.0.2.0/24: {error}") from error
    return tuple(dict.fromkeys(found))


def is_inside(address: str, networks: Iterable[Network]) -> bool:
    """Whether a client's address is in one of these networks; one that is no IP address is in none."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return any(parsed in network for network in networks)


def encode_limits(limits: KeyLimits) -> str:
    """As the database has them."""
    return msgspec.json.encode(limits).decode()


def decode_limits(text: str) -> KeyLimits:
    """As `encode_limits` wrote them. A permission that is no longer known is dropped: it can be given to nobody."""
    raw = msgspec.json.decode(text, type=dict[str, list[str]])
    if "permissions" in raw:
        raw["permissions"] = [one for one in raw["permissions"] if one in PERMISSIONS]
    return msgspec.convert(raw, KeyLimits)


def _permissions(scopes: list[str]) -> tuple[Permission, ...]:
    _check_count("scopes", scopes, MOST_SCOPES)
    try:
        return tuple(sorted(permissions_of_scopes(scopes)))
    except UnknownScope as error:
        raise InvalidLimit("scopes", str(error)) from error


def _names(field: str, names: list[str]) -> tuple[str, ...]:
    _check_count(field, names)
    for name in names:
        if problem := problem_of_text(name, NAME):
            raise InvalidLimit(field, problem)
    return tuple(sorted(set(names)))


def _check_count(field: str, values: Sequence[str], most: int = MOST) -> None:
    if not values:
        raise InvalidLimit(field, "an empty list allows nothing; leave it out for no limit")
    if len(values) > most:
        raise InvalidLimit(field, f"{len(values)} are more than {most}")
