"""Cache domains: a project's partitions are apart from one another, and hang on its keys."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from prompt_cache.promise.cache_domains import CacheDomains
from prompt_cache.promise.scope_keys import ProjectKey, ScopeKeys
from protocol.replicas import owner_of

TENANT, PROJECT, OTHER = UUID(int=1), UUID(int=2), UUID(int=3)
NAMES = st.text(min_size=1, max_size=64)


class Keys(ScopeKeys):
    """The same data key for every project, without a database."""

    def __init__(self, key: bytes) -> None:
        self._key = ProjectKey(1, key, 0)

    def known(self, project_id: UUID) -> ProjectKey | None:
        return self._key


def domains(secret: bytes = b"s" * 32, key: bytes = b"m" * 32) -> CacheDomains:
    return CacheDomains(secret, Keys(key), retention=60.0)


@given(NAMES, NAMES)
def test_scopes_are_equal_exactly_where_project_and_partition_are(one: str, other: str) -> None:
    made = domains()
    scopes = {
        (project, partition): made.project(TENANT, project, partition)
        for project in (PROJECT, OTHER)
        for partition in ("", one, other)
    }
    for fields in ("scope", "root"):
        assert len({getattr(scope, fields) for scope in scopes.values()}) == len(scopes)
    assert len({scope.data_key for scope in scopes.values()}) == 2, "one for each project"
    assert made.project(TENANT, PROJECT, one) == domains().project(TENANT, PROJECT, one)


@given(NAMES)
def test_a_partition_hangs_on_its_projects_secrets(partition: str) -> None:
    scope = domains().project(TENANT, PROJECT, partition)
    assert domains(secret=b"x" * 32).project(TENANT, PROJECT, partition).root != scope.root
    whole = domains().project(TENANT, PROJECT)
    assert owner_of(scope.scope) == whole.scope
    assert (scope.data_key, scope.retention, scope.limits) == (whole.data_key, whole.retention, whole.limits)
    rekeyed = domains(key=b"x" * 32).project(TENANT, PROJECT, partition)
    assert (rekeyed.root, rekeyed.scope) == (scope.root, scope.scope)
    assert rekeyed.data_key != scope.data_key


def test_a_prompt_is_in_the_scope_of_its_partition() -> None:
    made = domains()
    segments, scopes = made.segments(TENANT, PROJECT, 100, "p")
    assert scopes == (made.project(TENANT, PROJECT, "p"),)
    assert [(segment.until, segment.scope) for segment in segments] == [(100, scopes[0].scope)]
    assert made.segments(TENANT, PROJECT, 100)[1] == (made.project(TENANT, PROJECT),)
