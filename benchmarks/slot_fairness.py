"""Time until a short request is answered beside another tenant's long streams, which want every slot of a replica.

`python -m benchmarks.slot_fairness --streams 256 --json OUT` starts `turnpike serve` with the demo model. Tenant A
opens the streams; some of its clients may stop reading. Tenant B then asks for four tokens again and again. Reported
are B's times to the first token, and the output tokens per second of both tenants: while B asks, and in the pauses
between, when A is alone. `--replicas 2` runs a gateway and two replicas, on a PostgreSQL and a Redis of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.deployment import Deployment
from tests.e2e.endless_model import NAME
from tests.e2e.processes import command, first_key, get, process, wait_ready
from tests.servers import free_port, postgres_server, redis_server

BAR_S = 2.0
"""B's time to the first token, at most."""
BAR_LOSS = 0.1
"""The part of the throughput that B's requests may cost."""
_FIGURE = rb"^turnpike_engine_%s_tokens_total\{[^}]*\} ([0-9.e+]+)"
_TEXT = b'"content"'


class Tenant:
    """A client of one API key."""

    def __init__(self, base: str, key: str, model: str) -> None:
        url = urlsplit(base)
        self._host, self._port = url.hostname, url.port
        self._key = key
        self._model = model

    async def stream(self, question: str, tokens: int, *, reads: bool = True, lane: str = "auto") -> float:
        """Send one streamed request and read it to its end; seconds until its first token.

        With `reads` False nothing is read, and the connection stays open until the task is cancelled.
        """
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": question}],
            "stream": True,
            "ignore_eos": True,
            "max_tokens": tokens,
            "service_tier": lane,
        }
        content = json.dumps(body).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self._host}\r\nAuthorization: Bearer {self._key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=4096 if not reads else 65536)
        try:
            writer.write(head.encode() + content)
            await writer.drain()
            if not reads:
                await asyncio.Event().wait()
            first, seen = -1.0, b""
            while data := await reader.read(65536):
                if first < 0:
                    seen += data
                    if not seen.startswith(b"HTTP/1.1 200"[: len(seen)]):
                        raise RuntimeError(seen[:600].decode(errors="replace"))
                    if _TEXT in seen and seen.count(b"data: ") > 1:
                        first = time.perf_counter() - began
            if first < 0:
                raise RuntimeError(f"a stream ended without a token: {seen[-300:]!r}")
            return first
        finally:
            writer.close()


class Crowd:
    """A's streams, kept at their number: where one ends, the next begins."""

    def __init__(self, tenant: Tenant, streams: int, tokens: int, unread: int) -> None:
        self._tasks = [
            asyncio.create_task(self._ask(tenant, number, tokens, reads=number >= unread)) for number in range(streams)
        ]

    async def _ask(self, tenant: Tenant, number: int, tokens: int, *, reads: bool) -> None:
        turn = 0
        while True:
            await tenant.stream(f"Client {number}, turn {turn}: explain textwrap.dedent.", tokens, reads=reads)
            turn += 1

    def check(self) -> None:
        """Raise what a stream failed with."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def leave(self) -> None:
        """End all streams."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def measure(base: str, keys: tuple[str, str], model: str, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one running Turnpike."""
    a, b = (Tenant(base, key, model) for key in keys)
    alone_s = await b.stream("Hello", 4, lane=options.lane)
    crowd = Crowd(a, options.streams, options.tokens, round(options.streams * options.unread))
    await asyncio.sleep(options.settle)
    with_b: list[float] = []
    without_b: list[float] = []
    firsts: list[float] = []
    try:
        for number in range(2 * options.rounds):
            # Alone, with, with, alone: contexts grow and steps get slower, which is to weigh on both alike.
            if number % 4 in (0, 3):
                without_b.append(await _rate(base, options.window, lambda: asyncio.sleep(0.1)))
            else:
                with_b.append(await _rate(base, options.window, lambda: _probe(b, firsts, options)))
            crowd.check()
        output, recomputed = [await asyncio.to_thread(_output, base, kind) for kind in (b"output", b"recomputed")]
    finally:
        await crowd.leave()
    met = bool(firsts) and max(firsts) <= BAR_S
    loss = 1 - statistics.fmean(with_b) / statistics.fmean(without_b)
    return {
        "streams": options.streams,
        "replicas": options.replicas,
        "unread": options.unread,
        "requests_of_b": len(firsts),
        "first_token_alone_s": round(alone_s, 3),
        "first_token_s": {
            "median": round(statistics.median(firsts), 3),
            "max": round(max(firsts), 3),
            "each": [round(first, 2) for first in firsts],
            "bar": BAR_S,
            "met": met,
        },
        "output_tokens_per_s": {"a_alone": [round(r) for r in without_b], "a_and_b": [round(r) for r in with_b]},
        "recomputed_per_output_token": round(recomputed / output, 4),
        "loss": {"value": round(loss, 3), "bar": BAR_LOSS, "met": loss <= BAR_LOSS},
    }


async def _probe(tenant: Tenant, firsts: list[float], options: argparse.Namespace) -> None:
    asked = time.perf_counter()
    try:
        firsts.append(await asyncio.wait_for(tenant.stream("Hello", 4, lane=options.lane), options.patience))
    except TimeoutError:
        firsts.append(time.perf_counter() - asked)
    await asyncio.sleep(options.pause)


async def _rate(base: str, seconds: float, act: Callable[[], Any]) -> float:
    """Output tokens per second, of all tenants, while `act` is done again and again for so many seconds.

    A replica tells its figures once a second: the time is taken when they change.
    """
    began, before = await _next_output(base)
    while time.perf_counter() < began + seconds:
        await act()
    ended, after = await _next_output(base)
    return (after - before) / (ended - began)


async def _next_output(base: str) -> tuple[float, float]:
    """When the output so far changed next, and what it was then."""
    before = after = await asyncio.to_thread(_output, base)
    while after == before:
        await asyncio.sleep(0.05)
        after = await asyncio.to_thread(_output, base)
    return time.perf_counter(), after


def _output(base: str, kind: bytes = b"output") -> float:
    """Tokens that all replicas put out so far, or recomputed."""
    found = re.findall(_FIGURE % kind, get(base + "/metrics")[1], re.MULTILINE)
    return sum(map(float, found))


@contextmanager
def one_replica(folder: Path) -> Iterator[tuple[str, tuple[str, str], str]]:
    """`turnpike serve` with the demo model: its address, the keys of two tenants, the model's name."""
    data = folder / "data"
    env = {"TURNPIKE_DATA_DIR": str(data)}
    with process(folder, "serve", "--port", str(free_port()), "--data-dir", str(data)) as running:
        key = first_key(running)
        base = running.wait_for_output(r"http://127\.0\.0\.1:\d+").group(0)
        wait_ready(base, [running])
        yield base, (key, _second_tenant(env)), "stdlib-qa"
        running.stop()


@contextmanager
def several_replicas(folder: Path, replicas: int) -> Iterator[tuple[str, tuple[str, str], str]]:
    """A gateway with so many replicas: its address, the keys of two tenants, the model's name."""
    with ExitStack() as stack:
        database, redis = stack.enter_context(postgres_server()), stack.enter_context(redis_server())
        deployment = Deployment(folder, database.url, redis.url)
        stack.callback(deployment.clean_up)
        addresses = [f"tcp:127.0.0.1:{free_port()}" for _ in range(replicas)]
        deployment.env["TURNPIKE_REPLICAS"] = ",".join(addresses)
        for number, address in enumerate(addresses):
            deployment.start(f"engine-{number}", "--listen", address, "--replica-name", f"engine-{number}")
        deployment.start("gateway")
        deployment.start("worker")
        deployment.wait_ready()
        yield deployment.base, (deployment.key, _second_tenant(deployment.env)), NAME


def _second_tenant(env: dict[str, str]) -> str:
    for arguments in (("tenants", "create", "b"), ("tenants", "credit", "b", "100")):
        done = command(*arguments, env=env)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
    made = command("keys", "create", "--tenant", "b", "--project", "default", env=env)
    if made.returncode != 0:
        raise RuntimeError(made.stderr)
    return made.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.slot_fairness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--streams", type=int, default=256, help="streams that tenant A keeps open")
    parser.add_argument("--tokens", type=int, default=1500, help="output tokens of each")
    parser.add_argument("--unread", type=float, default=0.0, help="which part of A's clients does not read")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--lane", default="auto", help="service tier of B's requests; A's are `auto`")
    parser.add_argument("--settle", type=float, default=15.0, help="seconds before the first measurement")
    parser.add_argument("--window", type=float, default=4.0, help="seconds of each measurement")
    parser.add_argument("--rounds", type=int, default=8, help="pairs of measurements: A alone, and with B")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between two requests of B")
    parser.add_argument("--patience", type=float, default=100.0, help="seconds after which B gives a request up")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="turnpike-slots-") as name, ExitStack() as stack:
        folder = Path(name)
        running = one_replica(folder) if options.replicas == 1 else several_replicas(folder, options.replicas)
        base, keys, model = stack.enter_context(running)
        with suppress(KeyboardInterrupt):
            figures = {"benchmark": "slot_fairness"} | asyncio.run(measure(base, keys, model, options))
            print(json.dumps(figures, indent=2))
            if options.json:
                options.json.write_text(json.dumps(figures, indent=2) + "\n")
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
