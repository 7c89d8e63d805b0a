"""The server: HTTP on the loopback, idempotency keys with replay, and faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from fake_stripe import customers, disputes, invoices, payments
from fake_stripe.account import Account
from fake_stripe.errors import StripeError
from fake_stripe.faults import Faults
from fake_stripe.pages import Page, answer_page
from fake_stripe.routes import find_route
from fake_stripe.typed_parameters import check_parameters, decode_form

MODULES = (customers, disputes, invoices, payments)
"""Imported for the routes that they declare."""
_MOST_KEY, _MOST_BODY = 255, 1 << 20
_CONNECTION = ("rate_limit", "conflict", "drop")
_KEPT_S = 86_400


class Answer(NamedTuple):
    """A status and a body; `replayed`: it was kept under an idempotency key."""

    status: int
    body: dict[str, Any]
    replayed: bool = False


class _Kept(NamedTuple):
    request: tuple[str, str, str]
    answer: Answer
    at: int


class FakeStripe:
    """An account behind HTTP. `requests` are those that came, `carried_out` those that were not replayed."""

    def __init__(self, account: Account | None = None, faults: Faults | None = None, key: str = "rk_test_fake") -> None:
        self.account = account or Account()
        self.account.on_money = invoices.settle_payments
        self.faults = faults or Faults()
        self.key = key
        self.requests: list[tuple[str, str]] = []
        self.carried_out: list[tuple[str, str]] = []
        self._kept: dict[str, _Kept] = {}
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamReader] = {}

    async def start(self, port: int = 0) -> str:
        """Listen on a port of the loopback, by default a free one; returns the base address. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    async def stop(self) -> None:
        """Close all connections, when what runs is answered."""
        if self._server is not None:
            self._server.close()
            for reader in self._connections.values():
                reader.feed_eof()
            await asyncio.gather(*self._connections)
            await self._server.wait_closed()

    async def __aenter__(self) -> FakeStripe:
        self.base = await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = reader
        try:
            while (head := await reader.readuntil(b"\r\n\r\n")).strip():
                lines = head.decode("latin-1").split("\r\n")
                method, target, _ = lines[0].split(" ")
                headers = {
                    name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
                }
                length = min(int(headers.get("content-length") or 0), _MOST_BODY)
                body = (await reader.readexactly(length)).decode()
                page = answer_page(self.account, method, target, body) if self.account.pages else None
                answer = self.answer(method, target, headers, body) if page is None else None
                if page is None and answer is None:
                    return
                writer.write(_page(page) if page is not None else _response(answer))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            del self._connections[task]
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: str) -> Answer | None:
        """The answer to a request; None: the connection ends without one."""
        path, query = unquote(urlsplit(target).path), urlsplit(target).query
        self.requests.append((method, path))
        if headers.get("authorization") != f"Bearer {self.key}":
            return Answer(401, StripeError(401, "Invalid API Key provided").body)
        key = headers.get("idempotency-key") if method == "POST" else None
        if key is not None and not 0 < len(key) <= _MOST_KEY:
            return Answer(400, StripeError(400, "An idempotency key has 1 to 255 characters").body)
        fault = self.faults.choose(method, path)
        if fault in _CONNECTION:
            return _refusal(fault)
        request = (method, path, body if method == "POST" else query)
        kept = self._kept.get(key) if key is not None else None
        if kept is not None and kept.at + _KEPT_S > self.account.now():
            if kept.request != request:
                text = "Keys for idempotent requests can only be used with the same parameters."
                return Answer(400, StripeError(400, text, kind="idempotency_error").body)
            return None if fault == "drop_after" else kept.answer._replace(replayed=True)
        if fault == "error":
            answer, keeps = Answer(500, StripeError(500, "An unknown error occurred").body), True
        else:
            answer, keeps = self._carry_out(*request)
            if fault == "error_after" and keeps:
                answer = Answer(500, StripeError(500, "An unknown error occurred").body)
        if key is not None and keeps:
            self._kept[key] = _Kept(request, answer, self.account.now())
        return None if fault == "drop_after" else answer

    def _carry_out(self, method: str, path: str, form: str) -> tuple[Answer, bool]:
        """The answer, and whether an idempotency key keeps it: not if the parameters were refused."""
        try:
            parameters, handler, ids = find_route(method, path)
            given = check_parameters(decode_form(form), parameters)
        except StripeError as error:
            return Answer(error.status, error.body), False
        self.carried_out.append((method, path))
        try:
            return Answer(200, json.loads(json.dumps(handler(self.account, given, **ids), default=str))), True
        except StripeError as error:
            return Answer(error.status, error.body), True


def _refusal(fault: str | None) -> Answer | None:
    if fault == "rate_limit":
        return Answer(429, StripeError(429, "Too many requests", code="rate_limit").body)
    if fault == "conflict":
        text = "There is currently another in-progress request using this Idempotent Key."
        return Answer(409, StripeError(409, text, kind="idempotency_error", code="idempotency_key_in_use").body)
    return None


def _page(page: Page) -> bytes:
    content = page.html.encode()
    head = [f"HTTP/1.1 {page.status} -", "content-type: text/html; charset=utf-8", f"content-length: {len(content)}"]
    head += [f"location: {page.location}"] if page.location else []
    return "\r\n".join([*head, "", ""]).encode() + content


def _response(answer: Answer | None) -> bytes:
    assert answer is not None, "a connection without an answer is closed"
    content = json.dumps(answer.body).encode()
    head = [f"HTTP/1.1 {answer.status} -", "content-type: application/json", f"content-length: {len(content)}"]
    head += ["idempotent-replayed: true"] if answer.replayed else []
    return "\r\n".join([*head, "", ""]).encode() + content
