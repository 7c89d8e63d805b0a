"""Bytes of bodies are counted as they arrive: a tenant that sends too many at once is refused, others are not."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from gateway.errors import RateLimited
from gateway.http.body_budget import BodyBudget
from tests.gateway.stack import Stack


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


async def test_bodies_that_never_come_whole_do_not_fill_the_memory(stack: Stack) -> None:
    """Bodies are declared larger than they are, so that each is held for as long as a gateway waits for one."""
    gateway = stack.gateway
    gateway.bodies = BodyBudget(4 << 20)
    size = 1 << 20
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {stack.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {size + 1}\r\n\r\n"
    ).encode()
    connections = []
    statuses = []
    for _ in range(6):
        reader, writer = await asyncio.open_connection(*urlsplit(stack.base).netloc.split(":"))
        connections.append(writer)
        writer.write(head + b" " * size)
        await writer.drain()
        try:
            statuses.append((await asyncio.wait_for(reader.readline(), 0.5)).split()[1])
        except TimeoutError:
            statuses.append(b"waits")
    assert statuses[:3] == [b"waits"] * 3
    assert statuses[-1] == b"429"
    for writer in connections:
        writer.close()
    await stack.until(lambda: not gateway.bodies._held)
    stack.say("hello")
    answer = await stack.post({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]})
    assert answer.status_code == 200, answer.text
