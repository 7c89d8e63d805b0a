"""What each role may do, as data: the matrix of roles and permissions.

A role is held at a scope: the whole platform (operators), a tenant, or a project. A permission in PLATFORM_ONLY is
given by roles at the platform alone, since what it changes belongs to nobody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias, get_args

Role: TypeAlias = Literal["owner", "admin", "finance", "developer", "viewer"]
ROLES: tuple[Role, ...] = get_args(Role)

Permission: TypeAlias = Literal[
    "inference",
    "models.read",
    "usage.read",
    "requests.read",
    "content.read",
    "caches.read",
    "caches.write",
    "keys.read",
    "keys.write",
    "projects.read",
    "projects.write",
    "members.read",
    "members.write",
    "limits.read",
    "limits.write",
    "budgets.read",
    "budgets.write",
    "balance.read",
    "balance.write",
    "payments.read",
    "payments.write",
    "terms.read",
    "terms.write",
    "prices.read",
    "prices.propose",
    "prices.approve",
    "periods.read",
    "periods.write",
    "parties.read",
    "parties.write",
    "sellers.read",
    "sellers.write",
    "invoices.read",
    "invoices.write",
    "exports.read",
    "exports.write",
    "webhooks.read",
    "webhooks.write",
    "audit.read",
    "approvals.read",
    "approvals.decide",
    "fleet.read",
    "fleet.write",
    "tenants.read",
    "tenants.write",
    "platform.read",
    "platform.write",
]
PERMISSIONS: tuple[Permission, ...] = get_args(Permission)


def _roles(letters: str) -> frozenset[Role]:
    """The roles with these first letters."""
    return frozenset(role for role in ROLES if role[0] in letters)


ROLE_PERMISSIONS: Mapping[Permission, frozenset[Role]] = {
    "inference": _roles("oad"),
    "models.read": _roles("oafdv"),
    "usage.read": _roles("oafdv"),
    "requests.read": _roles("oafdv"),
    "content.read": _roles("oad"),
    "caches.read": _roles("oafdv"),
    "caches.write": _roles("oad"),
    "keys.read": _roles("oadv"),
    "keys.write": _roles("oad"),
    "projects.read": _roles("oafdv"),
    "projects.write": _roles("oa"),
    "members.read": _roles("oav"),
    "members.write": _roles("oa"),
    "limits.read": _roles("oafdv"),
    "limits.write": _roles("oa"),
    "budgets.read": _roles("oafdv"),
    "budgets.write": _roles("oaf"),
    "balance.read": _roles("oafv"),
    "balance.write": _roles("of"),
    "payments.read": _roles("oafv"),
    "payments.write": _roles("of"),
    "terms.read": _roles("oafv"),
    "terms.write": _roles("of"),
    "prices.read": _roles("oafdv"),
    "prices.propose": _roles("oaf"),
    "prices.approve": _roles("of"),
    "periods.read": _roles("oafv"),
    "periods.write": _roles("of"),
    "parties.read": _roles("oafv"),
    "parties.write": _roles("of"),
    "sellers.read": _roles("oafv"),
    "sellers.write": _roles("of"),
    "invoices.read": _roles("oafv"),
    "invoices.write": _roles("of"),
    "exports.read": _roles("oafv"),
    "exports.write": _roles("of"),
    "webhooks.read": _roles("oafdv"),
    "webhooks.write": _roles("oaf"),
    "audit.read": _roles("oaf"),
    "approvals.read": _roles("oaf"),
    "approvals.decide": _roles("of"),
    "fleet.read": _roles("oafdv"),
    "fleet.write": _roles("oa"),
    "tenants.read": _roles("oafdv"),
    "tenants.write": _roles("oa"),
    "platform.read": _roles("oafdv"),
    "platform.write": _roles("o"),
}
"""Permission → the roles that have it."""

PLATFORM_ONLY: frozenset[Permission] = frozenset(
    {
        "balance.write",
        "terms.write",
        "prices.propose",
        "prices.approve",
        "periods.write",
        "sellers.read",
        "sellers.write",
        "invoices.write",
        "approvals.read",
        "approvals.decide",
        "fleet.read",
        "fleet.write",
        "tenants.write",
        "platform.read",
        "platform.write",
    }
)

PROJECT_KEY_PERMISSIONS: frozenset[Permission] = frozenset(
    {"inference", "models.read", "usage.read", "requests.read", "caches.read", "caches.write", "prices.read"}
)
"""What a project's key may do, in its project, unless its scopes say less."""

SCOPE_GROUPS: Mapping[str, frozenset[Permission]] = {
    "read": frozenset(one for one in PERMISSIONS if one.endswith(".read")) - {"content.read"},
    **{
        group: frozenset(one for one in PERMISSIONS if one.split(".")[0] == group)
        for group in sorted({one.split(".")[0] for one in PERMISSIONS if "." in one})
    },
}
"""Short names for several permissions, which a key's scopes may use: `read` is all that looks without changing
anything, except at stored content; `keys` is `keys.read` and `keys.write`, and so for every other object. A key keeps
the permissions that a group had when it was made."""


class UnknownScope(ValueError):
    """A scope that is neither a permission nor a group of them."""


def permissions_of_scopes(scopes: Iterable[str]) -> frozenset[Permission]:
    """The permissions that these scopes name, each a permission or a group. Raises UnknownScope."""
    named: set[Permission] = set()
    known: Mapping[str, Permission] = {one: one for one in PERMISSIONS}
    for scope in scopes:
        if scope in known:
            named.add(known[scope])
        elif scope in SCOPE_GROUPS:
            named |= SCOPE_GROUPS[scope]
        else:
            raise UnknownScope(f"{scope[:80]!r} is no scope; one of {', '.join((*SCOPE_GROUPS, *PERMISSIONS))}")
    return frozenset(named)


def permissions_of_role(role: Role, *, platform: bool) -> frozenset[Permission]:
    """What a role may do at the platform, or at a tenant and its projects."""
    held = frozenset(one for one in PERMISSIONS if role in ROLE_PERMISSIONS[one])
    return held if platform else held - PLATFORM_ONLY
