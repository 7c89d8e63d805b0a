"""kill -9 of the replica and the database in the middle of streams: nothing is lost, nothing is doubled. What happens
when gateways die, and several things at once, is `test_kill_bar.py`'s.

After each murder the same is asked: every hold has ended, each request that began has exactly one event, the books add
up, and the events' counts are what the replica's journal counted.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.e2e.deployment import Answer, Deployment, Streams, assert_alive, assert_books, events, wait_for_text
from tests.e2e.endless_model import NAME
from tests.servers import PostgresServer, postgres_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

STREAMS = 8


@pytest.fixture(scope="module")
def postgres_to_stop() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def deployment(
    tmp_path_factory: pytest.TempPathFactory, postgres_to_stop: PostgresServer, redis_url: str
) -> Iterator[Deployment]:
    made = Deployment(tmp_path_factory.mktemp("deployment"), postgres_to_stop.url, redis_url)
    try:
        for name in ("engine", "gateway", "worker"):
            made.start(name)
        made.wait_ready()
        yield made
    finally:
        made.clean_up()


def test_the_replica_dies(deployment: Deployment) -> None:
    before = events(deployment)
    streams = Streams(deployment, STREAMS, pause=0.05, max_tokens=700)
    wait_for_text(streams)
    deployment.processes["engine"].kill()
    answers = streams.join()
    cut = [answer for answer in answers if not answer.done]
    assert cut, "the murder came too late"
    assert all(answer.status == 200 and answer.error for answer in cut), cut
    refused = deployment.stream("hello")
    assert refused.status == 503, refused
    deployment.start("engine")
    deployment.wait_ready()
    assert_alive(deployment)
    assert_books(deployment)
    assert events(deployment) == before + STREAMS + 1


def test_the_database_dies(deployment: Deployment, postgres_to_stop: PostgresServer) -> None:
    before = events(deployment)
    streams = Streams(deployment, STREAMS, pause=0.02, max_tokens=300)
    wait_for_text(streams)
    postgres_to_stop.stop(signal.SIGQUIT)
    answers = streams.join()
    assert all(answer.done and answer.usage for answer in answers), answers
    assert deployment.stream("hello").status == 503
    postgres_to_stop.start()
    deployment.wait_ready()
    assert_alive(deployment)
    assert_books(deployment)
    assert events(deployment) == before + STREAMS + 1


def test_clients_that_leave_are_billed_for_what_they_got(deployment: Deployment) -> None:
    before = events(deployment)
    left = [_leave_after(deployment, chunks) for chunks in (1, 2, 5)]
    assert all(left)
    assert_books(deployment)
    rows = deployment.query(
        "SELECT status, output, count_output FROM usage_event ORDER BY admitted_at DESC, id DESC LIMIT 3"
    )
    assert events(deployment) == before + 3
    assert [row.status for row in rows] == ["cancelled"] * 3
    assert all(row.output <= row.count_output for row in rows)


def _leave_after(deployment: Deployment, chunks: int) -> Answer:
    import json
    import urllib.request

    body = {
        "model": NAME,
        "messages": [{"role": "user", "content": "Explain asyncio and everything about it"}],
        "stream": True,
        "max_tokens": 4000,
    }
    request = urllib.request.Request(
        deployment.base + "/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {deployment.key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        for line in reply:
            chunks -= line.startswith(b"data: ")
            if chunks < 0:
                break
        return Answer(status=reply.status)
