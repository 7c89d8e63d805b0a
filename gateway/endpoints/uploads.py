"""/v1/uploads: a file that comes in parts, as OpenAI's clients send large ones.

Ids of other projects are as unknown as ids that never were.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

import msgspec
from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import Meta, Struct

from file_store.blobs import BlobMissing
from file_store.sealed_content import ContentWriter
from file_store.store import QuotaExceeded
from file_store.uploads import (
    MOST_PART_BYTES,
    MOST_PARTS,
    MOST_PENDING,
    NewUpload,
    PartUnknown,
    Purpose,
    TooManyJoined,
    TooManyParts,
    TooManyUploads,
    Upload,
    UploadFull,
    UploadOver,
    UploadStatus,
    UploadStore,
    WrongDigest,
    WrongSize,
)
from gateway.admission.prepared_request import Payer
from gateway.endpoints.files import (
    BATCH_LIFETIME_S,
    MIME_TYPE,
    MOST_BATCH_BYTES,
    MOST_BYTES,
    FileObject,
    file_store,
    lifetime_of,
    plain_name,
    shown,
    storage_full,
)
from gateway.endpoints.rate_limits import count_request
from gateway.endpoints.request_body import read_management_body
from gateway.errors import BodyTooLarge, InvalidField, InvalidRequest, NotAllowed, NotFound, RateLimited
from gateway.http.authentication import project_payer
from gateway.http.multipart_body import read_form
from gateway.http.operations import describes
from gateway.http.policies import demands
from gateway.http.responses import json_response
from gateway.services import Gateway
from prompt_cache.promise.scope_keys import ScopeKeyUnreadable
from response_store.sealing import Unreadable
from storage.database.public_ids import prefixed_id, public_id

_BUSY_S, _JOINED_S = 30.0, 2.0
_SECOND = 1_000_000
_LONGEST_NAME = 4096
_MD5 = re.compile(r"[0-9a-fA-F]{32}")
_ID = "upload_01934f6e0d2a7b3c8e51a9c4d7f60b12"
_PART = "part_01934f6e0d2a7b3c8e51a9c4d7f60b12"
_PATH = {"upload": _ID}
UploadName: TypeAlias = Annotated[str, Meta(examples=[_ID])]
PartName: TypeAlias = Annotated[str, Meta(examples=[_PART])]


class UploadExpiry(Struct, frozen=True, forbid_unknown_fields=True):
    """How long the file is kept from when it is made."""

    anchor: str
    seconds: int


class NewUploadBody(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An upload to be begun. `bytes`: of the whole file, which are reserved of the project's quota."""

    bytes: Annotated[int, Meta(ge=0)]
    filename: Annotated[str, Meta(max_length=_LONGEST_NAME)]
    mime_type: str
    purpose: str
    expires_after: UploadExpiry | None = None


class UploadObject(Struct, frozen=True, kw_only=True):
    """An upload. `file` is there when it is completed. Instants are in seconds since the Unix epoch."""

    id: UploadName
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    expires_at: int
    filename: Annotated[str, Meta(examples=["questions.jsonl"])]
    purpose: Purpose
    status: UploadStatus
    file: FileObject | None


class PartForm(Struct, frozen=True, kw_only=True):
    """The form of a part: its bytes, 64 MiB at most."""

    data: Annotated[str, Meta(description="The content.", extra_json_schema={"format": "binary"}, examples=["{}"])]


class UploadPart(Struct, frozen=True, kw_only=True):
    """A part of an upload."""

    id: PartName
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: UploadName


class UploadCompletion(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The parts that make the file, in their order. `md5`: of the whole content, in hexadecimal digits, to be compared
    with what came."""

    part_ids: Annotated[list[PartName], Meta(max_length=MOST_PARTS)]
    md5: Annotated[str | None, Meta(examples=["9e107d9d372bb6826bd81d3542a419d6"])] = None


_NEW = msgspec.json.Decoder(NewUploadBody)
_COMPLETION = msgspec.json.Decoder(UploadCompletion)
_NEW_EXAMPLE = NewUploadBody(
    bytes=1_048_576, filename="questions.jsonl", mime_type="application/jsonl", purpose="batch"
)


def upload_routes(gateway: Gateway) -> list[HTTPRouteHandler]:  # noqa: PLR0915  # four routes
    """The routes, for one worker."""
    wait = gateway.questions.wait

    @post(
        "/v1/uploads",
        status_code=200,
        opt=demands("inference", "project_key", dialect="openai")
        | describes(UploadObject, body=_NEW_EXAMPLE, errors={"rate_limit_exceeded": 429}),
    )
    async def create_upload(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Begin a file that comes in parts, within an hour."""
        payer, store = project_payer(request.scope), _store(gateway)
        await count_request(gateway, request, payer)
        body = await read_management_body(request, gateway.services.options.client_timeout, _NEW)
        new = _checked(payer, body)
        await _check_keeps(gateway, payer)
        try:
            upload = await wait(store.create(new))
        except QuotaExceeded as error:
            raise storage_full("$.bytes") from error
        except TooManyUploads as error:
            message = f"The project has {MOST_PENDING} uploads that are pending; complete or cancel one of them."
            raise RateLimited(message, retry_after=_BUSY_S) from error
        return json_response(await _shown(gateway, upload))

    @post(
        "/v1/uploads/{upload:str}/parts",
        status_code=200,
        request_max_body_size=None,
        opt=demands("inference", "project_key", dialect="openai")
        | describes(
            UploadPart,
            body=PartForm(data="{}"),
            body_type="multipart/form-data",
            path=_PATH,
            errors={"invalid_form": 400, "upload_not_pending": 400},
        ),
    )
    async def add_upload_part(request: Request[Any, Any, Any], upload: FromPath[str]) -> Response[bytes]:
        """Add a part, as a form. Parts may come side by side: their list at the end says their order."""
        payer, store = project_payer(request.scope), _store(gateway)
        await count_request(gateway, request, payer)
        found = await _find(gateway, payer, upload)
        await _check_keeps(gateway, payer)
        with _told(found):
            left = await wait(store.room(found))
        id_, writer = await wait(store.begin_part(found))
        try:
            form = await read_form(request, gateway.services.options.client_timeout, _bounded(writer, left), "data")
            if form.filename is None:
                raise InvalidField("data", "it is missing", code="missing_required_parameter")
            if form.texts:
                raise InvalidField(next(iter(form.texts))[:80], "there is no such field", code="unknown_parameter")
            await writer.commit()
        except BaseException:
            await writer.discard()
            raise
        try:
            with _told(found):
                created_at = await wait(store.save_part(found, id_, writer.size))
        except InvalidRequest:
            await store.files.discard(id_)
            raise
        return json_response(
            UploadPart(
                id=public_id("upload_part", id_),
                created_at=created_at // _SECOND,
                upload_id=public_id("upload", found.id),
            )
        )

    @post(
        "/v1/uploads/{upload:str}/complete",
        status_code=200,
        opt=demands("inference", "project_key", dialect="openai")
        | describes(
            UploadObject,
            body=UploadCompletion(part_ids=[_PART]),
            path=_PATH,
            errors={"upload_not_pending": 400},
        ),
    )
    async def complete_upload(request: Request[Any, Any, Any], upload: FromPath[str]) -> Response[bytes]:
        """Make the file of the parts. An upload that is completed already stays as it is."""
        payer, store = project_payer(request.scope), _store(gateway)
        await count_request(gateway, request, payer)
        body = await read_management_body(request, gateway.services.options.client_timeout, _COMPLETION)
        if body.md5 is not None and not _MD5.fullmatch(body.md5):
            raise InvalidField("$.md5", "it must be 32 hexadecimal digits")
        found = await _find(gateway, payer, upload)
        await _check_keeps(gateway, payer)
        parts = [_part_id(name, place) for place, name in enumerate(body.part_ids)]
        with _told(found):
            completed = await store.complete(found, parts, body.md5)
        return json_response(await _shown(gateway, completed))

    @post(
        "/v1/uploads/{upload:str}/cancel",
        status_code=200,
        opt=demands("inference", "project_key", dialect="openai")
        | describes(UploadObject, path=_PATH, errors={"upload_not_pending": 400}),
    )
    async def cancel_upload(request: Request[Any, Any, Any], upload: FromPath[str]) -> Response[bytes]:
        """Give an upload up. Its parts are removed, and its bytes are not reserved any more."""
        payer, store = project_payer(request.scope), _store(gateway)
        found = await _find(gateway, payer, upload)
        cancelled = await wait(store.cancel(found))
        found = await _find(gateway, payer, upload)
        if not cancelled and found.status != "cancelled":
            raise _over(found)
        return json_response(await _shown(gateway, found))

    return [create_upload, add_upload_part, complete_upload, cancel_upload]


def _store(gateway: Gateway) -> UploadStore:
    if gateway.uploads is None:
        raise NotFound("This gateway keeps no files.")
    return gateway.uploads


async def _check_keeps(gateway: Gateway, payer: Payer) -> None:
    if not await gateway.response_keeper.keeps_content(payer):
        raise NotAllowed("This project keeps nothing of its content, so no files.", code="content_not_kept")


def _checked(payer: Payer, body: NewUploadBody) -> NewUpload:
    if body.purpose not in ("batch", "user_data"):
        raise InvalidField("$.purpose", "it must be batch or user_data")
    if not MIME_TYPE.fullmatch(body.mime_type):
        raise InvalidField("$.mime_type", "it must be a media type such as application/jsonl")
    most = MOST_BATCH_BYTES if body.purpose == "batch" else MOST_BYTES
    if body.bytes > most:
        raise InvalidField("$.bytes", f"a file of this purpose may have at most {most} bytes")
    lifetime = BATCH_LIFETIME_S if body.purpose == "batch" else None
    if body.expires_after is not None:
        lifetime = lifetime_of(body.expires_after.anchor, body.expires_after.seconds, "$.expires_after")
    return NewUpload(
        tenant_id=payer.tenant_id,
        project_id=payer.project_id,
        purpose="batch" if body.purpose == "batch" else "user_data",
        filename=plain_name(body.filename),
        mime_type=body.mime_type,
        bytes=body.bytes,
        lifetime_s=lifetime,
    )


def _bounded(writer: ContentWriter, left: int) -> Callable[[bytes], Any]:
    async def take(content: bytes) -> None:
        if writer.size + len(content) > MOST_PART_BYTES:
            raise BodyTooLarge(f"A part may have at most {MOST_PART_BYTES} bytes.")
        if writer.size + len(content) > left:
            raise _too_much()
        await writer.append(content)

    return take


@contextmanager
def _told(upload: Upload) -> Iterator[None]:
    """Turns errors of the upload's store into errors of the request."""
    try:
        yield
    except UploadOver as error:
        raise _over(upload) from error
    except TooManyParts as error:
        raise InvalidRequest(f"The upload has {MOST_PARTS} parts; send larger ones.", code="too_many_parts") from error
    except UploadFull as error:
        raise _too_much() from error
    except PartUnknown as error:
        problem = "the upload has no such part, or the list has it twice"
        raise InvalidField(f"$.part_ids[{error.place}]", problem) from error
    except WrongSize as error:
        problem = f"these parts have {error.size} bytes; the upload was made for {upload.bytes}"
        raise InvalidField("$.part_ids", problem) from error
    except WrongDigest as error:
        raise InvalidField("$.md5", "the content that came has another digest") from error
    except TooManyJoined as error:
        raise RateLimited("Other uploads are being completed; try again shortly.", retry_after=_JOINED_S) from error
    except (Unreadable, BlobMissing) as error:
        raise _unknown(public_id("upload", upload.id)) from error


def _too_much() -> InvalidField:
    return InvalidField("data", "the parts would have more bytes than the upload was made for")


def _over(upload: Upload) -> InvalidRequest:
    status = "not pending" if upload.status == "pending" else upload.status
    return InvalidRequest(f"The upload is {status}; begin another one.", code="upload_not_pending")


async def _find(gateway: Gateway, payer: Payer, name: str) -> Upload:
    id_ = prefixed_id(name, "upload_")
    if id_ is None:
        raise _unknown(name)
    try:
        found = await gateway.questions.wait(_store(gateway).get(payer.tenant_id, payer.project_id, id_))
    except ScopeKeyUnreadable as error:
        raise _unknown(name) from error
    if found is None:
        raise _unknown(name)
    return found


def _part_id(name: str, place: int) -> UUID:
    found = prefixed_id(name, "part_")
    if found is None:
        raise InvalidField(f"$.part_ids[{place}]", "it is not the id of a part")
    return found


async def _shown(gateway: Gateway, upload: Upload) -> UploadObject:
    file = None
    if upload.file_id is not None:
        store = file_store(gateway)
        file = await gateway.questions.wait(store.get(upload.tenant_id, upload.project_id, upload.file_id))
    return UploadObject(
        id=public_id("upload", upload.id),
        bytes=upload.bytes,
        created_at=upload.created_at // _SECOND,
        expires_at=upload.expires_at // _SECOND,
        filename=upload.filename,
        purpose=upload.purpose,
        status=upload.status,
        file=None if file is None else shown(file),
    )


def _unknown(name: str) -> NotFound:
    return NotFound(f"There is no upload {name[:80]!r}.", path="upload_id")
