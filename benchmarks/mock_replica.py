"""A replica without a model, for benchmarks of the gateway: the real protocol on a Unix socket, and a canned answer.

A request with seed `PACED` gets its first token after `FIRST_S` and one more each `APART_S`; any other gets all of its
tokens at once, one message each if there is a seed and one message in all if there is none. `Done` is repeated to a
gateway that dials again until it is acknowledged, as a journal would. `python -m benchmarks.mock_replica SOCKET MODEL`
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import uvloop
from msgspec import structs

from gateway.served_models.served_model import load_served_model
from protocol.frames import OLDEST_VERSION, VERSION, ToGateway, encode, read_from_gateway
from protocol.replicas import Capacity, Dial, Heartbeat, Hello, Layout, ServedModel
from protocol.requests import Abort, Ack, Began, Counts, Credit, Done, Generate, Tokens

PACED, BURST = 1, 2
"""Seeds of requests: tokens in time, and all at once in a message each."""
FIRST_S, APART_S = 0.050, 0.020
_CONTEXT = 32_768
_BEAT_S = 1.0
_TEXT = "the quick brown fox jumps over the lazy dog and runs along the river until it sleeps. " * 40


class MockReplica:
    """Answers every gateway that dials `path` with the beginning of one text in `model`'s tokens."""

    def __init__(self, path: Path, model: Path) -> None:
        self._path = path
        served = load_served_model(model)
        self._model = ServedModel(served.name, "d" * 64, served.text_digest, "float32", served.tokenizer.size)
        self._tokens = served.tokenizer.content(_TEXT)
        self._journal: dict[str, Done] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._sequence = 0

    async def serve(self) -> None:
        """Listen until cancelled."""
        server = await asyncio.start_unix_server(self._link, str(self._path))
        async with server:
            await server.serve_forever()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        capacity = Capacity((100_000,), _CONTEXT, 4096)
        hello = Hello(
            VERSION, OLDEST_VERSION, "mock", 1, os.urandom(16), self._model, Layout(64, ()), capacity, "mock", 0
        )
        writer.write(encode(hello))
        if not isinstance(await read_from_gateway(reader), Dial):
            return
        for done in self._journal.values():
            writer.write(encode(structs.replace(done, replayed=True)))
        beats = asyncio.create_task(self._beat(writer))
        try:
            while (message := await read_from_gateway(reader)) is not None:
                self._take(message, writer)
        finally:
            beats.cancel()
            writer.close()

    def _take(self, message: object, writer: asyncio.StreamWriter) -> None:
        if isinstance(message, Generate):
            if message.sampling.seed == PACED:
                self._running[message.id] = asyncio.create_task(self._pace(message, writer))
            else:
                self._answer(message, writer)
        elif isinstance(message, Ack):
            self._journal.pop(message.id, None)
        elif isinstance(message, Abort) and (task := self._running.pop(message.id, None)) is not None:
            task.cancel()
            writer.write(encode(Done(message.id, 1, "rejected", Counts(), 0)))
        elif isinstance(message, Credit):
            pass  # answers are shorter than the credit window

    def _answer(self, asked: Generate, writer: asyncio.StreamWriter) -> None:
        tokens = self._tokens[: asked.sampling.max_tokens]
        each = 1 if asked.sampling.seed == BURST else len(tokens)
        said: list[ToGateway] = [Began(asked.id, asked.attempt, _counts(asked))]
        said += [
            Tokens(asked.id, asked.attempt, start, tokens[start : start + each])
            for start in range(0, len(tokens), each or 1)
        ]
        writer.write(b"".join(map(encode, [*said, self._done(asked, len(tokens))])))

    async def _pace(self, asked: Generate, writer: asyncio.StreamWriter) -> None:
        tokens = self._tokens[: asked.sampling.max_tokens]
        clock = asyncio.get_running_loop().time
        began = clock() + FIRST_S
        writer.write(encode(Began(asked.id, asked.attempt, _counts(asked))))
        for start, token in enumerate(tokens):
            await asyncio.sleep(began + start * APART_S - clock())
            writer.write(encode(Tokens(asked.id, asked.attempt, start, [token])))
        self._running.pop(asked.id, None)
        writer.write(encode(self._done(asked, len(tokens))))

    def _done(self, asked: Generate, output: int) -> Done:
        self._sequence += 1
        counts = structs.replace(_counts(asked), output=output)
        done = Done(asked.id, asked.attempt, "length", counts, self._sequence, claim=asked.claim)
        self._journal[asked.id] = done
        return done

    async def _beat(self, writer: asyncio.StreamWriter) -> None:
        steps = 0
        while True:
            steps += 1
            writer.write(encode(Heartbeat(steps, len(self._running), {"standard": 0}, (), {})))
            await asyncio.sleep(_BEAT_S)


def _counts(asked: Generate) -> Counts:
    return Counts(prompt=len(asked.tokens), computed=len(asked.tokens))


def main(arguments: list[str]) -> int:
    """Serve until killed."""
    path, model = map(Path, arguments)
    uvloop.run(MockReplica(path, model).serve())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
