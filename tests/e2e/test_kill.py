"""kill -9 of the replica and the database in the middle of streams: nothing is lost, nothing is doubled. What happens
when gateways die, and several things at once, is `test_kill_bar.py`'s.

After each kill the same is asked: every hold has ended, each request that began has exactly one event, the books add
up, and the events' counts are what the replica's journal counted.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import OpenAI

from tests.e2e.deployment import (
    Answer,
    Deployment,
    Streams,
    assert_alive,
    assert_books,
    events,
    wait_for_figure,
    wait_for_text,
)
from tests.e2e.endless_model import NAME
from tests.servers import PostgresServer, free_port, postgres_server

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
    assert cut, "the kill came too late"
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
    streams = Streams(deployment, STREAMS, pause=0.02, max_tokens=150)
    wait_for_text(streams)
    postgres_to_stop.stop(signal.SIGQUIT)
    assert not any(answer.done for answer in streams.answers), "the kill came too late"
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


def test_what_a_tenant_got_from_a_dead_replica_counts_on_the_living_one(deployment: Deployment) -> None:
    """One gateway knows the first replica alone, another one both, and tells the second what the first gave to whom."""
    replica, port = f"tcp:127.0.0.1:{free_port()}", free_port()
    both = f"http://127.0.0.1:{port}"
    replicas = f"{deployment.env['TURNPIKE_REPLICAS']},{replica}"
    deployment.start("engine-1", "--listen", replica, "--replica-name", "engine-1", "--max-running", "1")
    deployment.start("gateway-1", "--port", str(port), "--gateway-name", "gateway-1", "--replicas", replicas)
    deployment.command("tenants", "create", "modest")
    deployment.command("tenants", "credit", "modest", "100")
    modest = deployment.command("keys", "create", "--tenant", "modest", "--project", "default").strip()
    greedy = deployment.key
    with ThreadPoolExecutor(3) as clients:
        for number in range(3):
            clients.submit(complete, deployment.base, greedy, f"{number} and everything. " * 450, 8)
    wait_for_figure(both, "turnpike_engine_requests_finished_total", "engine-0", 3)
    given = wait_for_figure(both, "turnpike_engine_service_seconds_total", "engine-0")
    # A beat says whole microseconds.
    wait_for_figure(both, "turnpike_engine_service_elsewhere_seconds_total", "engine-1", given - 1e-5)
    deployment.processes["engine"].kill()
    wait_for_figure(both, "turnpike_replica_healthy", "engine-0", most=0.0)

    # While a request in another lane has the only slot, the modest tenant queues three, and then the greedy one does:
    # had nobody heard of what he got, they would take turns.
    taken, queued = threading.Event(), threading.Event()

    def take_the_slot() -> bool:
        """Until all have queued; False if the answer was over before."""
        tier = {"service_tier": "priority"}
        with (
            OpenAI(base_url=both + "/v1", api_key=modest, max_retries=0, timeout=60) as client,
            client.completions.create(model=NAME, prompt="Go", max_tokens=4000, stream=True, extra_body=tier) as slot,
        ):
            for _ in slot:
                taken.set()
                if queued.is_set():
                    return True
        return False

    with ThreadPoolExecutor(7) as clients:
        slot = clients.submit(take_the_slot)
        assert taken.wait(60)
        answers = []
        for key in (modest, greedy):
            answers += [clients.submit(complete, both, key, f"{number} and so on", 1) for number in range(3)]
            wait_for_figure(both, "turnpike_replica_waiting", "engine-1", len(answers))
        queued.set()
        assert slot.result()
        assert [answer.result() for answer in answers] == [1] * 6
    deployment.wait_settled()
    ended = deployment.query(
        "SELECT tenant.name FROM usage_event JOIN tenant ON tenant.id = usage_event.tenant_id "
        "WHERE replica = 'engine-1' AND usage_event.status = 'ok' ORDER BY sequence"
    )
    assert [row.name for row in ended] == ["modest"] * 3 + ["acme"] * 3


def complete(base: str, key: str, prompt: str, tokens: int) -> int:
    """Ask for a text completion; returns how many tokens came."""
    with OpenAI(base_url=base + "/v1", api_key=key, max_retries=0, timeout=60) as client:
        answer = client.completions.create(model=NAME, prompt=prompt, max_tokens=tokens, temperature=0)
    assert answer.usage is not None
    return answer.usage.completion_tokens
