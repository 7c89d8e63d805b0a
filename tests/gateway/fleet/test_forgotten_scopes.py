"""Replicas are told which scopes to forget: once a connection, those that were away too, and never the newer scope."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gateway.fleet.forgotten_scopes import ForgottenScopes
from gateway.fleet.replica_link import AwakeClock, FleetOptions, ReplicaLink
from prompt_cache.promise.cache_domains import CacheDomains
from prompt_cache.promise.scope_keys import ScopeKeys
from protocol.addresses import parse_address
from protocol.replicas import Forget, Scope
from storage.database.base import new_id
from storage.database.database import Database
from tests.gateway.stack import Stack
from tests.loops import looks_after_an_error

TENANT, PROJECT = new_id(), new_id()


class Link:
    """What ForgottenScopes asks of a link."""

    def __init__(self) -> None:
        self.up = True
        self.hello = object()
        self.forgot: list[str] = []
        self.introduced: list[Scope] = []

    def forget(self, scope: str) -> None:
        self.forgot.append(scope)

    def introduce(self, scope: Scope) -> None:
        self.introduced.append(scope)

    def reconnect(self) -> None:
        self.up, self.hello, self.forgot, self.introduced = True, object(), [], []


def forgotten(database: Database, *links: Any) -> tuple[ForgottenScopes, ScopeKeys, CacheDomains]:
    keys = ScopeKeys(database, b"m" * 32)
    domains = CacheDomains(b"s" * 32, keys, retention=60.0)
    return ForgottenScopes(keys, domains, links), keys, domains


async def test_a_key_that_another_process_destroys(database: Database) -> None:
    here, away = Link(), Link()
    away.up = False
    relay, _, domains = forgotten(database, here, away)
    await domains.prepare(TENANT, PROJECT)
    scope = domains.project(TENANT, PROJECT)
    await relay.look()
    relay.tell()
    assert here.forgot == []
    assert domains.project(TENANT, PROJECT) is scope

    await ScopeKeys(database, b"m" * 32).destroy(TENANT, PROJECT, "asked by its owner")
    for _ in range(3):
        await relay.look()
        relay.tell()
    assert here.forgot == [scope.scope]
    assert away.forgot == []
    assert not domains.ready(PROJECT), "the destroyed key is not used any more"
    await domains.prepare(TENANT, PROJECT)
    newer = domains.project(TENANT, PROJECT)
    assert newer.scope != scope.scope

    away.reconnect()
    here.reconnect()
    relay.tell()
    relay.tell()
    assert here.forgot == away.forgot == [scope.scope], "each connection is told once, of the old scope alone"


async def test_who_remembers_prompts_hears_of_each_changed_scope(database: Database) -> None:
    keys, told = ScopeKeys(database, b"m" * 32), list[str]()
    domains = CacheDomains(b"s" * 32, keys, retention=60.0)
    relay = ForgottenScopes(keys, domains, (), on_changed=told.append)
    await domains.prepare(TENANT, PROJECT)
    scope = domains.project(TENANT, PROJECT).scope
    await relay.look()
    told.clear()
    elsewhere = ScopeKeys(database, b"m" * 32)
    await elsewhere.set_policy(TENANT, PROJECT, retention=0, limits=())
    await relay.look()
    assert told == [scope], "it is kept otherwise"
    await elsewhere.destroy(TENANT, PROJECT, "asked by its owner")
    await relay.look()
    assert set(told[1:]) == {scope}


async def test_a_gateway_that_starts_later_tells_too(database: Database) -> None:
    _, keys, domains = forgotten(database)
    await domains.prepare(TENANT, PROJECT)
    name = domains.project(TENANT, PROJECT).scope
    await keys.destroy(TENANT, PROJECT, "asked")
    link = Link()
    relay, _, _ = forgotten(database, link)
    await relay.look()
    relay.tell()
    assert link.forgot == [name]


async def test_a_changed_policy_reaches_gateways(database: Database) -> None:
    relay, _, domains = forgotten(database)
    await domains.prepare(TENANT, PROJECT)
    await relay.look()
    await ScopeKeys(database, b"m" * 32).set_policy(TENANT, PROJECT, retention=0, limits=())
    await relay.look()
    assert domains.project(TENANT, PROJECT).retention == 0.0


async def test_replicas_hear_of_a_changed_policy_without_a_request(database: Database) -> None:
    """Also from a gateway that has never had a request of the project, and those that were away."""
    here, away = Link(), Link()
    away.up = False
    other = new_id()
    _, keys, elsewhere = forgotten(database)
    for project in (PROJECT, other):
        await elsewhere.prepare(TENANT, project)
    relay, _, _ = forgotten(database, here, away)
    await relay.look()
    relay.tell()
    assert here.introduced == [], "these keys are new, their replicas have nothing of them"
    for retention in (0, 30):
        await keys.set_policy(TENANT, PROJECT, retention=retention)
        for _ in range(2):
            await relay.look()
            relay.tell()
    name = elsewhere.name(TENANT, PROJECT, 1)
    assert [(scope.scope, scope.retention) for scope in here.introduced] == [(name, 0.0), (name, 30.0)]
    away.reconnect()
    relay.tell()
    assert [scope.retention for scope in away.introduced] == [30.0]

    await keys.destroy(TENANT, PROJECT, "asked by its owner")
    await relay.look()
    away.reconnect()
    relay.tell()
    assert (away.forgot, away.introduced) == ([name], [])


async def test_a_replica_that_comes_later_is_told(database: Database) -> None:
    """As those that are found by DNS do: there is none when the gateway starts."""
    links: list[Any] = []
    keys = ScopeKeys(database, b"m" * 32)
    domains = CacheDomains(b"s" * 32, keys, retention=60.0)
    relay = ForgottenScopes(keys, domains, links)
    await domains.prepare(TENANT, PROJECT)
    scope = domains.project(TENANT, PROJECT)
    await keys.destroy(TENANT, PROJECT, "asked by its owner")
    await relay.look()
    late = Link()
    links.append(late)
    relay.tell()
    assert late.forgot == [scope.scope]


async def test_a_project_is_forgotten_under_a_running_gateway(stack: Stack) -> None:
    """Another process destroys its key: the replica hears of it, and the next request has another scope and key."""

    async def ask() -> Scope:
        async with stack.openai() as client:
            await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hello"}])
        return stack.replica.scopes[-1]

    first = await ask()
    assert (len(first.data_key), first.retention) == (32, 3600.0)
    assert await ask() == first
    elsewhere = ScopeKeys(stack.database, b"m" * 32)
    assert await elsewhere.destroy(stack.tenant.id, stack.project.id, "asked by its owner") == 1
    await stack.until(lambda: stack.replica.forgotten == [first.scope])
    second = await ask()
    assert second.root == first.root
    assert second.scope != first.scope
    assert second.data_key != first.data_key
    assert stack.replica.forgotten == [first.scope]


def test_a_link_sends_a_scope_again_when_it_changed() -> None:
    sent: list[Any] = []
    listener: Any = SimpleNamespace()
    link = ReplicaLink(
        parse_address("unix:/nowhere"), "gateway", b"k" * 32, listener, options=FleetOptions(), clock=AwakeClock(1.0)
    )
    link.send = sent.append  # type: ignore[method-assign]
    first, second = Scope("a", b"r", b"k"), Scope("a", b"r", b"k", (), 5.0)
    for scope in (first, first, second, second):
        link.introduce(scope)
    link.forget("a")
    link.introduce(second)
    assert sent == [first, second, Forget("a"), second]


async def test_an_unexpected_error_is_not_the_last_look(database: Database) -> None:
    relay, *_ = forgotten(database)
    assert await looks_after_an_error(relay) == 2
