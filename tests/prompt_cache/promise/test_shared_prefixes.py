"""Prefixes that operators share: who finds them, in which scopes, and what is left once they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from prompt_cache.promise.cache_domains import CacheDomains
from prompt_cache.promise.scope_keys import ScopeKeys
from prompt_cache.promise.shared_prefixes import EVERYBODY, MOST_SHARED, SharedPrefixes, SharingRefused
from storage.database.database import Database
from storage.free_text import InvalidText
from tests.loops import looks_after_an_error

MODEL = ("tiny", "digest")
ONE, OTHER = UUID(int=1), UUID(int=2)
FIRST, SECOND, FOREIGN = UUID(int=11), UUID(int=12), UUID(int=21)
PROMPT = list(range(1000, 1300))


@pytest.fixture
async def domains(database_url: str) -> AsyncIterator[CacheDomains]:
    database = await Database.open(database_url)
    keys = ScopeKeys(database, b"m" * 32)
    made = CacheDomains(b"s" * 32, keys, retention=60.0, shared=SharedPrefixes(database, keys))
    for tenant, project in ((ONE, FIRST), (ONE, SECOND), (OTHER, FOREIGN)):
        await made.prepare(tenant, project)
    yield made
    await database.close()


def shared_of(domains: CacheDomains) -> SharedPrefixes:
    assert domains.shared is not None
    return domains.shared


def scopes(domains: CacheDomains, tenant: UUID, project: UUID, tokens: list[int], partition: str = "") -> list[object]:
    """Until which token which scope reaches; the project's own is `own`."""
    segments, introduced = domains.prompt_segments(tenant, project, MODEL, tokens, partition)
    assert [segment.scope for segment in segments] == [scope.scope for scope in introduced]
    assert all(scope.retention == 60.0 for scope in introduced)
    own = domains.project(tenant, project, partition).scope
    return [(segment.until, "own" if segment.scope == own else segment.scope) for segment in segments]


@pytest.mark.both_databases
async def test_whole_blocks_are_shared_within_a_tenant(domains: CacheDomains) -> None:
    shared = shared_of(domains)
    made = await shared.share("tenant", ONE, MODEL, PROMPT[:200], reason="one system prompt")
    assert (made.tokens, made.shared_by, made.reason) == (192, "tests", "one system prompt")
    assert await shared.share("tenant", ONE, MODEL, PROMPT[:192], reason="again") == made
    assert scopes(domains, ONE, FIRST, PROMPT) == [(300, "own")], "the gateway does not know yet"
    await shared.look()
    name = domains.project(ONE, made.id).scope
    assert scopes(domains, ONE, FIRST, PROMPT) == scopes(domains, ONE, SECOND, PROMPT) == [(192, name), (300, "own")]
    for tokens in (PROMPT[:192], PROMPT[:191], [*PROMPT[:191], 7, *PROMPT[192:]]):
        assert scopes(domains, ONE, FIRST, tokens) == [(len(tokens), "own")]
    assert scopes(domains, OTHER, FOREIGN, PROMPT) == [(300, "own")]
    assert scopes(domains, ONE, FIRST, PROMPT, "a key of the client's") == [(300, "own")]
    other = domains.prompt_segments(ONE, FIRST, ("tiny", "another template"), PROMPT)
    assert len(other[0]) == 1


async def test_what_is_public_comes_before_what_is_a_tenants(domains: CacheDomains) -> None:
    shared = shared_of(domains)
    everybodys = await shared.share("public", ONE, MODEL, PROMPT[:64], reason="a")
    longer = await shared.share("tenant", ONE, MODEL, PROMPT[:128], reason="b")
    await shared.share("tenant", ONE, MODEL, PROMPT[:64], reason="no longer than the public one")
    await shared.look()
    public, tenants = (domains.project(one.tenant_id, one.id).scope for one in (everybodys, longer))
    assert everybodys.tenant_id == EVERYBODY
    assert scopes(domains, ONE, FIRST, PROMPT) == [(64, public), (128, tenants), (300, "own")]
    assert scopes(domains, OTHER, FOREIGN, PROMPT) == [(64, public), (300, "own")]


async def test_the_end_destroys_the_key_and_says_who_and_why(domains: CacheDomains) -> None:
    shared = shared_of(domains)
    made = await shared.share("tenant", ONE, MODEL, PROMPT, reason="a")
    await shared.look()
    ended = await shared.end(made.id, reason="it had a secret in it")
    await shared.look()
    assert scopes(domains, ONE, FIRST, PROMPT) == [(300, "own")]
    assert await shared.listed() == []
    assert await shared.listed(ended=True) == [ended]
    assert (ended.ended_by, ended.end_reason) == ("tests", "it had a secret in it")
    assert domains.project(ONE, made.id).data_key == b""
    with pytest.raises(SharingRefused):
        await shared.end(made.id, reason="again")
    again = await shared.share("tenant", ONE, MODEL, PROMPT, reason="without it")
    assert again.id != made.id


@pytest.mark.both_databases
async def test_a_prefix_does_not_end_while_its_key_lives(
    domains: CacheDomains, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = shared_of(domains)
    made = await shared.share("tenant", ONE, MODEL, PROMPT, reason="a")

    def fails(*of: object, **more: object) -> None:
        raise RuntimeError("lost")

    with monkeypatch.context() as broken:
        # The audit entry is the last statement of the key's destruction.
        broken.setattr("prompt_cache.promise.scope_keys.record_change", fails)
        with pytest.raises(RuntimeError, match="lost"):
            await shared.end(made.id, reason="it had a secret in it")
    assert await shared.listed() == [made], "it can be ended again"
    ended = await shared.end(made.id, reason="it had a secret in it")
    assert await shared.listed(ended=True) == [ended]


async def test_a_key_that_outlived_its_prefix_is_destroyed(domains: CacheDomains) -> None:
    shared = shared_of(domains)
    made = await shared.share("tenant", ONE, MODEL, PROMPT, reason="a")
    ended = await shared.end(made.id, reason="it had a secret in it")
    await domains.prepare(ONE, made.id)  # a gateway that had not looked again made the next key
    assert domains.project(ONE, made.id).data_key
    assert await shared.end(made.id, reason="again") == ended
    await domains.prepare(ONE, FIRST)
    with pytest.raises(SharingRefused):
        await shared.end(made.id, reason="again")


@pytest.mark.slow
async def test_what_cannot_be_shared_is_refused(domains: CacheDomains) -> None:
    shared = shared_of(domains)
    with pytest.raises(SharingRefused, match="too few"):
        await shared.share("tenant", ONE, MODEL, PROMPT[:63], reason="a")
    with pytest.raises(InvalidText):
        await shared.share("tenant", ONE, MODEL, PROMPT, reason="")
    for number in range(MOST_SHARED):
        await shared.share("tenant", ONE, MODEL, [number] * 64, reason="a")
    with pytest.raises(SharingRefused, match="the most"):
        await shared.share("tenant", ONE, MODEL, PROMPT, reason="a")


@pytest.mark.both_databases
async def test_those_shared_at_once_are_counted_one_after_the_other(
    domains: CacheDomains, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever shares them; what is shared twice is one."""
    monkeypatch.setattr("prompt_cache.promise.shared_prefixes.MOST_SHARED", 2)
    shared = shared_of(domains)
    same = await asyncio.gather(*(shared.share("tenant", ONE, MODEL, PROMPT, reason="a") for _ in range(4)))
    assert same == same[:1] * 4
    sharing = [
        shared.share(reach, tenant, MODEL, [number] * 64, reason="a")
        for number, (reach, tenant) in enumerate([("tenant", ONE), ("tenant", OTHER), ("public", ONE)] * 2)
    ]
    done = await asyncio.gather(*sharing, return_exceptions=True)
    assert sum(isinstance(one, SharingRefused) for one in done) == 5
    assert len(await shared.listed()) == 2


async def test_an_unexpected_error_is_not_the_last_look(domains: CacheDomains) -> None:
    assert await looks_after_an_error(shared_of(domains)) == 2
