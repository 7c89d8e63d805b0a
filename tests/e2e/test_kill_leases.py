"""kill -9 of a gateway and of both replicas, whose KV is gone with them: leases are billed as they were promised.

The gateways' clocks are ten minutes wrong, one each way: only the database's counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.deployment import Answer, assert_books
from tests.e2e.processes import wait_ready
from tests.e2e.test_kill_holds import Pair
from tests.servers import PostgresServer, postgres_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

SKEW_S = 600.0
TEXT = "The module textwrap wraps and fills plain text. " * 40


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def running(tmp_path: Path, own_postgres: PostgresServer, redis_url: str) -> Iterator[Pair]:
    made = Pair(tmp_path, own_postgres.url, redis_url)
    made.clocks = {"gateway": -SKEW_S, "gateway-1": SKEW_S}
    try:
        made.start_engines()
        made.start("gateway")
        made.start_other_gateway()
        made.wait_ready()
        wait_ready(made.other_base)
        yield made
    finally:
        made.clean_up()


def marked(prompt: str, question: str) -> list[dict[str, Any]]:
    """Messages of which the first is marked for an hour."""
    control = {"type": "ephemeral", "ttl": "1h"}
    return [
        {"role": "system", "content": [{"type": "text", "text": prompt, "cache_control": control}]},
        {"role": "user", "content": question},
    ]


class Asking:
    """Streams of one marked prompt at both gateways, in threads."""

    def __init__(self, pair: Pair, prompt: str, count: int, **options: Any) -> None:
        self.answers = [Answer() for _ in range(count)]
        self._threads = [
            threading.Thread(
                target=pair.stream,
                args=("",),
                kwargs={
                    "messages": marked(prompt, f"Question {number}"),
                    "base": (pair.base, pair.other_base)[number % 2],
                    "answer": answer,
                    **options,
                },
                daemon=True,
            )
            for number, answer in enumerate(self.answers)
        ]
        for thread in self._threads:
            thread.start()

    def join(self) -> list[Answer]:
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a stream hangs"
        return self.answers


def bills(pair: Pair) -> list[tuple[int, int, int]]:
    """Read, written and billed prompt tokens of each request, in the order of admission."""
    columns = "read_1h, write_1h, uncached + read_automatic + read_1h + write_1h"
    requests = "usage_event WHERE corrects IS NULL"  # no attempts that came to nothing
    return [tuple(row) for row in pair.query(f"SELECT {columns} FROM {requests} ORDER BY admitted_at, id")]


def test_what_was_promised_is_billed_whoever_dies(running: Pair) -> None:
    asking = Asking(running, TEXT, 12, max_tokens=1500, pause=0.001)
    threading.Event().wait(0.2)
    deadline = threading.Event()
    for _ in range(600):
        if all(len(answer.text) > 200 for answer in asking.answers):
            break
        deadline.wait(0.1)
    for name in ("gateway", "engine-0", "engine-1"):
        running.processes[name].kill()
    asking.join()
    running.start_engines()
    running.start("gateway")
    running.wait_ready()
    running.wait_settled()
    first = bills(running)
    assert len(first) == 12
    (lease,) = running.query("SELECT tokens, expires_at - created_at, created_at FROM lease WHERE billed = 1")
    tokens, seconds = lease[0], int(lease[1]) / 1e6
    assert seconds == pytest.approx(3600, abs=300), "an hour, and as long as they run after that"
    assert abs(int(lease[2]) / 1e6 - time.time()) < SKEW_S / 2, "the database's clock"
    charged = [(read, write) for read, write, prompt in first if prompt]
    assert len(charged) > 6, "the kill came before the answers"
    assert sorted(charged) == [(0, tokens)] + [(tokens, 0)] * (len(charged) - 1)

    answers = Asking(running, TEXT, 4, max_tokens=5).join()  # the replicas have none of it
    assert all(answer.done for answer in answers), answers
    running.wait_settled()
    assert [(read, write) for read, write, _ in bills(running)[12:]] == [(tokens, 0)] * 4

    # a writer that dies before its first token was never billed: the next one writes
    other = TEXT.replace("textwrap", "asyncio")
    asking = Asking(running, other, 2, max_tokens=5)
    for name in ("engine-0", "engine-1"):
        running.processes[name].kill()
    asking.join()
    running.start_engines()
    running.wait_ready()
    answers = Asking(running, other, 6, max_tokens=5).join()
    assert all(answer.done for answer in answers), answers
    running.wait_settled()
    charged = [(read, write) for read, write, prompt in bills(running)[16:] if prompt]
    assert sum(write > 0 for _, write in charged) == 1
    assert {read or write for read, write in charged} == {max(write for _, write in charged)}
    assert_books(running)
