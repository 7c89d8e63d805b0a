"""Production in small: PostgreSQL, Redis, gateway, engine and worker as processes of their own, each killable."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from storage.database.database import Database
from tests.e2e.endless_model import NAME, make_endless_model
from tests.e2e.processes import DEMO_MODEL, Process, command, get, wait_ready
from tests.servers import free_port


class Answer(msgspec.Struct):
    """What one streamed request gave its client before it ended or was cut off."""

    status: int = 0
    text: str = ""
    usage: dict[str, Any] | None = None
    error: str = ""
    done: bool = False
    request: str = ""


class Deployment:
    """Every process by name; `start` and `kill` work in any order. `engine-1` is an engine, as `engine` is."""

    def __init__(self, folder: Path, database_url: str, redis_url: str, like: Path = DEMO_MODEL) -> None:
        """`like`: the model whose tokenizer and template are served."""
        self.folder = folder
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.env = {
            "TURNPIKE_DATA_DIR": str(folder / "data"),
            "TURNPIKE_DATABASE_URL": database_url,
            "TURNPIKE_REDIS_URL": redis_url,
            "TURNPIKE_SECRETS_FILE": str(folder / "secrets.json"),
            "TURNPIKE_MODEL": str(make_endless_model(folder / NAME, like)),
            "TURNPIKE_REPLICAS": f"tcp:127.0.0.1:{free_port()}",
            "TURNPIKE_LOG_FORMAT": "json",
        }
        self.processes: dict[str, Process] = {}
        self.flags: dict[str, tuple[str, ...]] = {}
        """What else some of them are started with."""
        self.clocks: dict[str, float] = {}
        """By how many seconds the clocks of some of them are wrong."""
        self.command("secrets", "create", self.env["TURNPIKE_SECRETS_FILE"])
        self.command("migrate")
        self.command("tenants", "create", "acme")
        self.command("tenants", "credit", "acme", "100")
        self.command("prices", "set", "--from-model-folder")
        self.key = self.command("keys", "create", "--tenant", "acme", "--project", "default").strip()

    def command(self, *arguments: str) -> str:
        answer = command(*arguments, env=self.env)
        assert answer.returncode == 0, f"{arguments}: {answer.stderr}"
        return answer.stdout

    def start(self, name: str, *flags: str) -> Process:
        data = ("--data-dir", str(self.folder / name))
        arguments = {
            "gateway": ("gateway", "--port", str(self.port), "--gateway-name", "gateway-0", *data),
            "engine": ("engine", "--listen", self.env["TURNPIKE_REPLICAS"], "--replica-name", "engine-0", *data),
            "worker": ("worker", *data),
        }[name.partition("-")[0]]
        self.processes[name] = Process(
            self.folder / f"{name}-logs", *arguments, *flags, env=self.env | self._clock(name)
        )
        return self.processes[name]

    def _clock(self, name: str) -> dict[str, str]:
        """The environment of a process whose clock is wrong."""
        if name not in self.clocks:
            return {}
        return {"PYTHONPATH": str(Path(__file__).parent / "wrong_clock"), "TURNPIKE_TEST_CLOCK": str(self.clocks[name])}

    def wait_ready(self) -> None:
        wait_ready(self.base, list(self.processes.values()))

    def clean_up(self) -> None:
        for running in self.processes.values():
            running.clean_up()

    def stream(
        self,
        question: str,
        max_tokens: int = 200,
        pause: float = 0.0,
        answer: Answer | None = None,
        *,
        base: str | None = None,
        key: str | None = None,
        **extra: object,
    ) -> Answer:
        """One streamed request, read to its end or to the cut; `answer` grows meanwhile. `base` and `key`: another
        gateway's, another tenant's."""
        body = {
            "model": NAME,
            "messages": [{"role": "user", "content": question}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": max_tokens,
            **extra,
        }
        request = urllib.request.Request(
            (base or self.base) + "/v1/chat/completions",
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {key or self.key}", "Content-Type": "application/json"},
        )
        answer = answer or Answer()
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                answer.status, answer.request = reply.status, reply.headers["x-request-id"]
                for line in reply:
                    if line.startswith(b"data: "):
                        _take(line[6:].strip(), answer)
                        time.sleep(pause)
        except urllib.error.HTTPError as error:
            with error:
                answer.status, answer.error = error.code, error.read().decode()
        except (OSError, ValueError) as error:
            answer.error = answer.error or type(error).__name__
        return answer

    def query(self, sql: str) -> list[Any]:
        """Rows of the database, read from outside."""

        async def ask() -> list[Any]:
            database = await Database.open(self.env["TURNPIKE_DATABASE_URL"])
            try:
                async with database.reading() as session:
                    return list((await session.execute(text(sql))).all())
            finally:
                await database.close()

        return asyncio.run(ask())

    def wait_settled(self, seconds: float = 120) -> None:
        """Wait until no hold is open."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.query("SELECT count(*) FROM hold_batch")[0][0] == 0:
                return
            time.sleep(0.2)
        raise AssertionError(
            f"open holds: {self.query('SELECT first, open, gateway FROM hold_batch')}\n"
            + "\n".join(f"--- {name}\n{p.errors[-4000:]}" for name, p in self.processes.items())
        )


def _take(data: bytes, answer: Answer) -> None:
    if data == b"[DONE]":
        answer.done = True
        return
    chunk = json.loads(data)
    if "error" in chunk:
        answer.error = chunk["error"]["message"]
        return
    for choice in chunk["choices"]:
        answer.text += choice["delta"].get("content") or ""
    answer.usage = chunk.get("usage") or answer.usage


class Streams:
    """Streams that run in threads, so that something can be killed under them."""

    def __init__(self, deployment: Deployment, count: int, **options: Any) -> None:
        self.answers: list[Answer] = [Answer() for _ in range(count)]
        self._threads = [
            threading.Thread(target=self._run, args=(deployment, index, options), daemon=True) for index in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, deployment: Deployment, index: int, options: dict[str, Any]) -> None:
        question = f"Explain number {index}: textwrap.dedent"
        deployment.stream(question, seed=index, answer=self.answers[index], **options)

    def join(self, seconds: float = 90) -> list[Answer]:
        for thread in self._threads:
            thread.join(seconds)
            assert not thread.is_alive(), "a stream hangs"
        return self.answers


def events(deployment: Deployment) -> int:
    count: int = deployment.query("SELECT count(*) FROM usage_event")[0][0]
    return count


def wait_for_figure(base: str, name: str, replica: str | None, least: float = 0.0, most: float = math.inf) -> float:
    """Wait until /metrics has a figure of a replica, None for the gateway's own, that is between these."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for family in text_string_to_metric_families(get(base + "/metrics")[1].decode()):
            for sample in family.samples:
                if (sample.name, sample.labels.get("replica")) == (name, replica) and least <= sample.value <= most:
                    return sample.value
        time.sleep(0.05)
    raise AssertionError(f"{name} of {replica} is not between {least} and {most}")


def wait_for_text(streams: Streams, at_least: int = 1) -> None:
    """Wait until every stream has said something, so that the kill is in the middle."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if all(len(answer.text) >= at_least for answer in streams.answers):
            return
        time.sleep(0.02)
    raise AssertionError(f"streams do not begin: {streams.answers}")


def assert_books(deployment: Deployment) -> None:
    deployment.wait_settled()
    for check in ("money", "counts"):
        audited = command("audit", check, env=deployment.env)
        assert audited.returncode == 0, audited.stdout + audited.stderr


def assert_alive(deployment: Deployment) -> None:
    answer = deployment.stream("Who are you?", max_tokens=5)
    assert answer.done, answer
    assert answer.usage
    assert answer.usage["completion_tokens"] == 5
