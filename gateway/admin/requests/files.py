"""/admin/v1/tenants/{tenant}/files: the files of a tenant's projects, as its people see and delete them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from batch_store.store import BatchStore
from billing.calendar import format_instant
from file_store.store import HIDDEN, FileStore, StoredFile
from gateway.admin.access import PartOfTenant
from gateway.admin.operation import Query, operation
from gateway.admin.usage import project_filter
from gateway.errors import Conflict, InvalidField, NotFound
from gateway.http.policies import demands
from gateway.http.shapes import Page, PageQuery
from gateway.services import Gateway
from prompt_cache.promise.scope_keys import ScopeKeyUnreadable
from storage.database.public_ids import prefixed_id, public_id
from tenancy.directory import Directory, project_public_id

FILES = "/admin/v1/tenants/{tenant:str}/files"
ID = "file_01934f6e0d2a7b3c8e51a9c4d7f60b12"
_NAME = {"file": ID}
Purpose = Literal["batch", "batch_output", "user_data"]


class TenantFileObject(Struct, frozen=True, kw_only=True):
    """A file. `expires_at`: null if it is kept until somebody deletes it."""

    object: Literal["tenant.file"] = "tenant.file"
    id: Annotated[str, Meta(examples=[ID])]
    project_id: str
    project: str | None
    filename: Annotated[str, Meta(examples=["questions.jsonl"])]
    purpose: Purpose
    mime_type: str | None
    bytes: int
    created_at: str
    expires_at: str | None


class TenantFileList(Page[TenantFileObject], frozen=True):
    """A tenant's files, the newest first."""


class TenantFileDeleted(Struct, frozen=True, kw_only=True):
    """A file that was deleted."""

    object: Literal["tenant.file"] = "tenant.file"
    id: Annotated[str, Meta(examples=[ID])]
    deleted: bool = True


class FileOperations:
    """Lists, shows and deletes files."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._directory = Directory(gateway.services.database)

    @operation("GET", FILES, demands("requests.read"))
    async def list_files(
        self,
        tenant: PartOfTenant,
        page: PageQuery,
        project: Annotated[list[str] | None, Query("Only of this project, by id or name.", example="default")] = None,
        purpose: Annotated[Purpose | None, Query("Only those of it.")] = None,
    ) -> TenantFileList:
        """The files of the tenant's projects that you may see, the newest first."""
        owner, visible = tenant
        projects = await project_filter(self._gateway, owner.id, project, visible)
        after = None if page.after is None else prefixed_id(page.after, "file_")
        if page.after is not None and after is None:
            raise InvalidField("after", f"{page.after[:80]!r} is not the id of a file")
        store = file_store(self._gateway)
        found = await store.page(owner.id, projects, limit=page.limit + 1, after=after, purpose=purpose)
        names = await self._directory.project_names(owner.id, {one.project_id for one in found}) if found else {}
        return TenantFileList.of([_object(one, names.get(one.project_id)) for one in found], page.limit)

    @operation("GET", f"{FILES}/{{file:str}}", demands("requests.read"), path=_NAME)
    async def retrieve_file(self, tenant: PartOfTenant, file: str) -> TenantFileObject:
        """One file, without its content."""
        found = await find_file(self._gateway, tenant, file)
        names = await self._directory.project_names(found.tenant_id, {found.project_id})
        return _object(found, names.get(found.project_id))

    @operation("DELETE", f"{FILES}/{{file:str}}", demands("projects.write"), path=_NAME, errors={"conflict": 409})
    async def delete_file(self, tenant: PartOfTenant, file: str) -> TenantFileDeleted:
        """Delete a file. One that a running batch reads stays until the batch has ended."""
        found, store = await find_file(self._gateway, tenant, file), file_store(self._gateway)
        if (reader := await BatchStore(store).reads(found.tenant_id, found.id)) is not None:
            batch = public_id("batch", reader)
            raise Conflict(f"The batch {batch} reads this file; cancel it, or wait for its end.", path="file")
        if not await store.delete(found.tenant_id, found.project_id, found.id):
            raise unknown(file)
        return TenantFileDeleted(id=public_id("file", found.id))


def file_store(gateway: Gateway) -> FileStore:
    """The files. Raises NotFound where there are none."""
    if gateway.files is None:
        raise NotFound("This gateway keeps no files.")
    return gateway.files


async def find_file(gateway: Gateway, tenant: PartOfTenant, name: str) -> StoredFile:
    """A file of these projects of a tenant. Raises NotFound, DatabaseUnavailable."""
    (owner, visible), id_ = tenant, prefixed_id(name, "file_")
    try:
        found = None if id_ is None else await file_store(gateway).get(owner.id, None, id_)
    except ScopeKeyUnreadable:
        found = None
    if found is None or found.purpose == HIDDEN or (visible is not None and found.project_id not in visible):
        raise unknown(name)
    return found


def unknown(name: str) -> NotFound:
    """The error for a file that is not there, or not the tenant's."""
    return NotFound(f"There is no file {name[:80]!r}.")


def _object(file: StoredFile, project: str | None) -> TenantFileObject:
    assert file.purpose != "message_batch", "nobody sees it"
    return TenantFileObject(
        id=public_id("file", file.id),
        project_id=project_public_id(file.project_id),
        project=project,
        filename=file.filename,
        purpose=file.purpose,
        mime_type=file.mime_type,
        bytes=file.bytes,
        created_at=format_instant(file.created_at),
        expires_at=None if file.expires_at is None else format_instant(file.expires_at),
    )
