"""What files and batches say, for a tenant's people: downloads, and the lines of a batch that failed.

They demand the right to read content, where the project lets people read what it keeps; and the audit log says who
did.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.types import ASGIApp
from msgspec import Meta, Struct

from batch_store.records import Batch
from file_store.blobs import BlobMissing
from file_store.sealed_content import ContentReader
from file_store.store import StoredFile
from gateway.admin.access import partly_visible_tenant
from gateway.admin.requests.batches import BATCHES, find_batch
from gateway.admin.requests.batches import ID as BATCH
from gateway.admin.requests.files import FILES, ID, file_store, find_file, unknown
from gateway.dialects.query_parameters import Parameters
from gateway.errors import InvalidRequest, NotAllowed, NotFound
from gateway.http.downloads import Download
from gateway.http.operations import describes, files, query
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.services import Gateway
from response_store.sealing import Unreadable
from storage.database.public_ids import public_id

MOST_LOOKED_AT = 32 * 1024 * 1024
"""Bytes of results that are looked at for lines that failed."""
_LONGEST_MESSAGE = 500
_OK = 200
_LINES = "application/x-jsonl"
_KIND = query("kind", Literal["output", "error"], "Which file; `output` without it.", example="output")
_RESULT = '{"custom_id": "a", "response": {"status_code": 200, "body": {}}, "error": null}\n'
_NOT_READABLE = {"content_not_readable": 403}


class FailedLine(Struct, frozen=True, kw_only=True):
    """A line without an answer. `status`: of the HTTP answer, null where there was none, or the dialect does not keep
    it."""

    custom_id: Annotated[str, Meta(examples=["question-7"])]
    status: Annotated[int | None, Meta(examples=[400])]
    code: str | None
    message: str


class FailedLineList(Struct, frozen=True, kw_only=True):
    """The first lines that failed. `has_more`: there may be more of them in the file of results."""

    object: Literal["list"] = "list"
    data: list[FailedLine]
    has_more: bool


class _Error(Struct):
    message: str = ""
    code: str | None = None
    type: str | None = None


class _Body(Struct):
    error: _Error | None = None


class _Response(Struct):
    status_code: int
    body: _Body | None = None


class _Result(Struct):
    type: str
    error: _Body | None = None


class _Line(Struct):
    """A line of either vendor's results."""

    custom_id: str
    response: _Response | None = None
    error: _Error | None = None
    result: _Result | None = None


_LINE = msgspec.json.Decoder(_Line, strict=False)


def file_content_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""

    @get(
        f"{FILES}/{{file:str}}/content",
        opt=demands("content.read")
        | describes(
            files("application/octet-stream", description="The content.", example=_RESULT),
            path={"file": ID},
            errors=_NOT_READABLE,
        ),
    )
    async def download_file(request: Request[Any, Any, Any], file: FromPath[str]) -> ASGIApp:
        """The content of a file, where its project lets people read what it keeps; the audit log says who did."""
        tenant = await partly_visible_tenant(gateway, request, request.path_params["tenant"], "content.read")
        found = await find_file(gateway, tenant, file)
        return await _download(gateway, found, "application/octet-stream")

    @get(
        f"{BATCHES}/{{batch:str}}/results",
        opt=demands("content.read")
        | describes(
            files(_LINES, description="A result a line.", example=_RESULT),
            path={"batch": BATCH},
            query=[_KIND],
            errors=_NOT_READABLE,
        ),
    )
    async def download_batch_results(request: Request[Any, Any, Any], batch: FromPath[str]) -> ASGIApp:
        """A file of results, where the project lets people read what it keeps; the audit log says who did."""
        parameters = Parameters.of(request)
        kind = parameters.choice("kind", ("output", "error"))
        parameters.reject_unknown()
        found = await _batch(gateway, request, batch)
        return await _download(gateway, await _results(gateway, found, kind or "output"), _LINES)

    @get(
        f"{BATCHES}/{{batch:str}}/failed-lines",
        opt=demands("content.read")
        | describes(
            FailedLineList,
            path={"batch": BATCH},
            query=[query("limit", Annotated[int, Meta(ge=1, le=100)], "How many; 20 without it.", example=20)],
            errors=_NOT_READABLE,
        ),
    )
    async def list_failed_batch_lines(request: Request[Any, Any, Any], batch: FromPath[str]) -> Response[bytes]:
        """The first lines of a batch that failed, without what they asked, where the project lets people read what it
        keeps; the audit log says who did."""
        parameters = Parameters.of(request)
        limit = parameters.page_size()
        parameters.reject_unknown()
        found = await _batch(gateway, request, batch)
        if not found.ended:
            raise InvalidRequest("The batch has not ended, so it has no results yet.", code="batch_not_ended")
        failed = found.failed + found.cancelled + found.expired
        kind: Literal["output", "error"] = "error" if found.surface == "openai" else "output"
        if failed == 0:
            return json_response(FailedLineList(data=[], has_more=False))
        file = await _results(gateway, found, kind)
        reader = await _reader(gateway, file)
        lines: list[FailedLine] = []
        try:
            async for line in _failed_lines(reader):
                lines.append(line)
                if len(lines) == limit:
                    break
        except (Unreadable, BlobMissing) as error:
            raise unknown(public_id("file", file.id)) from error
        return json_response(FailedLineList(data=lines, has_more=len(lines) < failed))

    return [download_file, download_batch_results, list_failed_batch_lines]


async def _batch(gateway: Gateway, request: Request[Any, Any, Any], name: str) -> Batch:
    tenant = await partly_visible_tenant(gateway, request, request.path_params["tenant"], "content.read")
    return await find_batch(gateway, tenant, name)


async def _results(gateway: Gateway, batch: Batch, kind: Literal["output", "error"]) -> StoredFile:
    id_ = batch.output_file_id if kind == "output" else batch.error_file_id
    found = None
    if id_ is not None:
        found = await file_store(gateway).get(batch.tenant_id, batch.project_id, id_)
    if found is None:
        raise NotFound(f"The batch has no such file of results ({kind}), or no longer.")
    return found


async def _reader(gateway: Gateway, file: StoredFile) -> ContentReader:
    """What reads a file's content for somebody of the tenant, which is recorded. Raises NotAllowed, NotFound."""
    policy = await gateway.response_keeper.policies.get(file.tenant_id, file.project_id, fresh=True)
    if not policy.readable:
        raise NotAllowed(
            "This project does not let people read what it keeps; its response policy can allow it.",
            code="content_not_readable",
        )
    store = file_store(gateway)
    reader = await store.content(file)
    try:
        await reader.read(0, 1)
    except (Unreadable, BlobMissing) as error:
        raise unknown(public_id("file", file.id)) from error
    await store.record_reading(file)
    return reader


async def _download(gateway: Gateway, file: StoredFile, media_type: str) -> Download:
    reader = await _reader(gateway, file)
    timeout = gateway.services.options.client_timeout
    return Download(reader.pieces(), file.bytes, file.filename, media_type, timeout)


async def _failed_lines(reader: ContentReader) -> AsyncIterator[FailedLine]:
    """The lines that failed among the first MOST_LOOKED_AT bytes of results. Raises Unreadable, BlobMissing."""
    rest, looked_at = b"", 0
    async for piece in reader.pieces():
        looked_at += len(piece)
        *whole, rest = (rest + piece).split(b"\n")
        for content in whole:
            line = _failed(content)
            if line is not None:
                yield line
        if looked_at >= MOST_LOOKED_AT:
            return


def _failed(content: bytes) -> FailedLine | None:
    line = _LINE.decode(content)
    status, error = None, line.error
    if line.response is not None:
        status = line.response.status_code
        if status == _OK:
            return None
        error = line.response.body.error if line.response.body is not None else None
    elif line.result is not None:
        if line.result.type == "succeeded":
            return None
        error = _Error(code=line.result.type)
        if line.result.error is not None and line.result.error.error is not None:
            error = line.result.error.error
    error = error or _Error()
    message = error.message[:_LONGEST_MESSAGE]
    return FailedLine(custom_id=line.custom_id, status=status, code=error.code or error.type, message=message)
