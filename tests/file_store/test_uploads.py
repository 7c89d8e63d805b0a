"""Uploads in both databases: what is reserved and what parts have is never exceeded, whoever comes at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from audit_log.actors import Actor, acting_as
from file_store.blobs import FolderBlobs
from file_store.store import FileStore, QuotaExceeded
from file_store.uploads import NewUpload, PartUnknown, Upload, UploadFull, UploadOver, UploadStore
from prompt_cache.promise.scope_keys import ScopeKeys
from storage.database.base import new_id
from storage.database.database import Database

TENANT, PROJECT, OTHER = new_id(), new_id(), new_id()
QUOTA = 1000
NEW = NewUpload(
    tenant_id=TENANT,
    project_id=PROJECT,
    purpose="user_data",
    filename="a.txt",
    mime_type="text/plain",
    bytes=300,
    lifetime_s=None,
)

pytestmark = pytest.mark.both_databases


@pytest.fixture
async def store(database: Database, tmp_path: Path) -> AsyncIterator[UploadStore]:
    keys = ScopeKeys(database, b"m" * 32)
    with acting_as(Actor("project_key", "key", "key")):
        yield UploadStore(FileStore(database, keys, FolderBlobs(tmp_path), QUOTA))


def blobs(folder: Path) -> list[str]:
    """The names of all blobs."""
    return [path.name for path in folder.glob("??/*")]


async def add_part(store: UploadStore, upload: Upload, content: bytes) -> object:
    """The id of a new part, or why there is none."""
    id_, writer = await store.begin_part(upload)
    await writer.append(content)
    await writer.commit()
    try:
        await store.save_part(upload, id_, writer.size)
    except (UploadFull, UploadOver) as error:
        await store.files.discard(id_)
        return error
    return id_


async def test_no_more_is_reserved_than_the_quota(store: UploadStore) -> None:
    made = await asyncio.gather(*(store.create(NEW) for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(one, Upload) for one in made) == 3
    assert all(isinstance(one, Upload | QuotaExceeded) for one in made), made
    assert await store.files.used_bytes(TENANT, PROJECT) == 900
    assert await store.files.used_bytes(TENANT, OTHER) == 0
    await store.create(replace(NEW, project_id=OTHER))


async def test_parts_that_come_at_once_are_no_more_than_was_reserved(store: UploadStore, tmp_path: Path) -> None:
    upload = await store.create(NEW)
    made = await asyncio.gather(*(add_part(store, upload, bytes([n]) * 100) for n in range(8)))
    parts = [one for one in made if not isinstance(one, Exception)]
    assert len(parts) == 3
    assert all(isinstance(one, UploadFull) for one in made if one not in parts)
    done = await store.complete(upload, parts[::-1], None)  # type: ignore[arg-type]
    assert done.file_id is not None
    file = await store.files.get(TENANT, None, done.file_id)
    assert file is not None
    content = b"".join([piece async for piece in (await store.files.content(file)).pieces()])
    assert content == b"".join(bytes([made.index(part)]) * 100 for part in parts[::-1])
    assert blobs(tmp_path) == [done.file_id.hex]
    assert await store.files.used_bytes(TENANT, PROJECT) == 300


async def test_an_upload_ends_once(store: UploadStore, tmp_path: Path) -> None:
    upload = await store.create(NEW)
    part = await add_part(store, upload, b"x" * 300)
    ends = await asyncio.gather(
        store.complete(upload, [part], None),  # type: ignore[list-item]
        store.cancel(upload),
        add_part(store, upload, b""),
        return_exceptions=True,
    )
    found = await store.get(TENANT, PROJECT, upload.id)
    assert found is not None
    cancelled = ends[1] is True
    assert found.status == ("cancelled" if cancelled else "completed")
    if cancelled:
        assert isinstance(ends[0], UploadOver | PartUnknown)
    assert blobs(tmp_path) == ([] if cancelled else [found.file_id.hex])  # type: ignore[union-attr]
    assert await store.files.used_bytes(TENANT, PROJECT) == (0 if cancelled else 300)


async def test_uploads_of_others_are_unknown(store: UploadStore) -> None:
    upload = await store.create(NEW)
    assert await store.get(TENANT, OTHER, upload.id) is None
    assert await store.get(OTHER, PROJECT, upload.id) is None
    own = await store.create(replace(NEW, project_id=OTHER))
    part = await add_part(store, upload, b"x" * 300)
    with pytest.raises(PartUnknown):
        await store.complete(own, [part], None)  # type: ignore[list-item]


async def test_files_of_a_tenant_are_listed_by_its_projects(store: UploadStore) -> None:
    for project in (PROJECT, OTHER):
        upload = await store.create(replace(NEW, project_id=project, bytes=0))
        await store.complete(upload, [], None)
    page = store.files.page
    assert len(await page(TENANT, None, limit=10)) == 2
    assert [one.project_id for one in await page(TENANT, [OTHER], limit=10)] == [OTHER]
    assert await page(TENANT, [], limit=10) == []
    assert await page(OTHER, None, limit=10) == []
