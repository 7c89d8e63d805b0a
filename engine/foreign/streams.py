"""The streams of a foreign engine: a thread of its own sends requests over HTTP and reads what comes.

Whoever steps the engine starts and ends streams, and takes what has come; nothing here blocks it. A stream that nobody
takes from is not read on beyond `MOST_UNTAKEN` tokens. Nothing of a body is trusted: its length is bounded by what was
asked for, ids by the vocabulary, waits by `stall_s`.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import structlog

from engine.foreign.engine_client import (
    PROBE_S,
    Chunk,
    Ended,
    EngineClient,
    EngineFacts,
    ForeignError,
    ForeignRequest,
)

logger = structlog.get_logger("engine.foreign.streams")

MOST_UNTAKEN = 2_048
_MOST_EVENT_BYTES = 4 << 20
_CONNECT_S = 5.0
_ABORT_S = 2.0
CHECK_EVERY_S = 2.0
"""Seconds between two looks at whether the engine answers."""
_DATA = "data:"


@dataclass(eq=False)
class Stream:
    """One request at the engine. `chunks` are taken from the left by the thread that steps; `problem` says why no
    more will come, if it ended by itself, and `lost` whether that was the engine's end or absence."""

    request: ForeignRequest
    chunks: deque[Chunk] = field(default_factory=deque)
    problem: str | None = None
    lost: bool = False
    over: bool = False
    """Whether nothing more comes."""
    had: int = 0
    """Tokens that came; those not taken yet among them."""
    taken: int = 0
    task: asyncio.Task[None] | None = None
    room: asyncio.Event = field(default_factory=asyncio.Event)


class Streams:
    """`arrived` is called in this thread, or that of `start`, when a stream has news. `stall_s`: seconds without an
    event after which a stream is given up. `vocabulary`: token ids are below it."""

    def __init__(self, client: EngineClient, url: str, vocabulary: int, stall_s: float, key: str | None = None) -> None:
        self.client = client
        self.arrived: Callable[[], None] = _nothing
        self.reachable = True
        self.facts: EngineFacts | None = None
        """What the engine is to be; another one is not used."""
        self._url = url
        self._vocabulary = vocabulary
        self._stall_s = stall_s
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http: httpx.AsyncClient | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name="foreign streams", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ called by other threads

    def probe(self, texts: list[str]) -> tuple[EngineFacts, list[list[int]]]:
        """What the engine is, and how it tokenizes these texts. Raises ForeignError."""
        return asyncio.run_coroutine_threadsafe(self._probe(texts), self._loop).result()

    def start(self, stream: Stream) -> None:
        """Send a request."""
        self._call(lambda: self._start(stream))

    def taken(self, stream: Stream, tokens: int) -> None:
        """So many more of its tokens were taken: it may be read on."""
        stream.taken += tokens
        if stream.had - stream.taken < MOST_UNTAKEN and not stream.room.is_set():
            self._call(stream.room.set)

    def end(self, stream: Stream) -> None:
        """Close a stream, which may have ended, and have the engine stop its request."""
        self._call(lambda: self._end(stream))

    def close(self, seconds: float) -> None:
        """Close all streams, and end the thread. Waits at most so many seconds."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(seconds)

    def _call(self, function: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # it is closed: the process ends
            self._loop.call_soon_threadsafe(function)

    # ------------------------------------------------------------ in the thread

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._http = self._new_http()
        watch = self._loop.create_task(self._watch())
        try:
            self._loop.run_forever()
        finally:
            tasks = [task for task in asyncio.all_tasks(self._loop) if task is not watch]
            for task in (watch, *tasks):
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(watch, *tasks, return_exceptions=True))
            self._loop.run_until_complete(self._http.aclose())
            self._loop.close()

    def _new_http(self) -> httpx.AsyncClient:
        timeout = httpx.Timeout(self._stall_s, connect=_CONNECT_S, pool=None)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        return httpx.AsyncClient(
            base_url=self._url, headers=self._headers, timeout=timeout, limits=limits, trust_env=False
        )

    async def _probe(self, texts: list[str]) -> tuple[EngineFacts, list[list[int]]]:
        assert self._http is not None
        try:
            facts = await self.client.probe(self._http)
            return facts, [await self.client.tokenize(self._http, text) for text in texts]
        except (httpx.HTTPError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise ForeignError(f"{self._url}: {type(error).__name__}: {error}") from error

    async def _watch(self) -> None:
        """Keep `reachable`: whether the engine answers at all."""
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            reachable, why = True, ""
            try:
                assert self._http is not None
                (await self._http.get("/health", timeout=PROBE_S)).raise_for_status()
                if self.facts is not None and (found := await self.client.probe(self._http)) != self.facts:
                    reachable, why = False, f"it is {found.name} now, and was {self.facts.name}"
            except Exception as error:  # whatever it answers: it is asked again
                reachable, why = False, f"{type(error).__name__}: {error}"
            if reachable != self.reachable:
                happened = "the engine answers again" if reachable else "the engine does not answer"
                logger.warning(happened, url=self._url, cause=why)
            self.reachable = reachable

    def _start(self, stream: Stream) -> None:
        stream.task = self._loop.create_task(self._run(stream))

    def _end(self, stream: Stream) -> None:
        if stream.had >= max(1, stream.request.max_tokens):
            stream.taken = stream.had
            stream.room.set()  # its last event is on its way, and the connection can serve again
        elif stream.task is not None and not stream.task.done():
            stream.task.cancel()
            if (abort := self.client.aborting(stream.request)) is not None:
                self._loop.create_task(self._abort(*abort))  # the loop's end awaits all tasks

    async def _abort(self, path: str, body: Any) -> None:
        assert self._http is not None
        try:
            await self._http.post(path, json=body, timeout=_ABORT_S)
        except httpx.HTTPError as error:
            logger.info("a request was not aborted by its id", cause=f"{type(error).__name__}: {error}")

    async def _run(self, stream: Stream) -> None:
        try:
            await self._read(stream)
        except asyncio.CancelledError:
            raise
        except ForeignError as error:
            stream.problem = str(error)
        except (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout) as error:
            stream.lost, stream.problem = True, f"{type(error).__name__}: {error}"
            if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                self.reachable = False
        except (httpx.HTTPError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            stream.problem = f"{type(error).__name__}: {error}"
        finally:
            stream.over = True
            self.arrived()

    async def _read(self, stream: Stream) -> None:
        assert self._http is not None
        request = stream.request
        path, body = self.client.written(request)
        async with self._http.stream("POST", path, json=body) as answer:
            if answer.status_code != httpx.codes.OK:
                text = (await answer.aread())[:300].decode(errors="replace")
                raise ForeignError(f"status {answer.status_code}: {text}")
            ended: Ended | None = None
            async for event in _events(answer):
                chunk = self.client.read(event, request, stream.had)
                self._check(chunk, stream)
                if ended is not None:  # what follows the end is what was counted
                    chunk = Chunk(cached=chunk.cached, ended=ended)
                elif chunk.ended is not None and self.client.counts_last:
                    ended, chunk = chunk.ended, Chunk(chunk.tokens, chunk.logprobs, chunk.cached)
                stream.had += len(chunk.tokens)
                stream.chunks.append(chunk)
                self.arrived()
                if chunk.ended is not None:
                    return
                while stream.had - stream.taken >= MOST_UNTAKEN:
                    stream.room.clear()
                    await stream.room.wait()
            if ended is not None:
                stream.chunks.append(Chunk(ended=ended))
                return
        raise ForeignError("its stream ended without a reason")

    def _check(self, chunk: Chunk, stream: Stream) -> None:
        """Raise ForeignError for what cannot be true."""
        if not all(type(token) is int and 0 <= token < self._vocabulary for token in chunk.tokens):
            raise ForeignError(f"token ids {chunk.tokens[:8]} are not all within a vocabulary of {self._vocabulary}")
        if stream.had + len(chunk.tokens) > max(1, stream.request.max_tokens):
            raise ForeignError(f"more than {stream.request.max_tokens} tokens came")
        if chunk.logprobs and len(chunk.logprobs) != len(chunk.tokens):
            raise ForeignError(f"{len(chunk.logprobs)} log probabilities for {len(chunk.tokens)} tokens")
        if not all(0 <= token < self._vocabulary for one in chunk.logprobs for token, _ in one.top):
            raise ForeignError(f"log probabilities of tokens outside a vocabulary of {self._vocabulary}")
        cached = chunk.cached
        if cached is not None and not (type(cached) is int and 0 <= cached <= len(stream.request.tokens)):
            raise ForeignError(f"{chunk.cached} cached tokens of a prompt of {len(stream.request.tokens)}")


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a stream of server-sent events, to `[DONE]`. Raises ForeignError, ValueError."""
    rest = b""
    async for part in answer.aiter_raw():
        rest += part
        *lines, rest = rest.split(b"\n")
        for line in lines:
            text = line.decode().strip()
            if not text.startswith(_DATA):
                continue
            data = text[len(_DATA) :].strip()
            if data == "[DONE]":
                return
            event = json.loads(data)
            if not isinstance(event, dict):
                raise ForeignError(f"an event is no object: {data[:100]}")
            yield event
        if len(rest) > _MOST_EVENT_BYTES:
            raise ForeignError(f"an event is longer than {_MOST_EVENT_BYTES} bytes")


def _nothing() -> None:
    """Until somebody wants to hear."""


def wait_for_engine(streams: Streams, texts: list[str], seconds: float) -> tuple[EngineFacts, list[list[int]]]:
    """`probe`, again and again while an engine starts. Raises ForeignError."""
    end = time.monotonic() + seconds
    while True:
        try:
            return streams.probe(texts)
        except ForeignError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
