"""Clients that misuse connections, against a gateway: latency of `/healthz` while each kind of them tries.

The gateway is a process of its own, without a replica, on an embedded database. Beside each kind of client, a probe
asks for /healthz on a connection of its own and waits 5 ms after each answer.
`python -m benchmarks.hostile_clients --json OUT`; the exit status is 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from benchmarks.processes import Processes, server_cpu_s

BAR_P50_S = 0.010
_PROBE_PAUSE_S = 0.005
_BLOCK = b"a" * 65536
_ONE_BYTE_CHUNKS = b"1\r\na\r\n" * 10_000
_START_S = 60.0


class Attack(msgspec.Struct, frozen=True):
    """What hostile clients do: the kind, the number of connections, the port and the seconds."""

    kind: str
    connections: int
    port: int
    key: str
    seconds: float


class Outcome(msgspec.Struct, frozen=True):
    """What came of it: connections that were opened in all, and bytes that the server's machine took."""

    connections: int
    sent: int


def _head(key: str, fields: str, target: str = "POST /v1/chat/completions") -> bytes:
    return f"{target} HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {key}\r\n{fields}\r\n".encode()


class _HostileClients:
    """Runs one attack: each connection is opened again when the server ends it."""

    def __init__(self, attack: Attack) -> None:
        self._attack = attack
        self._until = time.monotonic() + attack.seconds
        self.sent = 0
        self.opened = 0

    def run(self) -> Outcome:
        kind = self._attack.kind
        if kind in ("idle", "slow heads"):
            self._hold_many(b"POST /v1/chat/completions HTTP/1.1\r\n" if kind == "slow heads" else b"")
        else:
            threads = [threading.Thread(target=self._repeat) for _ in range(self._attack.connections)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return Outcome(self.opened, self.sent)

    def _repeat(self) -> None:
        while time.monotonic() < self._until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._attack.port), 5) as line:
                self.opened += 1
                line.settimeout(1)
                self._talk(line)

    def _talk(self, line: socket.socket) -> None:
        first, block = self._words()
        self._send(line, first)
        if "again" in self._attack.kind:
            self._send(line, block)
            line.recv(1)
            return
        while time.monotonic() < self._until:
            with contextlib.suppress(TimeoutError):
                self._send(line, block)
            if self._attack.kind == "pipelined":
                self._read_some(line)

    @staticmethod
    def _read_some(line: socket.socket) -> None:
        line.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while line.recv(1 << 20):
                pass
        line.settimeout(1)

    def _send(self, line: socket.socket, data: bytes) -> None:
        self.sent += line.send(data)

    def _words(self) -> tuple[bytes, bytes]:
        """What a connection begins with, and what it goes on with."""
        key, chunked = self._attack.key, "transfer-encoding: chunked\r\n"
        match self._attack.kind:
            case "body after 401" | "401 again and again":
                return _head("sk-nobody", "content-length: 1000000000000\r\n"), _BLOCK
            case "body after 413":
                return _head(key, "content-length: 1000000000000\r\n"), _BLOCK
            case "body after 404":
                return _head(key, "content-length: 1000000000000\r\n", "POST /nowhere"), _BLOCK
            case "one-byte chunks after 401":
                return _head("sk-nobody", chunked), _ONE_BYTE_CHUNKS
            case "one-byte chunks with a key" | "one-byte chunks again and again":
                return _head(key, chunked), _ONE_BYTE_CHUNKS
            case "chunk extensions with a key":
                return _head(key, chunked), b"1;" + b"e" * 60_000
            case "long heads":
                return b"GET /healthz HTTP/1.1\r\nhost: t\r\nx: ", _BLOCK
            case _:
                return b"", b"GET /nowhere HTTP/1.1\r\nhost: t\r\n\r\n" * 1000

    def _hold_many(self, head: bytes) -> None:
        lines: list[socket.socket] = []
        position = 0
        while time.monotonic() < self._until:
            if len(lines) < self._attack.connections:
                with contextlib.suppress(OSError):
                    lines.append(socket.create_connection(("127.0.0.1", self._attack.port), 5))
                    self.opened += 1
                continue
            if head:
                for line in lines:
                    with contextlib.suppress(OSError):
                        self._send(line, head[position : position + 1] or b"x")
                position += 1
            time.sleep(0.5)
        for line in lines:
            line.close()


def attack_when_told(pipe: Connection) -> None:
    """Run each attack that comes through the pipe."""
    while True:
        pipe.send(_HostileClients(pipe.recv()).run())


def _probe(port: int, stopped: Callable[[], bool]) -> list[float]:
    """The seconds that each request took; one that failed counts as 5 s."""
    took: list[float] = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    while not stopped():
        began = time.monotonic()
        try:
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            took.append(time.monotonic() - began)
        except (OSError, http.client.HTTPException):
            connection.close()
            took.append(5.0)
        time.sleep(_PROBE_PAUSE_S)
    connection.close()
    return took


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def _gateway(folder: Path) -> Iterator[tuple[int, int, str]]:
    """A gateway process: its port, its process id, and a key."""
    environment = os.environ | {"TURNPIKE_DATA_DIR": str(folder / "data"), "TURNPIKE_LOG_LEVEL": "error"}
    turnpike = [sys.executable, "-m", "turnpike.cli"]

    def command(*arguments: str) -> str:
        done = subprocess.run([*turnpike, *arguments], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"turnpike {' '.join(arguments)}: {done.stderr}")
        return done.stdout.strip()

    command("migrate")
    command("prices", "set", "--from-model-folder")
    command("tenants", "create", "acme")
    key = command("keys", "create", "--tenant", "acme", "--project", "default")
    port = _free_port()
    with (folder / "log").open("wb") as log:
        gateway = subprocess.Popen([*turnpike, "gateway", "--port", str(port)], env=environment, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + _START_S
            while _probe(port, _once()) == [5.0]:
                if gateway.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((folder / "log").read_text()[-2000:])
            yield port, gateway.pid, key
        finally:
            gateway.terminate()
            try:
                gateway.wait(20)
            except subprocess.TimeoutExpired:
                gateway.kill()
                gateway.wait()


def _once() -> Callable[[], bool]:
    answers = iter([False])
    return lambda: next(answers, True)


SCENARIOS: tuple[tuple[str, int, bool], ...] = (
    ("nobody", 0, False),
    ("body after 401", 8, True),
    ("body after 413", 8, True),
    ("body after 404", 8, True),
    ("one-byte chunks after 401", 8, True),
    ("one-byte chunks with a key", 8, True),
    ("chunk extensions with a key", 8, True),
    ("long heads", 8, True),
    ("401 again and again", 8, True),
    ("one-byte chunks again and again", 8, True),
    ("pipelined", 8, True),
    ("slow heads", 500, False),
    ("idle", 2000, False),
)
"""Kind, connections, and whether the bar is for it."""


def measure(seconds: float, only: str = "") -> dict[str, dict[str, float]]:
    """Every scenario's figures: seconds of /healthz, and what the clients sent meanwhile."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="turnpike-hostile-clients-") as folder:
        clients = Processes(1, attack_when_told)
        with _gateway(Path(folder)) as (port, process, key):
            for kind, connections, _ in SCENARIOS:
                if only not in kind:
                    continue
                outcome: list[Outcome] = []
                attack = Attack(kind, connections, port, key, seconds)
                asking = threading.Thread(target=lambda a=attack, o=outcome: o.extend(clients.ask([a])))
                cpu = server_cpu_s(process)
                asking.start()
                took = sorted(_probe(port, lambda t=asking: not t.is_alive()))  # type: ignore[misc]
                asking.join()
                if not connections:
                    took = sorted(_probe(port, _times(200)))
                found[kind] = {
                    "requests": len(took),
                    "p50_s": statistics.median(took),
                    "p99_s": took[min(len(took) - 1, len(took) * 99 // 100)],
                    "max_s": took[-1],
                    "opened": outcome[0].connections,
                    "sent_bytes": outcome[0].sent,
                    "gateway_cpu_s": server_cpu_s(process) - cpu,
                }
    return found


def _times(count: int) -> Callable[[], bool]:
    answers = iter([False] * count)
    return lambda: next(answers, True)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and say whether the bar is met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each kind of client")
    parser.add_argument("--only", default="", help="the kinds whose names have this in them")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args(arguments)
    found = measure(given.seconds, given.only)
    print(f"{'clients':32} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} {'opened':>7} {'sent MB':>9} {'CPU s':>6}")
    for kind, of in found.items():
        times = " ".join(f"{of[name] * 1000:8.1f}" for name in ("p50_s", "p99_s", "max_s"))
        print(f"{kind:32} {times} {of['opened']:7.0f} {of['sent_bytes'] / 1e6:9.1f} {of['gateway_cpu_s']:6.2f}")
    missed = [kind for kind, _, bar in SCENARIOS if bar and kind in found and found[kind]["p50_s"] > BAR_P50_S]
    print(f"p50 of at most {BAR_P50_S * 1000:g} ms beside eight of them:", f"missed by {missed}" if missed else "met")
    if given.json:
        given.json.write_text(json.dumps({"bar_p50_s": BAR_P50_S, "clients": found, "missed": missed}, indent=1))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
