"""The clients of a world: they ask a gateway, read at their own pace, leave when they like, and remember what they saw.

They speak ASGI to the application: what uvicorn would do between is none of the world.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import Any

from litestar import Litestar
from msgspec import Struct

from simulation.nodes import Node

_CONTENT = re.compile(rb'"content": ?"([^"]*)"')
"""What is said; the words of the script have no marks."""


class Seen(Struct):
    """What a client saw of its request. `ended`: "" while it is asked; "whole" with all of it, "failed" with an error,
    "broken" where the connection was lost, "left" where the client went."""

    prompt: str
    most: int
    streamed: bool
    tenant: int
    key: str = ""
    status: int = 0
    request: str = ""
    text: str = ""
    usage: dict[str, Any] | None = None
    finish: str = ""
    error: str = ""
    ended: str = ""
    replayed: bool = False
    handed: int = 0
    """Tokens that the gateway handed over, read or not."""


class Client:
    """Asks one request of one gateway process."""

    def __init__(self, chance: random.Random, seen: Seen, api_key: str) -> None:
        self.seen = seen
        self._chance = chance
        self._api_key = api_key
        self._inbox: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._body = self._handed = b""

    async def ask(self, app: Litestar, node: Node, patience_s: float) -> None:
        """Ask, and read until the end, or until `patience_s` seconds have passed: then the client leaves."""
        if not node.alive:
            self.seen.ended, self.seen.error = "failed", "nobody listens"
            return
        node.on_death.append(self._connection_lost)
        work = node.start(app(self._scope(), self._receive(), self._send))  # type: ignore[arg-type]
        work.add_done_callback(lambda _: self._inbox.put_nowait(None))
        try:
            async with asyncio.timeout(patience_s):
                while (message := await self._inbox.get()) is not None:
                    self._hear(message)
        except TimeoutError:
            self.seen.ended = "left"
        self._gone.set()
        if not self.seen.ended:
            self._end()

    def _scope(self) -> Any:
        headers = [
            (b"authorization", f"Bearer {self._api_key}".encode()),
            (b"content-type", b"application/json"),
            (b"host", b"gateway"),
        ]
        if self.seen.key:
            headers.append((b"idempotency-key", self.seen.key.encode()))
        return {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions", "query_string": b"", "root_path": "",
            "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "extensions": {},
        }  # fmt: skip

    def _receive(self) -> Any:
        body = json.dumps(
            {
                "model": "tiny",
                "messages": [{"role": "user", "content": self.seen.prompt}],
                "max_tokens": self.seen.most,
                "stream": self.seen.streamed,
                **({"stream_options": {"include_usage": True}} if self.seen.streamed else {}),
            }
        ).encode()
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            await self._gone.wait()
            return {"type": "http.disconnect"}

        return receive

    async def _send(self, message: dict[str, Any]) -> None:
        """Runs in the gateway's process."""
        if self._gone.is_set():
            raise OSError("the client is gone")
        await asyncio.sleep(self._chance.expovariate(1_000.0))
        if message["type"] == "http.response.body":
            self._note_handed(message.get("body", b""))
        self._inbox.put_nowait(message)

    def _note_handed(self, body: bytes) -> None:
        self._handed += body
        if self.seen.streamed:
            *events, self._handed = self._handed.split(b"\n\n")
            for event in events:
                for text in _CONTENT.findall(event):
                    self.seen.handed += text.count(b" ")
        elif match := _CONTENT.search(self._handed):
            self.seen.handed = match[1].count(b" ")

    def _connection_lost(self) -> None:
        if not self.seen.ended:
            self._inbox.put_nowait(None)

    def _hear(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.seen.status = message["status"]
            for name, value in message["headers"]:
                if name.lower() == b"x-request-id":
                    self.seen.request = value.decode()
                if name.lower() == b"idempotent-replayed":
                    self.seen.replayed = True
            return
        self._body += message.get("body", b"")
        if self.seen.streamed and self.seen.status == 200:
            *events, self._body = self._body.split(b"\n\n")
            for event in events:
                self._hear_event(event)
        elif not message.get("more_body"):
            self._hear_whole(json.loads(self._body or b"{}"))

    def _hear_event(self, event: bytes) -> None:
        data = b"".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
        if not data:
            return
        if data == b"[DONE]":
            self.seen.ended = "whole"
            return
        self._take(json.loads(data), "delta")

    def _hear_whole(self, answer: dict[str, Any]) -> None:
        self._take(answer, "message")
        if not self.seen.error:
            self.seen.ended = "whole"

    def _take(self, answer: dict[str, Any], part: str) -> None:
        if "error" in answer:
            self.seen.error, self.seen.ended = str(answer["error"].get("code") or answer["error"]), "failed"
            return
        for choice in answer.get("choices", ()):
            self.seen.text += choice.get(part, {}).get("content") or ""
            self.seen.finish = choice.get("finish_reason") or self.seen.finish
        if answer.get("usage"):
            self.seen.usage = answer["usage"]
        self.seen.request = answer.get("id", self.seen.request)

    def _end(self) -> None:
        self.seen.ended = "broken"
