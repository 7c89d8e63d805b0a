"""Files as Anthropic's clients see and list them: the same files as OpenAI's, told apart by the request's dialect."""

from __future__ import annotations

import mimetypes
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

from litestar import Request
from msgspec import Meta, Struct

from billing.calendar import format_instant
from file_store.store import HIDDEN, FileStore, StoredFile
from gateway.admission.prepared_request import Payer
from gateway.dialects.query_parameters import Parameters
from gateway.errors import InvalidField
from gateway.http.operations import query
from storage.database.public_ids import prefixed_id, public_id

LEAST_LIFETIME_S, LONGEST_LIFETIME_S = 3600, 7_776_000
_MOST_IDS = 100
_CURSOR = "page_"
_ID = "file_01934f6e0d2a7b3c8e51a9c4d7f60b12"
_DIGITS = 12
FileName: TypeAlias = Annotated[str, Meta(examples=[_ID])]
Instant: TypeAlias = Annotated[str | None, Meta(examples=["2026-11-22T09:30:00Z"])]


class FileMetadata(Struct, frozen=True, kw_only=True):
    """A file, in Anthropic's dialect. Instants are RFC 3339 timestamps."""

    id: FileName
    type: Literal["file"] = "file"
    filename: Annotated[str, Meta(examples=["questions.jsonl"])]
    mime_type: str
    size_bytes: int
    created_at: Instant
    expires_at: Instant
    downloadable: bool = True


class FileMetadataList(Struct, frozen=True, kw_only=True):
    """A page of files, in Anthropic's dialect. `next_page` is the `page` of the next one."""

    data: list[FileMetadata]
    has_more: bool
    first_id: FileName | None
    last_id: FileName | None
    next_page: Annotated[str | None, Meta(examples=[None])]


class FileDeleted(Struct, frozen=True):
    """A file that was deleted, in Anthropic's dialect."""

    id: FileName
    type: Literal["file_deleted"] = "file_deleted"


QUERY = (
    query("ids", str, "Only these files, in Anthropic's dialect; 100 at most.", example=_ID, repeated=True),
    query("page", str, "The `next_page` of the page before, in Anthropic's dialect.", example=f"{_CURSOR}{_ID[5:]}"),
    query("after_id", str, "The last file of the page before, in Anthropic's dialect.", example=_ID),
    query("before_id", str, "The first file of the page behind, in Anthropic's dialect.", example=_ID),
)


async def list_metadata(store: FileStore, request: Request[Any, Any, Any], payer: Payer) -> FileMetadataList:
    """The page that the query asks for, the newest first. Raises InvalidRequest, ScopeKeyUnreadable,
    DatabaseUnavailable."""
    parameters = Parameters.of(request)
    limit, ids = parameters.page_size(most=1000), parameters.texts("ids")
    places = {name: parameters.text(name) for name in ("page", "after_id", "before_id")}
    given = [name for name, value in places.items() if value is not None]
    parameters.reject("scope_id", "files have no scopes here")
    parameters.reject_unknown()
    if len(given) > 1 or (given and ids is not None):
        raise InvalidField(given[-1], "it cannot be combined with another place to begin at, or with ids")
    wanted = None if ids is None else {_id_of(name, "file_", "ids") for name in ids}
    if wanted is not None and len(wanted) > _MOST_IDS:
        raise InvalidField("ids", f"at most {_MOST_IDS} at once")
    backwards = places["before_id"] is not None
    after = None
    if given:
        name = given[0]
        after = _id_of(places[name] or "", _CURSOR if name == "page" else "file_", name)
    size = _MOST_IDS if wanted is not None else limit
    found = await store.page(
        payer.tenant_id,
        payer.project_id,
        limit=size + 1,
        after=after,
        ascending=backwards,
        ids=None if wanted is None else sorted(wanted),
    )
    more, shown = len(found) > size, [metadata(file) for file in found[:size]]
    if backwards:
        shown.reverse()
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    next_page = f"{_CURSOR}{last.removeprefix('file_')}" if more and last is not None and not backwards else None
    return FileMetadataList(data=shown, has_more=more, first_id=first, last_id=last, next_page=next_page)


def metadata(file: StoredFile) -> FileMetadata:
    """A file as its project sees it."""
    assert file.purpose != HIDDEN, "nobody sees it"
    guessed = mimetypes.guess_type(file.filename)[0] or "application/octet-stream"
    return FileMetadata(
        id=public_id("file", file.id),
        filename=file.filename,
        mime_type=file.mime_type or guessed,
        size_bytes=file.bytes,
        created_at=format_instant(file.created_at),
        expires_at=None if file.expires_at is None else format_instant(file.expires_at),
    )


def lifetime_of(seconds: str | None) -> int | None:
    """The seconds of a form's `expires_in_seconds`; None for ever. Raises InvalidField."""
    if seconds is None:
        return None
    digits = seconds.isascii() and seconds.isdigit() and len(seconds) < _DIGITS
    if not digits or not LEAST_LIFETIME_S <= int(seconds) <= LONGEST_LIFETIME_S:
        raise InvalidField("expires_in_seconds", f"it must be from {LEAST_LIFETIME_S} to {LONGEST_LIFETIME_S}")
    return int(seconds)


def _id_of(name: str, prefix: str, field: str) -> UUID:
    found = prefixed_id(name, prefix)
    if found is None:
        raise InvalidField(field, f"{name[:80]!r} is not one of ours")
    return found
