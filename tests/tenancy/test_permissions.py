"""Who may what: the matrix written out, and that scopes, roles and delegation only ever narrow."""

from __future__ import annotations

from typing import get_args
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.database.base import new_id
from tenancy.rights.delegation import GivesTooMuch, KeyGrant, KeyKind, check_delegation, may_end
from tenancy.rights.key_limits import (
    NO_LIMITS,
    InvalidLimit,
    KeyLimits,
    decode_limits,
    encode_limits,
    is_inside,
    key_limits,
)
from tenancy.rights.key_limits import parse_networks as networks
from tenancy.rights.permissions import (
    PERMISSIONS,
    PLATFORM_ONLY,
    PROJECT_KEY_PERMISSIONS,
    ROLES,
    SCOPE_GROUPS,
    Permission,
    Role,
    permissions_of_scopes,
)
from tenancy.rights.principals import Membership, Principal
from tenancy.users.roles import may_give, may_take, may_take_over
from tests.fast import examples

HERE, THERE, PROJECT, OTHER = new_id(), new_id(), new_id(), new_id()

# What each role may do, a column for each of owner, admin, finance, developer, viewer. P: at the platform only.
MATRIX = """
inference           o a . d .
models.read         o a f d v
usage.read          o a f d v
requests.read       o a f d v
content.read        o a . d .
caches.read         o a f d v
caches.write        o a . d .
keys.read           o a . d v
keys.write          o a . d .
projects.read       o a f d v
projects.write      o a . . .
members.read        o a . . v
members.write       o a . . .
limits.read         o a f d v
limits.write        o a . . .
budgets.read        o a f d v
budgets.write       o a f . .
balance.read        o a f . v
balance.write       o . f . .   P
payments.read       o a f . v
payments.write      o . f . .
terms.read          o a f . v
terms.write         o . f . .   P
prices.read         o a f d v
prices.propose      o a f . .   P
prices.approve      o . f . .   P
periods.read        o a f . v
periods.write       o . f . .   P
parties.read        o a f . v
parties.write       o . f . .
sellers.read        o a f . v   P
sellers.write       o . f . .   P
invoices.read       o a f . v
invoices.write      o . f . .   P
exports.read        o a f . v
exports.write       o . f . .
webhooks.read       o a f d v
webhooks.write      o a f . .
audit.read          o a f . .
approvals.read      o a f . .   P
approvals.decide    o . f . .   P
fleet.read          o a f d v   P
fleet.write         o a . . .   P
tenants.read        o a f d v
tenants.write       o a . . .   P
platform.read       o a f d v   P
platform.write      o . . . .   P
"""
ROWS = {line.split()[0]: line.split()[1:] for line in MATRIX.strip().splitlines()}


def test_every_permission_is_in_the_matrix() -> None:
    assert set(ROWS) == set(PERMISSIONS)


@pytest.mark.parametrize("permission", PERMISSIONS)
def test_each_role_may_what_the_matrix_says(permission: Permission) -> None:
    cells, platform_only = ROWS[permission][:5], ROWS[permission][5:] == ["P"]
    for role, cell in zip(ROLES, cells, strict=True):
        allowed = cell == role[0]
        platform, tenant, project = [
            Principal("session", new_id(), "s", memberships=(Membership(role, *scope),))
            for scope in ((), (HERE,), (HERE, PROJECT))
        ]
        assert platform.may(permission) == allowed
        assert platform.may(permission, HERE, PROJECT) == allowed
        assert tenant.may(permission, HERE) == (allowed and not platform_only)
        assert tenant.may(permission, HERE, PROJECT) == (allowed and not platform_only)
        assert project.may(permission, HERE, PROJECT) == (allowed and not platform_only)
        for wrong in ((None, None), (THERE, None), (THERE, PROJECT)):
            assert not tenant.may(permission, *wrong)
        for wrong in ((None, None), (HERE, None), (HERE, OTHER), (THERE, PROJECT)):
            assert not project.may(permission, *wrong)


@pytest.mark.parametrize("permission", PERMISSIONS)
def test_a_projects_key_may_what_inference_needs(permission: Permission) -> None:
    key = Principal("project_key", new_id(), "k", memberships=(Membership("owner", HERE, PROJECT),))
    expected = permission in (
        "inference", "models.read", "usage.read", "requests.read", "caches.read", "caches.write", "prices.read",
    )  # fmt: skip
    assert key.may(permission, HERE, PROJECT) == expected == (permission in PROJECT_KEY_PERMISSIONS)
    assert not key.may(permission, HERE)
    assert not key.may(permission, HERE, OTHER)


_roles, _permissions = st.sampled_from(ROLES), st.sampled_from(PERMISSIONS)
_scopes = st.none() | st.lists(st.sampled_from((*SCOPE_GROUPS, *PERMISSIONS)), min_size=1, max_size=6)
_places = st.sampled_from([(None, None), (HERE, None), (HERE, PROJECT), (HERE, OTHER), (THERE, None)])
_names = st.none() | st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3)
_cidrs = st.none() | st.lists(
    st.sampled_from(["10.0.0.0/8", "10.1.0.0/16", "192.0.2.1", "::/0", "2001:db8::/32", "0.0.0.0/0"]),
    min_size=1,
    max_size=3,
)
_limits = st.builds(
    lambda scopes, cidrs, models, lanes: key_limits(scopes=scopes, networks=cidrs, models=models, lanes=lanes),
    _scopes, _cidrs, _names, _names,
)  # fmt: skip
_ends = st.none() | st.integers(1, 5)


def _principal(grant: KeyGrant) -> Principal:
    limits = grant.limits
    return Principal(
        {"project": "project_key", "admin": "admin_key", "operator": "operator_key"}[grant.kind],  # type: ignore[arg-type]
        new_id(),
        "key",
        memberships=(Membership(grant.role, grant.tenant_id, grant.project_id),),
        tenant_id=grant.tenant_id,
        project_id=grant.project_id,
        permissions=None if limits.permissions is None else frozenset(limits.permissions),
        limits=limits,
        expires_at=grant.expires_at,
    )


@st.composite
def _grants(draw: st.DrawFn) -> KeyGrant:
    kind: KeyKind = draw(st.sampled_from(get_args(KeyKind)))
    owner: UUID | None = None if kind == "operator" else draw(st.sampled_from([HERE, THERE]))
    project = draw(st.sampled_from([PROJECT, OTHER])) if kind == "project" else None
    return KeyGrant(kind, owner, project, draw(_roles), draw(_limits), draw(_ends))


@settings(max_examples=examples(300), deadline=None)
@given(_grants(), _limits, _permissions, _places)
def test_scopes_never_widen(
    grant: KeyGrant, limits: KeyLimits, permission: Permission, place: tuple[UUID | None, UUID | None]
) -> None:
    unlimited = _principal(KeyGrant(grant.kind, grant.tenant_id, grant.project_id, grant.role))
    limited = _principal(KeyGrant(grant.kind, grant.tenant_id, grant.project_id, grant.role, limits))
    if limited.may(permission, *place):
        assert unlimited.may(permission, *place)
        assert limits.permissions is None or permission in limits.permissions


@settings(max_examples=examples(600), deadline=None)
@given(_grants(), _grants(), _places, st.sampled_from(["10.1.2.3", "10.9.9.9", "192.0.2.1", "2001:db8::1", "8.8.8.8"]))
def test_a_key_gives_nothing_that_its_maker_has_not(
    maker: KeyGrant, made: KeyGrant, place: tuple[UUID | None, UUID | None], address: str
) -> None:
    try:
        check_delegation(_principal(maker), made)
    except GivesTooMuch:
        return
    for permission in PERMISSIONS:
        if _principal(made).may(permission, *place):
            assert _principal(maker).may(permission, *place), permission
    assert maker.expires_at is None or (made.expires_at is not None and made.expires_at <= maker.expires_at)
    for name in ("a", "b", "c", "d"):
        assert maker.limits.allows_model(name) or not made.limits.allows_model(name)
        assert maker.limits.allows_lane(name) or not made.limits.allows_lane(name)
    own, given_ = maker.limits.networks, made.limits.networks
    if own is not None:
        assert given_ is not None
        assert is_inside(address, networks(own)) or not is_inside(address, networks(given_))


@settings(max_examples=examples(200), deadline=None)
@given(_grants())
def test_a_key_can_make_one_like_itself_and_end_it(grant: KeyGrant) -> None:
    check_delegation(_principal(grant), grant)
    holder = _principal(grant)
    manages = "keys.write" if grant.tenant_id else "platform.write"
    assert may_end(holder, grant) == holder.may(manages, grant.tenant_id, grant.project_id)


@pytest.mark.slow
@settings(max_examples=examples(1500), deadline=None)
@given(_grants(), _grants(), _grants(), _roles, _places)
def test_a_key_rules_over_nobody_that_its_maker_does_not(
    maker: KeyGrant, made: KeyGrant, victim: KeyGrant, role: Role, place: tuple[UUID | None, UUID | None]
) -> None:
    """Whatever the roles, scopes and limits: a key gives, takes and ends nothing that its maker could not."""
    own, key = _principal(maker), _principal(made)
    try:
        check_delegation(own, made)
    except GivesTooMuch:
        return
    assert may_end(own, victim) or not may_end(key, victim)
    assert may_take(own, role, *place) or not may_take(key, role, *place)
    assert may_give(own, role, *place) or not may_give(key, role, *place)
    there = (Membership(role, *place),)
    assert may_take_over(own, there) or not may_take_over(key, there)


@settings(max_examples=examples(600), deadline=None)
@given(st.lists(st.builds(lambda role, place: Membership(role, *place), _roles, _places), max_size=3), _roles, _places)
def test_nobody_gives_or_takes_a_role_that_may_do_more(
    held: list[Membership], role: Role, place: tuple[UUID | None, UUID | None]
) -> None:
    giver = Principal("session", new_id(), "user", memberships=tuple(held))
    given_ = Principal("session", new_id(), "other", memberships=(Membership(role, *place),))
    more = [one for one in PERMISSIONS if given_.may(one, *place) and not giver.may(one, *place)]
    assert may_give(giver, role, *place) == may_take(giver, role, *place)
    assert may_give(giver, role, *place) == (giver.may("members.write", *place) and not more)


def test_a_role_beyond_ones_own_is_refused_whatever_the_scopes() -> None:
    for role, scopes in (("developer", ["keys"]), ("admin", ["members"]), ("finance", ["read"])):
        maker = _principal(KeyGrant("admin", HERE, None, role))  # type: ignore[arg-type]
        with pytest.raises(GivesTooMuch, match="role: the role owner"):
            check_delegation(maker, KeyGrant("admin", HERE, limits=key_limits(scopes=scopes)))
        assert not may_end(maker, KeyGrant("admin", HERE, limits=key_limits(scopes=scopes)))


@settings(max_examples=examples(100), deadline=None)
@given(_limits)
def test_limits_are_read_as_they_were_written(limits: KeyLimits) -> None:
    assert decode_limits(encode_limits(limits)) == limits


def test_groups_are_permissions_and_a_forgotten_permission_gives_nothing() -> None:
    assert permissions_of_scopes(["keys"]) == {"keys.read", "keys.write"}
    assert permissions_of_scopes(["read"]) >= {"usage.read", "invoices.read"}
    assert not {one for one in permissions_of_scopes(["read"]) if not one.endswith(".read")}
    assert "content.read" not in permissions_of_scopes(["read"])
    assert permissions_of_scopes(["inference", "usage.read"]) == {"inference", "usage.read"}
    assert decode_limits('{"permissions":["keys.read","flying.write"]}') == KeyLimits(permissions=("keys.read",))
    assert decode_limits("{}") == NO_LIMITS
    assert set(PERMISSIONS) >= PLATFORM_ONLY
    with pytest.raises(InvalidLimit):
        key_limits(scopes=["keys.*"])


def test_addresses_are_inside_networks_whatever_their_form() -> None:
    allowed = networks(["192.0.2.0/24", "2001:db8::/32"])
    for address, inside in (
        ("192.0.2.7", True), ("::ffff:192.0.2.7", True), ("2001:db8::7", True), ("192.0.3.7", False),
        ("2001:db9::7", False), ("", False), ("192.0.2.7, 10.0.0.1", False), ("192.0.2.007", False),
    ):  # fmt: skip
        assert is_inside(address, allowed) == inside, address


def test_a_role_that_we_do_not_know_is_given_and_taken_by_nobody() -> None:
    """A newer version's, of which we cannot tell what it may do."""
    owner = Principal("session", new_id(), "user", memberships=(Membership("owner"),))
    for place in ((None, None), (HERE, None), (HERE, PROJECT)):
        assert not may_take(owner, "auditor", *place)  # type: ignore[arg-type]
        assert not may_take_over(owner, (Membership("auditor", *place),))  # type: ignore[arg-type]
        assert not Principal("session", new_id(), "x", memberships=(Membership("auditor", *place),)).may("keys.read")  # type: ignore[arg-type]
