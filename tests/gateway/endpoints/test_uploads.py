"""Files that come in parts, as OpenAI's client sends them."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError, BadRequestError, NotFoundError
from sqlalchemy import text

from file_store import uploads
from file_store.sealed_content import PIECE
from gateway.services import GatewayOptions
from tests.gateway.endpoints.test_files import blobs, folder_of, foreign_key
from tests.gateway.stack import Stack, quick_timeouts, running_stack


async def begin(client: Any, size: int, **more: Any) -> Any:
    said = {"filename": "a.jsonl", "mime_type": "application/jsonl", "purpose": "user_data", **more}
    return await client.uploads.create(bytes=size, **said)


async def test_the_client_sends_a_file_in_chunks(stack: Stack) -> None:
    content = os.urandom(2 * PIECE + 777)
    async with stack.openai() as client:
        upload = await client.uploads.upload_file_chunked(
            file=content,
            filename="../data.bin",
            bytes=len(content),
            mime_type="application/octet-stream",
            purpose="user_data",
            part_size=PIECE // 3,
            md5=hashlib.md5(content).hexdigest(),
        )
        assert (upload.object, upload.status, upload.bytes) == ("upload", "completed", len(content))
        assert upload.expires_at == upload.created_at + uploads.LIFETIME_S
        assert upload.file is not None
        assert (upload.file.filename, upload.file.purpose) == ("data.bin", "user_data")
        assert (await client.files.content(upload.file.id)).content == content
        assert [one.id async for one in client.files.list()] == [upload.file.id]
        assert [blob.name for blob in blobs(folder_of(stack))] == [upload.file.id.removeprefix("file_")]


async def test_the_client_sends_a_file_of_the_disk(stack: Stack, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_bytes(b'{"a": 1}\n' * 100)
    async with stack.openai() as client:
        upload = await client.uploads.upload_file_chunked(file=path, mime_type="application/jsonl", purpose="batch")
        assert upload.file is not None
        assert upload.file.expires_at is not None, "one for a batch is kept for 30 days"
        assert (await client.files.content(upload.file.id)).content == path.read_bytes()


async def test_the_list_says_the_order_of_parts(stack: Stack) -> None:
    async with stack.openai() as client:
        upload = await begin(client, 6)
        parts = await asyncio.gather(*(client.uploads.parts.create(upload.id, data=data) for data in (b"cc", b"aa")))
        last = await client.uploads.parts.create(upload.id, data=b"bb")
        assert (last.object, last.upload_id) == ("upload.part", upload.id)
        content = [blob.read_bytes() for blob in blobs(folder_of(stack))]
        assert len(content) == 3
        assert all(b"aa" not in one or len(one) > 2 for one in content), "parts are sealed"
        done = await client.uploads.complete(upload.id, part_ids=[parts[1].id, last.id, parts[0].id])
        assert (await client.files.content(done.file.id)).content == b"aabbcc"
        again = await client.uploads.complete(upload.id, part_ids=[])
        assert again.file == done.file, "a repeated call changes nothing"
        with pytest.raises(BadRequestError) as refused:
            await client.uploads.parts.create(upload.id, data=b"dd")
        assert refused.value.code == "upload_not_pending"
        assert len(blobs(folder_of(stack))) == 1
    entries = await stack.rows("SELECT action, target_id FROM audit_entry WHERE action LIKE 'file.%'")
    assert [tuple(entry) for entry in entries] == [("file.created", done.file.id)]


async def test_what_does_not_fit_is_refused_and_the_upload_lives_on(stack: Stack) -> None:
    async with stack.openai() as client:
        upload = await begin(client, 4)
        first = await client.uploads.parts.create(upload.id, data=b"ab")
        with pytest.raises(BadRequestError, match="more bytes"):
            await client.uploads.parts.create(upload.id, data=b"cde")
        for part_ids, said in (
            ([first.id], "2 bytes"),
            ([first.id, first.id], r"part_ids\[1\]"),
            (["part_" + "0" * 32], r"part_ids\[0\]"),
            (["nonsense"], r"part_ids\[0\]"),
        ):
            with pytest.raises(BadRequestError, match=said):
                await client.uploads.complete(upload.id, part_ids=part_ids)
        second = await client.uploads.parts.create(upload.id, data=b"cd")
        ids = [first.id, second.id]
        for digest in ("0" * 32, "no digest"):
            with pytest.raises(BadRequestError, match="md5"):
                await client.uploads.complete(upload.id, part_ids=ids, md5=digest)
        assert len(blobs(folder_of(stack))) == 2, "what was not completed leaves nothing"
        done = await client.uploads.complete(upload.id, part_ids=ids, md5=hashlib.md5(b"abcd").hexdigest().upper())
        assert done.status == "completed"


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"bytes": 512 * 1024 * 1024 + 1}, "bytes"),
        ({"bytes": 200 * 1024 * 1024 + 1, "purpose": "batch"}, "bytes"),
        ({"bytes": -1}, "bytes"),
        ({"purpose": "fine-tune"}, "purpose"),
        ({"mime_type": "text/\nplain"}, "mime_type"),
        ({"expires_after": {"anchor": "created_at", "seconds": 5}}, "seconds"),
    ],
)
async def test_an_upload_is_checked(stack: Stack, field: dict[str, Any], said: str) -> None:
    async with stack.openai() as client:
        with pytest.raises(BadRequestError, match=said):
            await begin(client, **{"size": 1, **{"size" if name == "bytes" else name: v for name, v in field.items()}})


async def test_a_form_without_data_is_no_part(stack: Stack) -> None:
    async with stack.openai() as client:
        upload = await begin(client, 4)
    for form in ({"purpose": (None, "x")}, {"file": ("a", b"x")}):
        answer = await stack.http.post(
            f"/v1/uploads/{upload.id}/parts", files=form, headers={"authorization": f"Bearer {stack.key}"}
        )
        assert answer.status_code == 400
        assert "data" in answer.json()["error"]["message"]
    assert blobs(folder_of(stack)) == []


async def test_bytes_are_reserved_until_the_end_of_an_upload(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    options = GatewayOptions(timeouts=quick_timeouts(), file_quota=3000)
    running = running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options)
    async with running as stack, stack.openai() as client:
        upload = await begin(client, 2000)
        with pytest.raises(BadRequestError) as refused:
            await begin(client, 1001)
        assert refused.value.code == "storage_exceeded"
        with pytest.raises(BadRequestError):
            await client.files.create(file=("b", b"x" * 1001), purpose="user_data")
        part = await client.uploads.parts.create(upload.id, data=b"x" * 2000)
        assert (await client.uploads.cancel(upload.id)).status == "cancelled"
        assert (await client.uploads.cancel(upload.id)).status == "cancelled"
        assert blobs(tmp_path) == []
        with pytest.raises(BadRequestError):
            await client.uploads.complete(upload.id, part_ids=[part.id])
        upload = await begin(client, 3000)
        part = await client.uploads.parts.create(upload.id, data=b"x" * 3000)
        done = await client.uploads.complete(upload.id, part_ids=[part.id])
        assert done.file is not None, "what was reserved is not counted twice"
        with pytest.raises(BadRequestError):
            await begin(client, 1)


async def test_an_upload_expires(stack: Stack) -> None:
    async with stack.openai() as client:
        upload = await begin(client, 2)
        part = await client.uploads.parts.create(upload.id, data=b"ab")
        async with stack.database.transaction() as session:
            await session.execute(text("UPDATE upload SET expires_at = created_at"))
        for call in (
            client.uploads.parts.create(upload.id, data=b""),
            client.uploads.complete(upload.id, part_ids=[part.id]),
            client.uploads.cancel(upload.id),
        ):
            with pytest.raises(BadRequestError, match="expired"):
                await call
        store = stack.gateway.uploads
        assert store is not None
        assert await store.forget() == 1
        assert blobs(folder_of(stack)) == []
        async with stack.database.transaction() as session:
            await session.execute(text("UPDATE upload SET expires_at = 1"))
        assert await store.forget() == 1
        with pytest.raises(NotFoundError):
            await client.uploads.cancel(upload.id)


async def test_a_foreign_tenant_sees_no_upload(stack: Stack) -> None:
    async with stack.openai() as client, stack.openai(await foreign_key(stack)) as foreign:
        upload = await begin(client, 2)
        part = await client.uploads.parts.create(upload.id, data=b"ab")
        for call in (
            foreign.uploads.parts.create(upload.id, data=b"x"),
            foreign.uploads.complete(upload.id, part_ids=[part.id]),
            foreign.uploads.cancel(upload.id),
        ):
            with pytest.raises(NotFoundError):
                await call
        own = await begin(foreign, 2)
        with pytest.raises(BadRequestError, match="no such part"):
            await foreign.uploads.complete(own.id, part_ids=[part.id])
        assert (await client.uploads.complete(upload.id, part_ids=[part.id])).status == "completed"


async def test_a_project_has_so_many_uploads_and_parts(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("file_store.uploads.MOST_PENDING", 2)
    monkeypatch.setattr("file_store.uploads.MOST_PARTS", 2)
    async with stack.openai() as client:
        first, _ = await begin(client, 5), await begin(client, 5)
        with pytest.raises(APIStatusError) as refused:
            await begin(client, 5)
        assert refused.value.status_code == 429
        for _ in range(2):
            await client.uploads.parts.create(first.id, data=b"x")
        with pytest.raises(BadRequestError) as full:
            await client.uploads.parts.create(first.id, data=b"x")
        assert full.value.code == "too_many_parts"
        await client.uploads.cancel(first.id)
        await begin(client, 5)


async def test_two_completions_at_once_make_one_file(stack: Stack) -> None:
    async with stack.openai() as client:
        upload = await begin(client, 3 * PIECE)
        content = os.urandom(3 * PIECE)
        part = await client.uploads.parts.create(upload.id, data=content)
        done = await asyncio.gather(*(client.uploads.complete(upload.id, part_ids=[part.id]) for _ in range(2)))
        assert {one.file.id for one in done} == {file.id async for file in client.files.list()}
        assert len(blobs(folder_of(stack))) == 1


async def test_a_project_that_keeps_nothing_uploads_nothing(stack: Stack) -> None:
    async with stack.openai() as client:
        await stack.gateway.response_keeper.policies.set(stack.tenant.id, stack.project.id, retention_s=0)
        with pytest.raises(APIStatusError) as refused:
            await begin(client, 3)
        assert refused.value.code == "content_not_kept"
