"""/v1/files: a project uploads files, lists, reads and deletes them, in either vendor's dialect. Batches read their
input from files, and leave their results in files.

Ids of other projects are as unknown as ids that never were.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

from litestar import Request, Response, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.types import ASGIApp
from msgspec import UNSET, Meta, Struct, UnsetType

from file_store.blobs import BlobMissing
from file_store.sealed_content import ContentWriter
from file_store.store import HIDDEN, FileStore, NewFile, Purpose, QuotaExceeded, Room, StoredFile
from gateway.admission.prepared_request import Payer
from gateway.dialects.anthropic.messages_request import VERSIONS
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.file_metadata import (
    QUERY,
    FileDeleted,
    FileMetadata,
    FileMetadataList,
    list_metadata,
    metadata,
)
from gateway.endpoints.file_metadata import lifetime_of as kept_for
from gateway.endpoints.messages import api_version
from gateway.endpoints.rate_limits import count_request
from gateway.errors import BodyTooLarge, Conflict, InvalidField, NotAllowed, NotFound
from gateway.http.authentication import project_payer
from gateway.http.downloads import Download
from gateway.http.multipart_body import Form, read_form
from gateway.http.operations import HeaderParameter, describes, files, page, query
from gateway.http.policies import demands
from gateway.http.responses import VERSION_HEADER, dialect_of, json_response
from gateway.services import Gateway
from prompt_cache.promise.scope_keys import ScopeKeyUnreadable
from response_store.sealing import Unreadable
from storage.database.database import DatabaseUnavailable
from storage.database.public_ids import prefixed_id, public_id

MOST_BYTES = 512 * 1024 * 1024
MOST_BATCH_BYTES = 200 * 1024 * 1024
"""Bytes of a file, and of one that is the input of a batch."""
LEAST_LIFETIME_S, LONGEST_LIFETIME_S = 3600, 2_592_000
BATCH_LIFETIME_S = 30 * 86_400
_FORM_BYTES = 256 * 1024
"""More than a form has beside its file."""
_LONGEST_NAME = 255
MIME_TYPE = re.compile(r"[\x21-\x7e]{1,127}")
_UNUSABLE = re.compile(r"[\x00-\x1f\x7f]")
_SECOND = 1_000_000
_ID = "file_01934f6e0d2a7b3c8e51a9c4d7f60b12"
FileName: TypeAlias = Annotated[str, Meta(examples=[_ID])]
_PATH = {"file": _ID}
_CONTENT = '{"id": "batch_req_1", "custom_id": "a", "response": {"status_code": 200, "body": {}}, "error": null}\n'


class FileObject(Struct, frozen=True, kw_only=True):
    """A file. Instants are in seconds since the Unix epoch."""

    id: FileName
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: Annotated[str, Meta(examples=["questions.jsonl"])]
    purpose: Annotated[Purpose, Meta(examples=["batch"])]
    status: Literal["processed"] = "processed"


class FileList(Struct, frozen=True, kw_only=True):
    """A page of files."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: FileName | None
    last_id: FileName | None
    has_more: bool


class UploadForm(Struct, frozen=True, kw_only=True):
    """The form of an upload. `expires_after[anchor]` (`created_at`) and `expires_after[seconds]` say until when the
    file is kept; without them one for a batch is kept for 30 days, and any other until it is deleted. In Anthropic's
    dialect there is no `purpose`, and `expires_in_seconds` says how long it is kept."""

    file: Annotated[str, Meta(description="The content.", extra_json_schema={"format": "binary"}, examples=["{}"])]
    purpose: Literal["batch", "user_data"] | UnsetType = UNSET
    expires_in_seconds: Annotated[int, Meta(examples=[86_400])] | UnsetType = UNSET


class DeletedFile(Struct, frozen=True, kw_only=True):
    """A file that was deleted."""

    id: FileName
    object: Literal["file"] = "file"
    deleted: bool = True


_QUERY = (
    *page(1000, 100),
    query("order", Literal["asc", "desc"], "In which order of their making; `desc` without it.", example="desc"),
    query("purpose", Literal["batch", "batch_output", "user_data"], "Only those of it.", example="batch"),
    *QUERY,
)
_VERSION = HeaderParameter(
    VERSION_HEADER, "With it the answer is in Anthropic's dialect.", example=VERSIONS[0], values=VERSIONS
)


def file_routes(gateway: Gateway) -> list[HTTPRouteHandler]:
    """The routes, for one worker."""
    wait = gateway.questions.wait

    @post(
        "/v1/files",
        status_code=200,
        request_max_body_size=None,
        opt=demands("inference", "project_key")
        | describes(
            (FileObject, FileMetadata),
            headers=[_VERSION],
            body=UploadForm(file="{}", purpose="batch"),
            body_type="multipart/form-data",
            errors={"invalid_form": 400},
        ),
    )
    async def create_file(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Upload a file, as a form. It is sealed under the project's data key."""
        payer, anthropic = project_payer(request.scope), _is_anthropic(request)
        await count_request(gateway, request, payer)
        store = file_store(gateway)
        if not await gateway.response_keeper.keeps_content(payer):
            raise NotAllowed("This project keeps nothing of its content, so no files.", code="content_not_kept")
        async with room_for(gateway, payer, "file", *announced(request)) as room:
            id_, writer = await wait(store.begin(payer.tenant_id, payer.project_id, room))
            try:
                form = await read_form(request, gateway.services.options.client_timeout, _bounded(writer, room.bytes))
                new = _new_file(id_, payer, form, writer.size, anthropic=anthropic)
                await writer.commit()
            except BaseException:
                await writer.discard()
                raise
            try:
                saved = await wait(store.save(new))
            except QuotaExceeded:
                await store.discard(id_)
                raise
        return json_response(metadata(saved) if anthropic else shown(saved))

    @get(
        "/v1/files",
        opt=demands("inference", "project_key")
        | describes((FileList, FileMetadataList), query=_QUERY, headers=[_VERSION]),
    )
    async def list_files(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The project's files, the newest first."""
        payer, parameters = project_payer(request.scope), Parameters.of(request)
        if _is_anthropic(request):
            return json_response(await wait(list_metadata(file_store(gateway), request, payer)))
        limit, after = parameters.page_size(100, most=1000), parameters.text("after")
        order = parameters.choice("order", ("asc", "desc"))
        purpose = parameters.choice("purpose", ("batch", "batch_output", "user_data"))
        parameters.reject_unknown()
        found = await wait(
            file_store(gateway).page(
                payer.tenant_id,
                payer.project_id,
                limit=limit + 1,
                after=None if after is None else file_id(after),
                purpose=purpose,
                ascending=order == "asc",
            )
        )
        objects = [shown(file) for file in found[:limit]]
        ends = (objects[0].id, objects[-1].id) if objects else (None, None)
        return json_response(FileList(data=objects, first_id=ends[0], last_id=ends[1], has_more=len(found) > limit))

    @get(
        "/v1/files/{file:str}",
        opt=demands("inference", "project_key") | describes((FileObject, FileMetadata), path=_PATH, headers=[_VERSION]),
    )
    async def retrieve_file(request: Request[Any, Any, Any], file: FromPath[str]) -> Response[bytes]:
        """A file, without its content."""
        show: Callable[[StoredFile], Struct] = metadata if _is_anthropic(request) else shown
        return json_response(show(await find_file(gateway, project_payer(request.scope), file)))

    @get(
        "/v1/files/{file:str}/content",
        opt=demands("inference", "project_key")
        | describes(
            files("application/octet-stream", description="The content.", example=_CONTENT),
            path=_PATH,
            headers=[_VERSION],
        ),
    )
    async def download_file(request: Request[Any, Any, Any], file: FromPath[str]) -> ASGIApp:
        """The content of a file."""
        return await download(gateway, await find_file(gateway, project_payer(request.scope), file))

    @delete(
        "/v1/files/{file:str}",
        status_code=200,
        opt=demands("inference", "project_key")
        | describes((DeletedFile, FileDeleted), path=_PATH, headers=[_VERSION], errors={"conflict": 409}),
    )
    async def delete_file(request: Request[Any, Any, Any], file: FromPath[str]) -> Response[bytes]:
        """Delete a file. One that a running batch reads stays until the batch has ended."""
        payer, anthropic = project_payer(request.scope), _is_anthropic(request)
        found = await find_file(gateway, payer, file)
        assert gateway.batches is not None, "there are files"
        if (reader := await wait(gateway.batches.store.reads(payer.tenant_id, found.id))) is not None:
            batch = public_id("batch", reader)
            raise Conflict(f"The batch {batch} reads this file; cancel it, or wait for its end.", path="file_id")
        if not await wait(file_store(gateway).delete(payer.tenant_id, payer.project_id, found.id)):
            raise _unknown(file)
        name = public_id("file", found.id)
        return json_response(FileDeleted(name) if anthropic else DeletedFile(id=name))

    return [create_file, list_files, retrieve_file, download_file, delete_file]


def _is_anthropic(request: Request[Any, Any, Any]) -> bool:
    """Whether the client speaks Anthropic's dialect. Raises InvalidRequest for a version that is not known."""
    if dialect_of(request.scope) == "openai":
        return False
    api_version(request)
    return True


def file_store(gateway: Gateway) -> FileStore:
    """The gateway's files. Raises NotFound where there are none."""
    if gateway.files is None:
        raise NotFound("This gateway keeps no files.")
    return gateway.files


@asynccontextmanager
async def room_for(gateway: Gateway, payer: Payer, field: str, most: int, least: int) -> AsyncIterator[Room]:
    """Room for a file of `least` to `most` bytes until it is saved within, or does not come. Raises InvalidField, which
    names the field, where there is none left; DatabaseUnavailable."""
    store, wait = file_store(gateway), gateway.questions.wait
    room: Room | None = None
    try:
        room = await wait(store.reserve(payer.tenant_id, payer.project_id, most, least))
        yield room
    except BaseException as error:
        if room is not None:
            with suppress(DatabaseUnavailable):  # it ends by itself
                await wait(store.release(payer.tenant_id, payer.project_id, room))
        if isinstance(error, QuotaExceeded):
            raise storage_full(field) from error
        raise


async def find_file(gateway: Gateway, payer: Payer, name: str) -> StoredFile:
    """A project's file that it may see. Raises NotFound, DatabaseUnavailable."""
    store, id_ = file_store(gateway), file_id(name)
    try:
        found = await gateway.questions.wait(store.get(payer.tenant_id, payer.project_id, id_))
    except ScopeKeyUnreadable as error:
        raise _unknown(name) from error
    if found is None or found.purpose == HIDDEN:
        raise _unknown(name)
    return found


async def download(gateway: Gateway, file: StoredFile, media_type: str = "application/octet-stream") -> ASGIApp:
    """The answer with a file's content. Raises NotFound, DatabaseUnavailable."""
    reader = await gateway.questions.wait(file_store(gateway).content(file))
    try:
        await reader.read(0, 1)
    except (Unreadable, BlobMissing) as error:
        raise _unknown(public_id("file", file.id)) from error
    timeout = gateway.services.options.client_timeout
    return Download(reader.pieces(), file.bytes, file.filename, media_type, timeout)


def file_id(name: str) -> UUID:
    """The id in a file's name. Raises NotFound."""
    found = prefixed_id(name, "file_")
    if found is None:
        raise _unknown(name)
    return found


def shown(file: StoredFile) -> FileObject:
    """A file as its project sees it."""
    assert file.purpose != HIDDEN, "nobody sees it"
    return FileObject(
        id=public_id("file", file.id),
        bytes=file.bytes,
        created_at=file.created_at // _SECOND,
        expires_at=None if file.expires_at is None else file.expires_at // _SECOND,
        filename=file.filename,
        purpose=file.purpose,
    )


def lifetime_of(anchor: Any, seconds: Any, path: str) -> int:
    """The seconds of an `expires_after`. Raises InvalidField."""
    if anchor != "created_at":
        raise InvalidField(f"{path}[anchor]", "it must be created_at")
    if not (isinstance(seconds, int) and LEAST_LIFETIME_S <= seconds <= LONGEST_LIFETIME_S):
        raise InvalidField(f"{path}[seconds]", f"it must be from {LEAST_LIFETIME_S} to {LONGEST_LIFETIME_S}")
    return seconds


def announced(request: Request[Any, Any, Any], most: int = MOST_BYTES) -> tuple[int, int]:
    """How many bytes a file has at most, and surely, by the length of the form that it comes in."""
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit() and len(length) < _DIGITS):
        return most, 0
    return min(int(length), most), max(int(length) - _FORM_BYTES, 0)


def _bounded(writer: ContentWriter, left: int) -> Callable[[bytes], Any]:
    async def take(content: bytes) -> None:
        if writer.size + len(content) > left:
            raise storage_full("file")
        if writer.size + len(content) > MOST_BYTES:
            raise BodyTooLarge(f"A file may have at most {MOST_BYTES} bytes.")
        await writer.append(content)

    return take


def _new_file(id_: UUID, payer: Payer, form: Form, size: int, *, anthropic: bool) -> NewFile:
    texts = form.texts
    if form.filename is None:
        raise InvalidField("file", "it is missing", code="missing_required_parameter")
    if anthropic:
        purpose, lifetime = "user_data", kept_for(texts.pop("expires_in_seconds", None))
    else:
        purpose, lifetime = _purpose_and_lifetime(texts, size)
    if texts:
        raise InvalidField(next(iter(texts))[:80], "there is no such field", code="unknown_parameter")
    return NewFile(
        id=id_,
        tenant_id=payer.tenant_id,
        project_id=payer.project_id,
        purpose="batch" if purpose == "batch" else "user_data",
        filename=plain_name(form.filename),
        mime_type=form.media_type if form.media_type and MIME_TYPE.fullmatch(form.media_type) else None,
        bytes=size,
        lifetime_s=lifetime,
    )


def _purpose_and_lifetime(texts: dict[str, str], size: int) -> tuple[str, int | None]:
    purpose = texts.pop("purpose", None)
    if purpose is None:
        raise InvalidField("purpose", "it is missing", code="missing_required_parameter")
    if purpose not in ("batch", "user_data"):
        raise InvalidField("purpose", "it must be batch or user_data")
    if purpose == "batch" and size > MOST_BATCH_BYTES:
        raise BodyTooLarge(f"The input of a batch may have at most {MOST_BATCH_BYTES} bytes.")
    anchor, seconds = texts.pop("expires_after[anchor]", None), texts.pop("expires_after[seconds]", None)
    lifetime = BATCH_LIFETIME_S if purpose == "batch" else None
    if anchor is not None or seconds is not None:
        digits = seconds is not None and seconds.isascii() and seconds.isdigit() and len(seconds) < _DIGITS
        lifetime = lifetime_of(anchor, int(seconds) if digits and seconds is not None else None, "expires_after")
    return purpose, lifetime


_DIGITS = 12


def plain_name(name: str) -> str:
    """The last part of a name that may have been a path, without what no name has."""
    last = re.split(r"[/\\]", _UNUSABLE.sub("", name))[-1].strip()
    return last[:_LONGEST_NAME] if last not in ("", ".", "..") else "file"


def storage_full(field: str) -> InvalidField:
    """The error for what a project has no room for."""
    problem = "the project keeps as many files or bytes as it may; delete some files, or let them expire"
    return InvalidField(field, problem, code="storage_exceeded")


def _unknown(name: str) -> NotFound:
    return NotFound(f"There is no file {name[:80]!r}.", path="file_id")
