"""Calls operations of /admin/v1: in this process on the data folder, or at a gateway elsewhere with a key."""

from __future__ import annotations

import argparse
import logging
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from storage.reported_error import ReportedError
from turnpike.api.operations import Operation, operations
from turnpike.command_line import CommandError, remote_url
from turnpike.settings.settings import Settings

if TYPE_CHECKING:
    from audit_log.actors import Actor
    from tenancy.rights.principals import Principal
    from turnpike.admin_services import AdminServices

KEY_VARIABLE = "TURNPIKE_KEY"
NULL = object()
"""As the value of a field: null, which says something else than leaving the field out."""
_ACCEPTED, _UNAUTHORIZED, _TEMPORARY = 202, 401, (429, 503)
_NO_ROUTE = (404, 405)
_TIMEOUT_S = 120.0
"""A gateway elsewhere may take so long for one page or one change."""
_AT_FIELD = re.compile(r"^(\$\.)?([a-z_]+)((?:[.\[][^:]*)?): ")
_REQUEST_ID = re.compile(r" \(request id: \S+\)$")


class ApiError(ReportedError):
    """An operation was refused. `field`: what of the request is wrong."""

    def __init__(self, status: int, message: str, field: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.field, self.code = status, field, code

    @property
    def temporary(self) -> bool:  # type: ignore[override]
        """Whether the same may work later."""
        return self.status in _TEMPORARY


class ChangeWaits(Exception):
    """The change was not made: it waits for another person's approval."""

    def __init__(self, change: Mapping[str, Any]) -> None:
        super().__init__(f"{change['summary']}: waits for another operator's approval as {change['id']}")
        self.change = change


class Answer(Struct, frozen=True):
    """What answers a request."""

    status: int
    content: bytes


class Transport(Protocol):
    """Sends requests of /admin/v1."""

    async def send(self, operation: Operation, path: str, query: str, body: bytes) -> Answer:
        """The answer to a request. Raises CommandError if nothing of ours answers."""


class Api:
    """The operations."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def act_for(self, name: str) -> None:
        """Let the audit log have this name for who gives the command. Raises CommandError at a gateway elsewhere."""
        if not isinstance(self.transport, InProcess):
            raise CommandError("--by: at --url the key says who does this")
        self.transport.act_for(name)

    async def call(self, name: str, /, **values: Any) -> Any:
        """What an operation answers to fields of these values; None leaves one out. Raises ApiError, ChangeWaits."""
        answer = await self._send(name, values)
        content = msgspec.json.decode(answer.content)
        if answer.status == _ACCEPTED and content.get("object") == "change":
            raise ChangeWaits(content)
        return content

    async def upload(self, path: str, texts: Mapping[str, str], file: tuple[str, IO[bytes]]) -> Any:
        """What a gateway elsewhere answers to a form with a file. Raises ApiError, CommandError."""
        assert isinstance(self.transport, Remote), "the caller has looked"
        answer = await self.transport.send_form(path, texts, file)
        if answer.status >= 400:
            raise _error_of(answer)
        return msgspec.json.decode(answer.content)

    async def content(self, name: str, /, **values: Any) -> bytes:
        """The bytes that an operation answers. Raises ApiError."""
        return (await self._send(name, values)).content

    async def _send(self, name: str, values: dict[str, Any]) -> Answer:
        operation = operations()[name]
        parts: dict[str, dict[str, Any]] = {"path": {}, "query": {}, "body": {}}
        for field in operation.fields:
            value = values.pop(field.name, None)
            if value is not None:
                parts[field.place][field.name] = None if value is NULL else value
        assert not values, f"{name} has no {', '.join(values)}"
        path = operation.path.format_map({key: quote(str(value), safe="") for key, value in parts["path"].items()})
        query = urlencode({key: _query_text(value) for key, value in parts["query"].items()})
        has_body = any(field.place == "body" for field in operation.fields)
        body = msgspec.json.encode(parts["body"]) if has_body else b""
        answer = await self.transport.send(operation, path, query, body)
        if answer.status >= 400:
            raise _error_of(answer)
        return answer

    async def pages(self, name: str, /, **values: Any) -> dict[str, Any]:
        """The answer of a list with the objects of all its pages, or of as many as `limit` says."""
        size = operations()[name].field("limit")
        paged = values if "limit" in values or size is None else values | {"limit": size.most or None}
        page = whole = await self.call(name, **paged)
        while page.get("has_more") and page["data"] and "limit" not in values:
            last = page["data"][-1]
            after = page.get("next") or next(last[key] for key in ("id", "period", "number", "name") if key in last)
            page = await self.call(name, **paged, after=after)
            whole["data"] += page["data"]
            whole["has_more"] = page["has_more"]
        return dict(whole)

    async def list(self, name: str, /, **values: Any) -> list[dict[str, Any]]:
        """The objects of all pages of a list."""
        objects: list[dict[str, Any]] = (await self.pages(name, **values))["data"]
        return objects


def _query_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _error_of(answer: Answer) -> ApiError:
    try:
        error = msgspec.json.decode(answer.content)["error"]
        message, code = _REQUEST_ID.sub("", str(error["message"])), error.get("code")
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        raise CommandError(f"the answer (HTTP {answer.status}) is not a gateway's: is the URL right?") from None
    field = _AT_FIELD.match(message)
    if field is None:
        return ApiError(answer.status, message, code=code)
    inside = field[3].lstrip(".") + ": " if field[3] else ""
    return ApiError(answer.status, inside + message[field.end() :], field[2], code)


class InProcess:
    """Calls the routes in this process, as whoever gives the command."""

    def __init__(self, admin: AdminServices, principal: Principal, actor: Actor) -> None:
        self._admin = admin
        self._principal, self._actor = principal, actor
        self._apps: dict[str, Any] = {}

    def act_for(self, name: str) -> None:
        """Let this be the name of who gives the command. It proves nothing. Raises CommandError where a key does."""
        if self._principal.kind != "command" and self._principal.name != name:
            raise CommandError(f"--by: the key is {self._principal.name}'s; leave --by out")
        self._actor = msgspec.structs.replace(self._actor, name=name)
        self._principal = msgspec.structs.replace(self._principal, name=name)

    async def send(self, operation: Operation, path: str, query: str, body: bytes) -> Answer:
        """The answer of the operation's route. Its module is imported when it is first called."""
        from gateway.admin.in_process import Caller, CommandGateway, command_app

        if operation.routes not in self._apps:
            caller = Caller(self._principal, self._actor)
            self._apps[operation.routes] = command_app(CommandGateway(self._admin), caller, [operation.routes])
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": operation.method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(b"content-length", str(len(body)).encode())],
            "server": None,
            "client": None,
        }
        await self._apps[operation.routes](scope, receive, send)
        content = b"".join(message.get("body", b"") for message in sent[1:])
        return Answer(sent[0]["status"], content)


class Remote:
    """Sends requests to a gateway elsewhere."""

    def __init__(self, url: str, key: str) -> None:
        import httpx

        logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of every request
        self._url = url.rstrip("/")
        try:
            self.client = httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=_TIMEOUT_S)
        except (ValueError, UnicodeError) as error:
            raise CommandError("--key: this cannot be a key") from error

    async def send(self, operation: Operation, path: str, query: str, body: bytes) -> Answer:
        """The gateway's answer. Raises CommandError if no gateway of this version answers there."""
        target = path + (f"?{query}" if query else "")
        headers = {"content-type": "application/json"} if body else {}
        return await self._request(operation.method, target, operation.path, content=body or None, headers=headers)

    async def send_form(self, path: str, texts: Mapping[str, str], file: tuple[str, IO[bytes]]) -> Answer:
        """The gateway's answer to a form with a file, which is read as it is sent. Raises as `send` does."""
        return await self._request("POST", path, path, data=texts, files={"file": file})

    async def _request(self, method: str, target: str, route: str, **content: Any) -> Answer:
        import httpx

        try:
            response = await self.client.request(method, f"{self._url}{target}", **content)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise CommandError(
                f"--url: no gateway answers at {self._url}: {str(error) or type(error).__name__}"
            ) from error
        answer = Answer(response.status_code, response.content)
        if "x-request-id" not in response.headers:
            raise CommandError(f"--url: what answers at {self._url} (HTTP {answer.status}) is no gateway of ours")
        if answer.status == _UNAUTHORIZED:
            raise CommandError(f"--key: {_error_of(answer)}")
        if answer.status in _NO_ROUTE and str(_error_of(answer)).startswith(("There is no route", method)):
            raise CommandError(f"--url: the gateway at {self._url} is of another version: it has no {route}")
        return answer


@asynccontextmanager
async def open_api(settings: Settings, arguments: argparse.Namespace) -> AsyncIterator[Api]:
    """The operations: at the gateway that `--url` or TURNPIKE_URL names, else in this process on the data folder.

    Raises CommandError, NoData.
    """
    if url := remote_url(arguments):
        remote = Remote(url, _key(settings, arguments))
        async with remote.client:
            yield Api(remote)
        return
    from storage.database import database
    from turnpike.admin_services import open_admin_services
    from turnpike.operator_identity import find_caller

    async with open_admin_services(settings, statement_s=database.JOB_STATEMENT_S) as admin:
        yield Api(InProcess(admin, *await find_caller(admin)))


def _key(settings: Settings, arguments: argparse.Namespace) -> str:
    key = getattr(arguments, "remote_key", None) or os.environ.get(KEY_VARIABLE)
    if not key and settings.operator_key_file:
        try:
            key = Path(settings.operator_key_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"--operator-key-file: cannot read {settings.operator_key_file}: {error}") from error
    if not key:
        raise CommandError(f"--url: say with which key, before the command: --key KEY, or {KEY_VARIABLE}")
    return key
