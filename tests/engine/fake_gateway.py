"""A small gateway for tests: it dials a replica, and keeps the messages that it gets."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, ClassVar

from engine.errors import EngineError
from engine.server.replica import main
from engine.startup.options import ReplicaOptions
from protocol.frames import VERSION, ToGateway, ToReplica, encode, link_proof, read_from_replica
from protocol.replicas import Dial, Heartbeat, Hello, Load, Scope
from protocol.requests import Ack, Began, Done, Generate, Tokens

LINK_KEY = b"k" * 32
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__])


def _run(fault: str, fields: dict[str, Any], output: Path) -> None:
    """The process of a replica: runs `fault`, then the replica until it stops. Its output goes to a file."""
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(written, sys.stdout.fileno())
    os.dup2(written, sys.stderr.fileno())
    warnings.simplefilter("error")
    exec(fault, {})  # the tests' own
    try:
        sys.exit(main(ReplicaOptions(**fields)))
    except EngineError as error:
        print(error, file=sys.stderr)  # noqa: T201
        sys.exit(2)


async def hear_within(reader: asyncio.StreamReader, seconds: float) -> ToGateway | None:
    """The next message of a replica; None when it closed the connection. Raises TimeoutError after so much silence.

    A pause of this process counts as a twentieth of that at most: while the machine stands still, the replica cannot
    send.
    """
    reading = asyncio.ensure_future(read_from_replica(reader))
    try:
        for _ in range(20):
            done, _ = await asyncio.wait({reading}, timeout=seconds / 20)
            if done:
                return reading.result()
        raise TimeoutError(f"the replica was silent for {seconds} s")
    finally:
        reading.cancel()


@dataclass
class Client:
    """One connection. `done`, `tokens` and `began` are by request id; `beats` and `loads` are in order."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    hello: Hello
    tokens: dict[str, list[int]] = field(default_factory=dict)
    began: dict[str, Began] = field(default_factory=dict)
    done: dict[str, Done] = field(default_factory=dict)
    beats: list[Heartbeat] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    acknowledges: bool = True
    dialed: ClassVar[list[Client]] = []

    @classmethod
    async def dial(
        cls,
        path: str,
        key: bytes = LINK_KEY,
        name: str = "test",
        timeout_s: float = 60.0,
        epoch: str = "",
        version: int = VERSION,
    ) -> Client:
        """Connect and send the proof, waiting for the replica to come up."""
        end = asyncio.get_running_loop().time() + timeout_s
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(path)
                break
            except (FileNotFoundError, ConnectionRefusedError):
                assert asyncio.get_running_loop().time() < end, "the replica does not come up"
                await asyncio.sleep(0.02)
        hello = await read_from_replica(reader)
        assert isinstance(hello, Hello)
        client = cls(reader, writer, hello)
        cls.dialed.append(client)
        client.send(Dial(version, name, link_proof(key, hello.challenge, name), epoch))
        return client

    def send(self, *messages: ToReplica) -> None:
        for message in messages:
            self.writer.write(encode(message))

    def generate(self, request: Generate, scopes: tuple[Scope, ...] = ()) -> None:
        self.send(*scopes, request)

    async def hear(self) -> ToGateway | None:
        """The next message, kept under its id; a Done is acknowledged if `acknowledges`."""
        message = await hear_within(self.reader, 20)
        match message:
            case Heartbeat():
                self.beats.append(message)
            case Load():
                self.loads.append(message)
            case Began():
                self.began[message.id] = message
            case Tokens():
                self.tokens.setdefault(message.id, []).extend(message.tokens)
            case Done():
                self.done[message.id] = message
                if self.acknowledges and message.sequence:
                    self.send(Ack(message.id, message.sequence))
        return message

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert await self.hear() is not None, "the replica hung up"

    async def finished(self, *ids: str) -> None:
        await self.until(lambda: all(id in self.done for id in ids))

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


@dataclass
class ReplicaProcess:
    """A real replica process on a Unix socket, forked from a server that has imported what takes seconds."""

    process: ForkServerProcess
    path: str
    data: Path
    printed: Path

    @classmethod
    async def start(
        cls, folder: Path, model: Path, /, fault: str = "", output: Path | None = None, **fields: object
    ) -> ReplicaProcess:
        """`fault` is code that the process runs first, to break something in itself; `output` a file for its words."""
        path = str(folder / "socket")
        options = {
            "model": model,
            "address": f"unix:{path}",
            "data": folder / "journal",
            "name": "replica",
            "link_key": LINK_KEY,
            "device": "cpu",
            "kv_memory": 8 << 20,
            **fields,
        }
        printed = output or folder / "printed"
        process = _FORKS.Process(target=_run, args=(fault, options, printed))
        process.start()
        return cls(process, path, Path(str(options["data"])), printed)

    @property
    def status(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self.process.exitcode

    def leaves_socket(self) -> bool:
        """Whether the socket's file is there."""
        return Path(self.path).exists()

    def signal(self, which: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, which)

    async def kill(self) -> None:
        """kill -9."""
        self.signal(signal.SIGKILL)
        await self.ended()

    async def stop(self) -> int:
        """SIGTERM; the exit status."""
        if self.status is None:
            self.signal(signal.SIGTERM)
        return await self.ended()

    async def ended(self, seconds: float = 60) -> int:
        """The exit status, once it has ended."""
        await asyncio.to_thread(self.process.join, seconds)
        assert self.status is not None, "it does not end"
        return self.status

    async def output(self) -> str:
        """All that it printed, after its end."""
        await self.ended()
        return self.printed.read_text()
