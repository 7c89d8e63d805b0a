"""The gateway alone: one worker pinned to one core, a mock replica over the real protocol, everything on.

Keys, holds and settlement on SQLite, the spool's fsync, metrics and logs are as in production; load and replica run on
the other core. `--redis` gives it a Redis too, `--limits` sets limits far above the load.
`python -m benchmarks.gateway --json OUT` measures this tree. `--tree DIR` compares: both trees' gateways run, one idle
while the other is measured, in `--pairs` alternating pairs. OUT keeps earlier pairs, so that a run may be continued.
The figure of a pair is this tree's divided by the other's; their median is shown.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.http_load import Load, Measured, load_when_told, memory_mib
from benchmarks.mock_replica import BURST, FIRST_S, PACED
from benchmarks.processes import Processes, server_cpu_s

HERE = Path(__file__).resolve().parents[1]
MODEL = HERE / "models" / "stdlib-qa"
_GATEWAY_CORE, _LOAD_CORE = 0, 1
_START_S = 60.0
_WARM_S = 3.0
"""What warms a gateway up: a round of paced streams that began before it counts takes half of it."""
_IDLE_S, _IDLE_CPU_S, _IDLE_TRIES = 0.3, 0.02, 20
_PROMPT_BYTES, _OUTPUT, _CHUNKS = 1024, 16, 64
_LIMITS = ("--requests", "100000000", "--input-tokens", "1000000000", "--output-tokens", "1000000000",
           "--concurrent", "1000000")  # fmt: skip
_FIGURES = {
    "requests_per_s": ("req/s, 1 KB unary, 32 connections", 1),
    "cpu_ms": ("ms CPU of each", -1),
    "p50_ms": ("ms p50 at 100 req/s, open loop", -1),
    "p99_ms": ("ms p99 at 100 req/s", -1),
    "streams_per_s": ("streams/s of 64 chunks", 1),
    "ttft_added_ms": ("ms TTFT added, p50, 64 paced streams", -1),
    "memory_mib": ("MiB (PSS) after it all", -1),
}
"""The figures, what they are, and whether more (1) or less (-1) is better."""
SCENARIOS = ("unary", "rate", "streams", "paced")


class Gateway:
    """A tree's gateway process with what it needs, in a folder of its own."""

    def __init__(self, tree: Path, folder: Path, redis_url: str, *, limits: bool) -> None:
        self.tree, self.port = tree, _free_port()
        python = tree / ".venv" / "bin" / "python"
        self._turnpike = [str(python if python.exists() else sys.executable), "-m", "turnpike.cli"]
        replica = folder / "replica.sock"
        self._environment = os.environ | {
            "TURNPIKE_DATA_DIR": str(folder / "data"),
            "TURNPIKE_LOG_FORMAT": "json",
            "TURNPIKE_MODEL": str(MODEL),
            "TURNPIKE_REPLICAS": f"unix:{replica}",
            "TURNPIKE_REDIS_URL": redis_url,
        }
        self.command("migrate")
        self.command("prices", "set", "--from-model-folder")
        self.command("tenants", "create", "acme")
        self.command("tenants", "credit", "acme", "1000000")
        self.key = self.command("keys", "create", "--tenant", "acme", "--project", "default")
        if limits:
            self.command("limits", "set", "--tenant", "acme", "--project", "default", *_LIMITS)
        # An older gateway speaks an older protocol, so the tree's own replica is taken where it has one.
        mocks = tree if (tree / "benchmarks" / "mock_replica.py").exists() else HERE
        mock = [self._turnpike[0], "-m", "benchmarks.mock_replica", str(replica), str(MODEL)]
        self._replica = self._start(mock, mocks, _LOAD_CORE, folder / "replica.log")
        command = [*self._turnpike, "gateway", "--port", str(self.port)]
        self._gateway = self._start(command, tree, _GATEWAY_CORE, folder / "gateway.log")
        self._log = folder / "gateway.log"

    def command(self, *arguments: str) -> str:
        """The output of a command of this tree. Raises RuntimeError."""
        done = subprocess.run(
            [*self._turnpike, *arguments],
            cwd=self.tree, env=self._environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"turnpike {' '.join(arguments)}: {done.stderr}")
        return done.stdout.strip()

    def _start(self, command: list[str], folder: Path, core: int, log: Path) -> subprocess.Popen[bytes]:
        pinned = ["taskset", "--cpu-list", str(core), *command]
        with log.open("wb") as out:
            return subprocess.Popen(pinned, cwd=folder, env=self._environment, stdout=out, stderr=out)

    @property
    def process(self) -> int:
        """The gateway's process (`taskset` becomes it)."""
        return self._gateway.pid

    def wait_ready(self) -> None:
        """Wait until it answers a generation. Raises RuntimeError."""
        deadline = time.monotonic() + _START_S
        body = _body({"max_tokens": 1})
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/chat/completions", body, headers)
        while True:
            try:
                urllib.request.urlopen(request, timeout=5).close()
                return
            except (OSError, urllib.error.URLError):
                if self._gateway.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(self._log.read_text()[-2000:]) from None
            time.sleep(0.1)

    def close(self) -> None:
        """End its processes."""
        for process in (self._gateway, self._replica):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _body(extra: Mapping[str, Any]) -> bytes:
    system = ("You are a terse assistant. " * (_PROMPT_BYTES // 27 + 1))[:_PROMPT_BYTES]
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Say hello."}]
    return json.dumps({"model": MODEL.name, "messages": messages, **extra}, separators=(",", ":")).encode()


def _payload(gateway: Gateway, extra: Mapping[str, Any]) -> bytes:
    body = _body(extra)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {gateway.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _load(gateway: Gateway, scenario: str, seconds: float) -> Load:
    stream = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": _CHUNKS}
    unary = _payload(gateway, {"max_tokens": _OUTPUT})
    common: dict[str, Any] = {"port": gateway.port, "process": gateway.process, "core": _LOAD_CORE, "seconds": seconds}
    match scenario:
        case "unary":
            return Load(payload=unary, **common)
        case "rate":
            return Load(payload=unary, kind="open", rate=100.0, connections=16, **common)
        case "streams":
            return Load(payload=_payload(gateway, {**stream, "seed": BURST}), **common)
        case _:
            paced = _payload(gateway, {**stream, "seed": PACED})
            return Load(payload=paced, kind="rounds", connections=64, **common)


def _figures(scenario: str, measured: Measured) -> dict[str, float]:
    if set(measured.statuses) - {200}:
        raise RuntimeError(f"{scenario}: answers were not all 200: {measured.statuses}")
    count, latencies = measured.answered, sorted(measured.latencies)
    match scenario:
        case "unary":
            return {"requests_per_s": count / measured.seconds, "cpu_ms": 1000 * measured.cpu_s / count}
        case "rate":
            return {
                "p50_ms": 1000 * statistics.median(latencies),
                "p99_ms": 1000 * latencies[len(latencies) * 99 // 100],
            }
        case "streams":
            return {"streams_per_s": count / measured.seconds, "stream_cpu_ms": 1000 * measured.cpu_s / count}
        case _:
            return {"ttft_added_ms": 1000 * (statistics.median(measured.first_texts) - FIRST_S)}


def _wait_idle(gateways: Iterable[Gateway]) -> None:
    """Wait until no gateway has anything to do: what one still settles would slow the other on their core."""
    processes = {gateway.process for gateway in gateways}
    for _ in range(_IDLE_TRIES):
        before = sum(map(server_cpu_s, processes))
        time.sleep(_IDLE_S)
        if sum(map(server_cpu_s, processes)) - before <= _IDLE_CPU_S:
            return


def measure(
    gateway: Gateway, clients: Processes, scenarios: Sequence[str], seconds: float, beside: Sequence[Gateway] = ()
) -> dict[str, float]:
    """The figures of one gateway. `beside`: others on its core, which are waited for."""
    found: dict[str, float] = {}
    for scenario in scenarios:
        _wait_idle((gateway, *beside))
        found |= _figures(scenario, clients.ask([_load(gateway, scenario, seconds)])[0])
    return found | {"memory_mib": memory_mib(gateway.process)}


@contextlib.contextmanager
def _redis(folder: Path) -> Iterator[str]:
    program = shutil.which("redis-server")
    if program is None:
        raise RuntimeError("redis-server is not installed")
    port = _free_port()
    command = ["taskset", "--cpu-list", str(_LOAD_CORE), program, "--port", str(port), "--bind", "127.0.0.1",
               "--save", "", "--appendonly", "no", "--dir", str(folder)]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(10)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Comparison(msgspec.Struct):
    """Pairs of figures, of the other tree and of this one."""

    arguments: list[str]
    pairs: list[dict[str, dict[str, float]]]

    def ratios(self) -> dict[str, float]:
        """The median over all pairs of this tree's figure divided by the other's, by figure."""
        names = [name for name in self.pairs[0]["head"] if all(name in pair["base"] for pair in self.pairs)]
        return {
            name: statistics.median(pair["head"][name] / pair["base"][name] for pair in self.pairs) for name in names
        }


@contextlib.contextmanager
def _gateways(trees: Mapping[str, Path], *, redis: bool, limits: bool) -> Iterator[dict[str, Gateway]]:
    """The gateways of these trees; `limits` are set for `head` alone."""
    with tempfile.TemporaryDirectory(prefix="turnpike-gateway-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        url = stack.enter_context(_redis(folder)) if redis else ""
        found = {}
        for number, (role, tree) in enumerate(trees.items()):
            (folder / role).mkdir()
            database = url.removesuffix("0") + str(number) if url else ""
            found[role] = Gateway(tree, folder / role, database, limits=limits and role == "head")
            stack.callback(found[role].close)
        for gateway in found.values():
            gateway.wait_ready()
        yield found


def _compare(given: argparse.Namespace) -> dict[str, Any]:
    arguments = [str(given.tree), *given.scenarios, *(["redis"] * given.redis), *(["limits"] * given.limits)]
    kept = Comparison(arguments, [])
    if given.json and given.json.exists():
        kept = msgspec.json.decode(given.json.read_bytes(), type=Comparison)
        if kept.arguments != arguments:
            raise SystemExit(f"{given.json} has pairs of {kept.arguments}")
    trees = {"base": given.tree.resolve(), "head": HERE}
    with _gateways(trees, redis=given.redis, limits=given.limits) as gateways:
        clients = Processes(1, load_when_told)
        for gateway in gateways.values():
            measure(gateway, clients, given.scenarios, _WARM_S)
        for number in range(len(kept.pairs), len(kept.pairs) + given.pairs):
            everyone = list(gateways.values())
            order = ("base", "head") if number % 2 == 0 else ("head", "base")
            kept.pairs.append(
                {role: measure(gateways[role], clients, given.scenarios, given.seconds, everyone) for role in order}
            )
            if given.json:
                given.json.write_bytes(msgspec.json.encode(kept))
    for name, ratio in kept.ratios().items():
        middle = {role: statistics.median(pair[role][name] for pair in kept.pairs) for role in trees}
        said = _FIGURES.get(name, (name, 0))[0]
        print(f"{said:40} {middle['base']:9.2f} {middle['head']:9.2f}  {100 * (ratio - 1):+6.1f} %")
    return {"pairs": len(kept.pairs), "ratios": kept.ratios()}


def _alone(given: argparse.Namespace) -> dict[str, Any]:
    with _gateways({"head": HERE}, redis=given.redis, limits=given.limits) as gateways:
        clients = Processes(1, load_when_told)
        gateway = gateways["head"]
        measure(gateway, clients, ["unary"], 1.0)
        runs = [measure(gateway, clients, given.scenarios, given.seconds) for _ in range(given.repeats)]
    found = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    for name, (said, _) in _FIGURES.items():
        if name in found:
            print(f"{said:40} {found[name]:9.2f}")
    return {"figures": found, "runs": runs}


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each scenario")
    parser.add_argument("--repeats", type=int, default=3, help="of every scenario; the median is shown")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--redis", action="store_true", help="with a Redis of its own")
    parser.add_argument("--limits", action="store_true", help="with limits of this tree's project")
    parser.add_argument("--tree", type=Path, help="compare with this tree")
    parser.add_argument("--pairs", type=int, default=15, help="with --tree: so many more pairs")
    given = parser.parse_args(arguments)
    found = _compare(given) if given.tree else _alone(given)
    if given.json and not given.tree:
        given.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
