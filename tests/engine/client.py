"""A small gateway for tests: it dials a replica, and keeps what it hears."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from engine.protocol import (
    VERSION,
    Ack,
    Beat,
    Began,
    Dial,
    Done,
    Generate,
    Hello,
    Scope,
    ToGateway,
    Tokens,
    ToReplica,
    encode,
    link_proof,
    read_from_replica,
)

ROOT = Path(__file__).resolve().parents[2]
LINK_KEY = b"k" * 32
_START = """
import json, sys
from pathlib import Path
from typing import ClassVar
from engine.replica import ReplicaOptions, main
from engine.errors import EngineError
fields = json.loads(sys.argv[1])
for name in ("model", "data"):
    fields[name] = Path(fields[name])
try:
    sys.exit(main(ReplicaOptions(link_key=bytes.fromhex(fields.pop("link_key")), **fields)))
except EngineError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
"""


@dataclass
class Client:
    """One connection. `done`, `tokens`, `began` are by request id; `beats` are in order."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    hello: Hello
    tokens: dict[str, list[int]] = field(default_factory=dict)
    began: dict[str, Began] = field(default_factory=dict)
    done: dict[str, Done] = field(default_factory=dict)
    beats: list[Beat] = field(default_factory=list)
    acknowledges: bool = True
    dialed: ClassVar[list[Client]] = []

    @classmethod
    async def dial(cls, path: str, key: bytes = LINK_KEY, name: str = "test", patience: float = 20.0) -> Client:
        """Connect and prove ourselves, waiting for the replica to come up."""
        end = asyncio.get_running_loop().time() + patience
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
        client.send(Dial(VERSION, name, link_proof(key, hello.challenge, name)))
        return client

    def send(self, *messages: ToReplica) -> None:
        for message in messages:
            self.writer.write(encode(message))

    def generate(self, request: Generate, scopes: tuple[Scope, ...] = ()) -> None:
        self.send(*scopes, request)

    async def hear(self) -> ToGateway | None:
        """The next message, kept under its id; a Done is acknowledged if `acknowledges`."""
        message = await asyncio.wait_for(read_from_replica(self.reader), 20)
        match message:
            case Beat():
                self.beats.append(message)
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
    """A real replica process on a Unix socket."""

    process: asyncio.subprocess.Process
    path: str
    data: Path

    @classmethod
    async def start(
        cls, folder: Path, model: Path, /, fault: str = "", output: Path | None = None, **fields: object
    ) -> ReplicaProcess:
        """`fault` is code that the process runs first, to break something in itself; `output` a file for what it says,
        which else is kept until its end."""
        path = str(folder / "socket")
        options = {
            "model": str(model),
            "address": f"unix:{path}",
            "data": str(folder / "journal"),
            "name": "replica",
            "link_key": LINK_KEY.hex(),
            "device": "cpu",
            "kv_memory": 8 << 20,
            **fields,
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            fault + _START,
            json.dumps(options),
            cwd=ROOT,
            env={**os.environ, "PYTHONWARNINGS": "error"},
            stdout=asyncio.subprocess.PIPE if output is None else output.open("wb"),
            stderr=asyncio.subprocess.STDOUT,
        )
        return cls(process, path, Path(str(options["data"])))

    def leaves_socket(self) -> bool:
        """Whether the socket's file is there."""
        return Path(self.path).exists()

    async def kill(self) -> None:
        """kill -9."""
        self.process.send_signal(signal.SIGKILL)
        await self.process.communicate()

    async def stop(self) -> int:
        """SIGTERM; the exit status."""
        if self.process.returncode is None:
            self.process.terminate()
        await asyncio.wait_for(self.process.communicate(), 20)
        assert self.process.returncode is not None
        return self.process.returncode

    async def output(self) -> str:
        """All that it printed, after its end."""
        out, _ = await asyncio.wait_for(self.process.communicate(), 30)
        return out.decode()
