"""SIGTERM under load, one worker of two that dies, clients that hang up, `serve` killed: the books are right."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.awake import Awake
from tests.e2e.deployment import (
    Deployment,
    Streams,
    assert_alive,
    assert_books,
    events,
    wait_for_figure,
    wait_for_text,
)
from tests.e2e.endless_model import NAME, make_endless_model
from tests.e2e.processes import Process, command, get, process, used, wait_ready
from tests.servers import free_port, postgres_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

STREAMS = 6


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Iterator[Deployment]:
    with postgres_server() as server:
        made = Deployment(tmp_path_factory.mktemp("deployment"), server.url, redis_url)
        try:
            for name in ("engine", "gateway", "worker"):
                made.start(name)
            made.wait_ready()
            yield made
        finally:
            made.clean_up()


def hang_up(base: str, key: str) -> float:
    """Ask for a long whole answer, and be gone when some of it is there; returns when that was."""
    body = {"model": NAME, "messages": [{"role": "user", "content": "Explain everything"}], "max_tokens": 4000}
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {key}\r\n"
    with socket.create_connection(("127.0.0.1", int(base.rsplit(":", 1)[1]))) as client:
        client.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        wait_for_figure(base, "turnpike_replica_running", "engine-0", 1)
        before = wait_for_figure(base, "turnpike_engine_output_tokens_total", "engine-0")
        wait_for_figure(base, "turnpike_engine_output_tokens_total", "engine-0", before + 1)
    return time.time()


def test_who_hangs_up_on_a_whole_answer_stops_its_work_at_once(deployment: Deployment) -> None:
    before = events(deployment)
    with Awake() as awake:
        left = hang_up(deployment.base, deployment.key)
        assert_books(deployment)
    assert events(deployment) == before + 1
    (event,) = deployment.query("SELECT * FROM usage_event ORDER BY admitted_at DESC LIMIT 1")
    assert event.status == "cancelled"
    assert event.finished_at / 1_000_000 - left - awake.paused < 1.0
    assert 0 < event.count_output < 4000
    assert event.output == 0, "nothing of it was delivered"


def stop_while_probed(deployment: Deployment) -> None:
    """SIGTERM, with new connections until the end: each is answered with 503 or refused, and none waits."""
    gateway, seen = deployment.processes["gateway"], list[tuple[str, int, str]]()
    gateway.popen.send_signal(signal.SIGTERM)
    client = httpx.Client(base_url=deployment.base, timeout=5, headers={"Authorization": f"Bearer {deployment.key}"})
    chat = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    probes = {"/readyz": lambda: client.get("/readyz"), "chat": lambda: client.post("/v1/chat/completions", json=chat)}
    with client:
        while gateway.popen.poll() is None:
            for name, ask in probes.items():
                try:
                    answer = ask()
                except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError):  # refused, or just closed
                    continue
                if answer.status_code != 200:  # the signal may arrive after the first
                    seen.append((name, answer.status_code, answer.headers["connection"]))
    assert gateway.popen.returncode == 0
    assert set(seen) == {("/readyz", 503, "close"), ("chat", 503, "close")}
    assert len(seen) > 4


def test_sigterm_lets_streams_finish(deployment: Deployment) -> None:
    before = events(deployment)
    with socket.create_connection(("127.0.0.1", int(deployment.base.rsplit(":", 1)[1])), timeout=30) as silent:
        streams = Streams(deployment, STREAMS, pause=0.02, max_tokens=150)
        wait_for_text(streams)
        silent.sendall(b"GET /readyz HTTP/1.1\r\n")
        deployment.processes["gateway"].popen.send_signal(signal.SIGTERM)
        while get(deployment.base + "/readyz")[0] != 503:
            assert deployment.processes["gateway"].popen.poll() is None
        silent.sendall(b"Host: test\r\n\r\n")
        assert silent.recv(4096).startswith(b"HTTP/1.1 503"), "whose request was on its way is answered, not reset"
    stop_while_probed(deployment)
    answers = streams.join()
    assert all(answer.done and answer.usage for answer in answers), answers
    assert events(deployment) == before + STREAMS, "all of it was settled before the end"
    deployment.start("gateway")
    deployment.wait_ready()
    assert_books(deployment)


def test_sigterm_to_workers_on_one_socket(deployment: Deployment) -> None:
    deployment.processes["gateway"].stop()
    deployment.start("gateway", "--workers", "2")
    for _ in range(20):
        deployment.wait_ready()
    streams = Streams(deployment, STREAMS, pause=0.02, max_tokens=150)
    wait_for_text(streams)
    stop_while_probed(deployment)
    assert all(answer.done and answer.usage for answer in streams.join())
    assert get(deployment.base + "/readyz")[0] == 0, "nobody listens"
    deployment.start("gateway")
    deployment.wait_ready()
    assert_books(deployment)


def test_sigterm_ends_streams_that_take_too_long(deployment: Deployment) -> None:
    deployment.processes["gateway"].stop()
    deployment.start("gateway", "--drain-timeout", "1")
    deployment.wait_ready()
    before = events(deployment)
    streams = Streams(deployment, STREAMS, pause=0.05, max_tokens=4000)
    wait_for_text(streams)
    with Awake() as awake:
        assert deployment.processes["gateway"].stop() == 0
        assert awake.seconds < 15
    answers = streams.join()
    assert all(answer.error and not answer.done for answer in answers), answers
    deployment.start("gateway")
    deployment.wait_ready()
    assert_books(deployment)
    assert events(deployment) == before + STREAMS


@pytest.fixture(scope="module")
def two_workers(deployment: Deployment) -> Iterator[Process]:
    deployment.processes["gateway"].stop()
    gateway = deployment.start("gateway", "--workers", "2")
    for _ in range(20):  # whichever worker answers: each has its own link to the replica
        deployment.wait_ready()
    yield gateway
    workers = gateway.children()
    assert gateway.stop() == 0
    _, alive = psutil.wait_procs(workers, 30)
    assert not alive


def wait_for_workers(gateway: Process, count: int = 2) -> list[psutil.Process]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if len(workers := gateway.children()) == count:
            return workers
        time.sleep(0.05)
    raise AssertionError(gateway.children())


def test_one_of_two_workers_dies(deployment: Deployment, two_workers: Process) -> None:
    before = events(deployment)
    streams = Streams(deployment, STREAMS, pause=0.05, max_tokens=500)
    wait_for_text(streams)
    victim, _ = wait_for_workers(two_workers)
    victim.kill()
    streams.join()
    assert_books(deployment)
    assert events(deployment) == before + STREAMS
    assert_alive(deployment)
    wait_for_workers(two_workers)  # the parent starts another


def test_whichever_worker_is_scraped_answers_for_both_and_for_the_dead(
    deployment: Deployment, two_workers: Process
) -> None:
    def ask(count: int) -> None:
        for _ in range(count):
            assert get(deployment.base + "/v1/models", "wrong")[0] == 401

    def refused() -> float:
        (sample,) = (
            sample
            for family in text_string_to_metric_families(get(deployment.base + "/metrics")[1].decode())
            for sample in family.samples
            if sample.name == "turnpike_requests_total" and sample.labels["status"] == "401"
        )
        return sample.value

    first, second = wait_for_workers(two_workers)
    ask(1)
    before = refused()
    for working, sleeping, count in ((first, second, 3), (second, first, 5)):
        sleeping.suspend()
        ask(count)
        before += count
        assert refused() == before, "of both, whoever is asked"
        sleeping.resume()
        assert working.is_running()
    first.kill()
    psutil.wait_procs([first], 30)
    assert refused() == before, "of the dead one too"
    wait_for_workers(two_workers)
    ask(4)
    assert refused() == before + 4
    families = {f.name: f for f in text_string_to_metric_families(get(deployment.base + "/metrics")[1].decode())}
    assert [sample.labels for sample in families["turnpike_spool_waiting"].samples] == [{}]
    assert families["turnpike_build_info"].samples
    deadline = time.monotonic() + 60
    workers: set[str] = set()
    while workers != {"gateway-0-0", "gateway-0-1"}:
        assert time.monotonic() < deadline, workers
        scraped = text_string_to_metric_families(get(deployment.base + "/metrics")[1].decode())
        memory = next(family for family in scraped if family.name == "process_resident_memory_bytes")
        workers = {sample.labels["worker"] for sample in memory.samples}
        time.sleep(0.1)
    wait_for_figure(deployment.base, "turnpike_replica_healthy", "engine-0", 1)
    told = [family.documentation for family in families.values() if family.name.startswith("turnpike_engine_")]
    assert len(set(told)) == len(told) > 0
    assert not [text for text in told if "another version" in text], "each figure of our own replica has its help"


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM])
def test_serve_dies_in_the_middle_of_an_answer(tmp_path: Path, death: signal.Signals) -> None:
    """Everything on one machine: SQLite, one replica as a child."""
    port = free_port()
    env = {
        "TURNPIKE_DATA_DIR": str(tmp_path / "data"),
        "TURNPIKE_MODEL": str(make_endless_model(tmp_path / NAME)),
        "TURNPIKE_PORT": str(port),
        "TURNPIKE_DRAIN_TIMEOUT": "0",
    }
    with process(tmp_path / "first", "serve", env=env) as first:
        first.wait_for_output(r"curl ")
        key = command("keys", "create", "--tenant", "demo", "--project", "default", env=env).stdout.strip()
        children = first.children()
        hang = socket.create_connection(("127.0.0.1", port))
        data = json.dumps(
            {"model": NAME, "messages": [{"role": "user", "content": "Go on"}], "stream": True, "max_tokens": 4000}
        ).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {key}\r\n"
        hang.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        assert b"200 OK" in hang.recv(4096)
        first.popen.send_signal(death)
        status = first.popen.wait(30)
        hang.close()
        assert status == (-9 if death == signal.SIGKILL else 0)
        _, alive = psutil.wait_procs(children, 30)
        assert not alive
    with process(tmp_path / "second", "serve", env=env) as second:
        second.wait_for_output(r"curl ")
        wait_ready(f"http://127.0.0.1:{port}", [second])
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not used(env).requests:
            time.sleep(0.2)
        for check in ("money", "counts"):
            audited = command("audit", check, env=env)
            assert audited.returncode == 0, audited.stdout + audited.stderr
    assert used(env).requests == 1
