"""Large requests are read in threads: of each tenant one at a time, in turn, so many in wait and no more."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from uuid import UUID, uuid4

import pytest

from gateway.admission import fair_threads
from gateway.admission.fair_threads import THREADS, FairThreads
from gateway.conversation.tokenizer import Tokenizer
from gateway.errors import RateLimited
from tests.gateway.stack import Stack


class Gate:
    """Work that lasts until it is let go, and who is at it."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.at_it: list[UUID] = []
        self.began: list[UUID] = []

    def work(self, tenant: UUID) -> UUID:
        self.began.append(tenant)
        self.at_it.append(tenant)
        self.open.wait()
        self.at_it.remove(tenant)
        return tenant


async def until_begun(gate: Gate, count: int) -> None:
    while len(gate.began) < count:  # noqa: ASYNC110  # threads tell nobody
        await asyncio.sleep(0.001)


async def test_one_tenant_takes_one_thread_and_others_come_in_between() -> None:
    threads, gate = FairThreads(), Gate()
    greedy, modest = uuid4(), uuid4()
    many = [asyncio.create_task(threads.run(greedy, lambda: gate.work(greedy))) for _ in range(20)]
    await until_begun(gate, 1)
    other = asyncio.create_task(threads.run(modest, lambda: gate.work(modest)))
    await until_begun(gate, 2)
    assert sorted(gate.at_it) == sorted([greedy, modest])
    assert THREADS == 2
    gate.open.set()
    assert await other == modest
    assert await asyncio.gather(*many) == [greedy] * 20
    threads.close()


async def test_who_leaves_keeps_the_thread_busy_that_works_for_him() -> None:
    threads, gate = FairThreads(), Gate()
    tenant = uuid4()
    for _ in range(5):
        task = asyncio.create_task(threads.run(tenant, lambda: gate.work(tenant)))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(gate.began) == 1
    gate.open.set()
    assert await threads.run(tenant, lambda: "next") == "next"
    threads.close()


async def test_so_many_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_threads, "MAX_WAITING", 2)
    threads, gate = FairThreads(), Gate()
    tenant = uuid4()
    tasks = [asyncio.create_task(threads.run(tenant, lambda: gate.work(tenant))) for _ in range(3)]
    await until_begun(gate, 1)
    with pytest.raises(RateLimited):
        await threads.run(tenant, lambda: gate.work(tenant))
    gate.open.set()
    await asyncio.gather(*tasks)
    threads.close()


async def test_what_nobody_waits_for_is_not_done_and_errors_are_told() -> None:
    threads, gate = FairThreads(), Gate()
    tenant = uuid4()
    tasks = [asyncio.create_task(threads.run(tenant, lambda: gate.work(tenant))) for _ in range(5)]
    await until_begun(gate, 1)
    for task in tasks[1:4]:
        task.cancel()
    gate.open.set()
    assert [await tasks[0], await tasks[4]] == [tenant, tenant]
    assert len(gate.began) == 2
    with pytest.raises(ZeroDivisionError):
        await threads.run(tenant, lambda: 1 // 0)
    threads.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_prompt_that_takes_milliseconds_is_tokenized_beside_the_event_loop(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Of one tenant eight at a time, one after another, kept the event loop from everybody else."""
    text, threads = "one two " * 2500, []

    def note(name: str) -> None:
        method = getattr(Tokenizer, name)

        def noted(self: Tokenizer, of: str) -> list[int]:
            if len(of) >= len(text):
                threads.append(threading.current_thread().name.partition("_")[0])
            return method(self, of)  # type: ignore[no-any-return]

        monkeypatch.setattr(Tokenizer, name, noted)

    note("content")
    note("literal")
    monkeypatch.setattr(Tokenizer, "least_tokens", lambda self, characters: 0)  # else a small context refuses it unread
    asked: dict[str, Any] = (
        {"prompt": text} if path == "/v1/completions" else {"messages": [{"role": "user", "content": text}]}
    )
    headers = {"authorization": f"Bearer {stack.key}"}
    await stack.http.post(path, headers=headers, json={"model": "tiny", "max_tokens": 1, **asked})
    assert threads == ["large-request"]
