"""Bytes of bodies are counted as they arrive: a tenant that sends too many at once is refused, others are not."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from gateway.errors import RateLimited
from gateway.http.body_budget import BodyBudget
from tests.gateway.stack import Stack
from tests.waiting import until


def test_a_tenant_has_an_even_part_and_gets_it_back() -> None:
    budget = BodyBudget(100)
    with budget.share("a") as first:
        first.take(60)
        with budget.share("b") as other:
            other.take(50)
            with pytest.raises(RateLimited):
                other.take(1)
            with pytest.raises(RateLimited), budget.share("a") as second:
                second.take(1)
        first.take(40)
        with pytest.raises(RateLimited):
            first.take(1)
    with budget.share("b") as again:
        again.take(100)


def test_a_request_counts_as_what_it_becomes() -> None:
    budget = BodyBudget(800)
    with budget.share("a") as first:
        first.take(20)
        first.load(100)
        assert first.taken == 320, "20 of its body, and what is loaded is sealed, opened and decoded"
        first.grow_to(300)
        assert first.taken == 320
        with budget.share("a") as second:
            second.take(10)
            with pytest.raises(RateLimited):
                second.load(200)
        first.grow_to(5000)
        assert first.taken == 700, "the only one is admitted, however large it becomes"
        with budget.share("a") as small:
            small.take(100)
        with pytest.raises(RateLimited), budget.share("a") as more_than_there_is:
            more_than_there_is.take(101)
    with budget.share("a") as again, pytest.raises(RateLimited):
        again.load(801)


async def test_bodies_that_never_come_whole_do_not_fill_the_memory(stack: Stack) -> None:
    """Bodies are declared larger than they are, so that each is held for as long as a gateway waits for one."""
    gateway = stack.gateway
    gateway.bodies = BodyBudget(4 << 20)
    size = 1 << 20
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {stack.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {size + 1}\r\n\r\n"
    ).encode()
    connections: list[asyncio.StreamWriter] = []
    answers: list[asyncio.Task[bytes]] = []
    for number in range(1, 7):
        reader, writer = await asyncio.open_connection(*urlsplit(stack.base).netloc.split(":"))
        connections.append(writer)
        writer.write(head + b" " * size)
        await writer.drain()
        answers.append(answer := asyncio.create_task(reader.readline()))
        whole = number * size
        await until(lambda: answer.done() or gateway.bodies._held.total() == whole)  # noqa: B023  # called here
    assert not any(answer.done() for answer in answers[:3]), "they wait for the rest"
    assert (await answers[-1]).split()[1] == b"429"
    for writer in connections:
        writer.close()
    await asyncio.gather(*answers, return_exceptions=True)
    await stack.until(lambda: not gateway.bodies._held)
    stack.say("hello")
    said = await stack.post({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]})
    assert said.status_code == 200, said.text
