"""A disk that fills up under `turnpike serve`: it waits, refuses, says why, and goes on when there is room."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.endless_model import NAME, make_endless_model
from tests.e2e.processes import Process, command, get, process, wait_ready, wait_settled
from tests.servers import free_port
from tests.small_disk import small_disk

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

STREAMS, TOKENS = 6, 400


class Asked:
    """One streamed request, read in a thread of its own."""

    def __init__(self, base: str, key: str, number: int) -> None:
        self.chunks = 0
        self.done = False
        self.problem = ""
        self._body = {
            "model": NAME,
            "messages": [{"role": "user", "content": f"Count to {number}"}],
            "stream": True,
            "max_tokens": TOKENS,
        }
        self._request = urllib.request.Request(
            base + "/v1/chat/completions",
            data=json.dumps(self._body).encode(),
            headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        try:
            with urllib.request.urlopen(self._request, timeout=120) as reply:
                for line in reply:
                    self.chunks += line.startswith(b"data: ")
                    self.done = self.done or line.startswith(b"data: [DONE]")
                    if b'"error"' in line:
                        self.problem = line.decode()
        except (OSError, ValueError) as error:
            self.problem = repr(error)


def ask(base: str, key: str) -> tuple[int, str, dict[str, str]]:
    """Status, body and headers of a short request."""
    body = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    request = urllib.request.Request(
        base + "/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read().decode(), dict(reply.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), dict(error.headers)


def assert_refused(answer: tuple[int, str, dict[str, str]], *, named: bool) -> None:
    """The answer says to whoever reads it when to try again and, where `named`, that a disk is full. The gateway's and
    the replica's lie on one: who notices first, refuses."""
    status, body, headers = answer
    assert status == 503, body
    assert int(headers["retry-after"]) >= 1
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("service_unavailable_error", "service_unavailable")
    if named:
        assert re.search(r"\bdisk\b.* is full; try again", error["message"]), error


def until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def said(running: Process, event: str) -> int:
    return sum(event in line for line in running.errors.splitlines())


def test_serve_outlives_a_full_disk_and_loses_nothing(tmp_path: Path) -> None:
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    model = make_endless_model(tmp_path / NAME)
    running: list[Process] = []

    def writers() -> list[int]:
        return [pid for server in running for pid in (server.popen.pid, *(child.pid for child in server.children()))]

    with small_disk(tmp_path / "disk", writers) as disk:
        data = disk.folder / "data"
        env = {"TURNPIKE_DATA_DIR": str(data), "TURNPIKE_MODEL": str(model), "TURNPIKE_LOG_FORMAT": "json"}
        with process(disk.folder / "logs", "serve", "--port", str(port), env=env) as serve:
            running.append(serve)
            wait_ready(base, running)
            key = command("keys", "create", "--tenant", "demo", "--project", "default", env=env).stdout.strip()
            assert ask(base, key)[0] == 200
            (replica,) = (child.pid for child in serve.children(recursive=False))
            streams = [Asked(base, key, number) for number in range(STREAMS)]

            def stands_still() -> bool:
                before = sum(stream.chunks for stream in streams)
                time.sleep(2)
                return before == sum(stream.chunks for stream in streams)

            until(lambda: all(stream.chunks > 2 for stream in streams), "the streams do not begin")
            disk.fill()

            assert not all(stream.done for stream in streams), "the disk was filled too late"
            until(lambda: get(base + "/readyz")[0] == 503, "nobody says that the disk is full")
            problems = json.loads(get(base + "/readyz")[1])["problems"]
            assert any("disk" in problem for problem in problems) or not disk.mounted, problems
            assert_refused(ask(base, key), named=disk.mounted)
            if disk.mounted:  # the replica may notice before the gateway, which looks at its disk now and then
                until(lambda: b"turnpike_disk_full 1.0" in get(base + "/metrics")[1], "no metric says it")
            # A file's last page has room for the counts of some more steps.
            until(stands_still, "what is shown is not in the journal")
            shown = sum(stream.chunks for stream in streams)
            time.sleep(5)
            assert serve.popen.poll() is None, serve.errors
            assert [child.pid for child in serve.children(recursive=False)] == [replica], (
                "the replica was started again"
            )
            assert ask(base, key)[0] == 503
            assert not any(stream.problem for stream in streams), [stream.problem for stream in streams]
            assert sum(stream.chunks for stream in streams) == shown, "what is shown is not in the journal"
            disk.empty()

            for stream in streams:
                stream.thread.join(120)
                assert stream.done, stream.problem
                assert not stream.problem
            until(lambda: get(base + "/readyz")[0] == 200, "it does not go on")
            assert ask(base, key)[0] == 200
            wait_settled(base)
            env |= {"TURNPIKE_REPLICAS": f"unix:{data}/run/replica-0.sock"}
            for check in (["audit", "money"], ["audit", "counts"], ["reconcile"]):
                checked = command(*check, env=env)
                assert checked.returncode == 0, checked.stdout + checked.stderr
            used = json.loads(command("usage", "--format", "json", env=env).stdout)["rows"]
            assert sum(int(row["requests"]) for row in used) == STREAMS + 2
            assert sum(int(row["output"]) for row in used) == STREAMS * TOKENS + 2 * 4
            assert serve.stop() == 0, serve.errors
            running.clear()


def test_serve_starts_again_when_the_disk_was_full_at_its_start(tmp_path: Path) -> None:
    port = free_port()
    model = make_endless_model(tmp_path / NAME)
    with small_disk(tmp_path / "disk", lambda: ()) as disk:
        env = {"TURNPIKE_DATA_DIR": str(disk.folder / "data"), "TURNPIKE_MODEL": str(model)}
        arguments = ("serve", "--port", str(port))
        if disk.mounted:
            disk.fill()
            with process(tmp_path / "first", *arguments, env=env) as first:
                assert first.popen.wait(60) == 75, "a status that says: try again"
                assert len(first.errors.strip().splitlines()) == 1, first.errors
                assert "disk" in first.errors
            disk.empty()
        with process(tmp_path / "second", *arguments, env=env) as second:
            wait_ready(f"http://127.0.0.1:{port}", [second])
            assert second.stop() == 0
