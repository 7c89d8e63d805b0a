"""A real replica process asks for the adapters that it lacks, and answers as an engine that has them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from model_files.adapter_file import pack, read_packed
from prompt_cache.model_digest import text_digest
from protocol.adapters import AdapterPart, DropAdapter, WantAdapter, adapter_name, digest_of
from protocol.replicas import Heartbeat
from protocol.requests import Abort
from tests import adapter_files
from tests.engine.conftest import SCOPES, VOCABULARY, generate, make_bench
from tests.engine.fake_gateway import Client, ReplicaProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("connections")]
ALL = tuple(SCOPES.values())
PROMPT = [(11 * i + i * i) % VOCABULARY for i in range(200)]


@pytest_asyncio.fixture
async def replica(tmp_path: Path, tiny_model: Path) -> AsyncIterator[ReplicaProcess]:
    process = await ReplicaProcess.start(tmp_path, tiny_model)
    yield process
    if process.status is None:
        await process.kill()


def content(model: Path, seed: int = 1, hidden: int = 48) -> tuple[str, bytes]:
    """An adapter's digest and its content."""
    shapes = {name: (out, hidden if size == 48 else size) for name, (out, size) in adapter_files.SHAPES.items()}
    packed = pack(adapter_files.config(), adapter_files.safetensors(adapter_files.matrices(seed=seed, shapes=shapes)))
    return adapter_name(read_packed(packed, text_digest(model)).digest, "a"), packed


async def wanted(client: Client) -> str:
    """The digest of the next adapter that the replica asks for."""
    while True:
        message = await client.hear()
        assert message is not None
        if isinstance(message, WantAdapter):
            return message.name


def send(client: Client, digest: str, packed: bytes, part: int = 5000) -> None:
    for at in range(0, len(packed), part):
        client.send(AdapterPart(digest, at, len(packed), packed[at : at + part]))


def expected(model: Path, digest: str, packed: bytes) -> list[int]:
    bench = make_bench(model, adapters=1)
    assert bench.engine.adapters is not None
    bench.engine.adapters.base = text_digest(model)
    bench.engine.adapters.take(digest, packed)
    return bench.one(generate("a", PROMPT, 12, adapter=digest)).tokens


async def test_what_is_lacking_is_asked_for_once_and_then_there(replica: ReplicaProcess, tiny_model: Path) -> None:
    digest, packed = content(tiny_model)
    client = await Client.dial(replica.path)
    client.send(*ALL, generate("base", PROMPT, 12))
    client.send(generate("first", PROMPT, 12, adapter=digest), generate("second", PROMPT, 12, adapter=digest))
    assert await wanted(client) == digest
    send(client, digest, packed)
    await client.finished("base", "first", "second")
    client.send(generate("third", PROMPT, 12, adapter=digest))
    await client.finished("third")
    tokens = expected(tiny_model, digest, packed)
    assert client.tokens["first"] == client.tokens["second"] == client.tokens["third"] == tokens
    assert client.tokens["base"] == make_bench(tiny_model).one(generate("a", PROMPT, 12)).tokens != tokens
    client.send(DropAdapter(digest), generate("fourth", PROMPT, 12, adapter=digest))
    assert await wanted(client) == digest
    await client.close()


async def test_an_adapter_that_is_away_may_be_asked_for_later(replica: ReplicaProcess, tiny_model: Path) -> None:
    digest, packed = content(tiny_model)
    client = await Client.dial(replica.path)
    client.send(*ALL, generate("a", PROMPT, 12, adapter=digest))
    await wanted(client)
    client.send(AdapterPart(digest, 0, 0, error="away"))
    await client.finished("a")
    assert client.done["a"].reason == "rejected"
    assert client.done["a"].refusal is not None
    client.send(generate("b", PROMPT, 12, adapter=digest))
    await wanted(client)
    send(client, digest, packed)
    await client.finished("b")
    assert client.done["b"].reason == "length"
    await client.close()


async def test_what_does_not_fit_or_is_another_is_refused_for_good(replica: ReplicaProcess, tiny_model: Path) -> None:
    digest, packed = content(tiny_model, hidden=40)
    client = await Client.dial(replica.path)
    client.send(*ALL, generate("wide", PROMPT, 12, adapter=digest))
    await wanted(client)
    send(client, digest, packed)
    client.send(generate("other", PROMPT, 12, adapter="0" * 64))
    assert await wanted(client) == "0" * 64
    send(client, "0" * 64, content(tiny_model)[1])
    await client.finished("wide", "other")
    for id, problem in (("wide", "40 inputs"), ("other", "not that")):
        done = client.done[id]
        assert (done.reason, done.invalid, done.refusal) == ("rejected", "adapter", None)
        assert problem in (done.error or "")
    client.send(generate("again", PROMPT, 12, adapter=digest))  # nobody sends it again
    await client.finished("again")
    assert client.done["again"].invalid == "adapter"
    await client.close()


async def test_a_request_that_waits_can_be_aborted_and_another_gateway_can_bring_it(
    replica: ReplicaProcess, tiny_model: Path
) -> None:
    digest, packed = content(tiny_model)
    first, second = await Client.dial(replica.path, name="first"), await Client.dial(replica.path, name="second")
    first.send(*ALL, generate("a", PROMPT, 12, adapter=digest), generate("b", PROMPT, 12, adapter=digest))
    await wanted(first)
    first.send(Abort("a"))
    await first.finished("a")
    assert first.done["a"].reason == "rejected"
    first.send(AdapterPart(digest, 0, len(packed), packed[:100]))
    second.send(*ALL, generate("c", PROMPT, 12, adapter=digest))
    await first.close()
    assert await wanted(second) == digest
    send(second, digest, packed)
    await second.finished("c")
    assert second.tokens["c"] == expected(tiny_model, digest, packed)
    await second.close()


async def test_parts_out_of_order_end_the_connection(replica: ReplicaProcess, tiny_model: Path) -> None:
    digest, packed = content(tiny_model)
    client = await Client.dial(replica.path)
    client.send(*ALL, generate("a", PROMPT, 12, adapter=digest))
    await wanted(client)
    client.send(AdapterPart(digest, 7, len(packed), packed[:100]))
    while await client.hear() is not None:
        pass
    other = await Client.dial(replica.path)
    other.send(*ALL, generate("base", PROMPT, 4))
    await other.finished("base")
    assert other.tokens["base"], "the replica serves others on"
    await other.close()


async def test_equal_adapters_of_two_owners_are_two(replica: ReplicaProcess, tiny_model: Path) -> None:
    """The second owner waits as long as if nobody had it; what is ready is said of each alone."""
    name, packed = content(tiny_model)
    other = adapter_name(digest_of(name), "b")
    client = await Client.dial(replica.path)
    client.send(*ALL, generate("first", PROMPT, 2, adapter=name))
    assert await wanted(client) == name
    send(client, name, packed)
    await client.finished("first")
    client.send(generate("second", PROMPT, 2, adapter=other))
    assert await wanted(client) == other
    send(client, other, packed)
    await client.finished("second")
    assert client.tokens["first"] == client.tokens["second"]
    while True:
        message = await client.hear()
        if isinstance(message, Heartbeat) and len(message.adapters) == 2:
            break
    assert {one.name for one in message.adapters if one.ready} == {name, other}
    client.send(DropAdapter(name))
    while {one.name for one in message.adapters if one.ready} != {other}:
        heard = await client.hear()
        message = heard if isinstance(heard, Heartbeat) else message
    await client.close()
