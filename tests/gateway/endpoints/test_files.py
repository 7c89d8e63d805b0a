"""Files, as OpenAI's client uploads, lists, reads and deletes them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError
from sqlalchemy import text

from file_store.sealed_content import PIECE
from file_store.store import STRAY_S, QuotaExceeded
from gateway.services import GatewayOptions
from tests.gateway.stack import Stack, quick_timeouts, running_stack


def blobs(folder: Path) -> list[Path]:
    return [path for path in (folder / "files").glob("??/*") if path.is_file()]


async def foreign_key(stack: Stack) -> str:
    """A key of another tenant's project."""
    tenant = await stack.tenancy.create_tenant("other")
    project = await stack.tenancy.create_project(tenant.id, "default")
    return (await stack.tenancy.create_key(tenant.id, project.id)).key


def folder_of(stack: Stack) -> Path:
    return stack.spool.folder.parent


async def test_a_file_comes_back_as_it_was(stack: Stack) -> None:
    content = os.urandom(2 * PIECE + 77)
    async with stack.openai() as client:
        file = await client.files.create(file=("data.bin", content), purpose="user_data")
        assert (file.object, file.bytes, file.filename, file.purpose, file.status) == (
            "file",
            len(content),
            "data.bin",
            "user_data",
            "processed",
        )
        assert file.expires_at is None
        assert (await client.files.content(file.id)).content == content
        assert await client.files.retrieve(file.id) == file
        assert [one.id async for one in client.files.list()] == [file.id]
        (blob,) = blobs(folder_of(stack))
        assert blob.stat().st_size > len(content)
        assert content[:64] not in blob.read_bytes()
        deleted = await client.files.delete(file.id)
        assert (deleted.id, deleted.deleted) == (file.id, True)
        assert blobs(folder_of(stack)) == []
        with pytest.raises(NotFoundError):
            await client.files.retrieve(file.id)
        empty = await client.files.create(file=("empty", b""), purpose="user_data")
        assert (await client.files.content(empty.id)).content == b""


async def test_files_are_listed_in_pages(stack: Stack) -> None:
    async with stack.openai() as client:
        made = [
            (await client.files.create(file=(f"{n}", b"x"), purpose="batch" if n % 2 else "user_data")).id
            for n in range(7)
        ]
        assert [one.id async for one in client.files.list(limit=3)] == made[::-1]
        assert [one.id async for one in client.files.list(limit=3, order="asc")] == made
        assert [one.id async for one in client.files.list(limit=2, purpose="batch")] == made[1::2][::-1]


async def test_the_end_of_a_file_is_asked_for(stack: Stack) -> None:
    async with stack.openai() as client:
        expiry: Any = {"anchor": "created_at", "seconds": 3600}
        file = await client.files.create(file=("a", b"x"), purpose="user_data", expires_after=expiry)
        assert file.expires_at == file.created_at + 3600
        for seconds in (3599, 2_592_001):
            with pytest.raises(BadRequestError, match="seconds"):
                await client.files.create(
                    file=("a", b"x"), purpose="user_data", expires_after={"anchor": "created_at", "seconds": seconds}
                )
        assert len(blobs(folder_of(stack))) == 1, "what is refused is not kept"
        async with stack.database.transaction() as session:
            await session.execute(text("UPDATE stored_file SET expires_at = 1"))
        with pytest.raises(NotFoundError):
            await client.files.content(file.id)
        assert stack.gateway.files is not None
        assert await stack.gateway.files.forget() == 1
        assert blobs(folder_of(stack)) == []


async def test_a_foreign_tenant_sees_nothing(stack: Stack) -> None:
    async with stack.openai() as client, stack.openai(await foreign_key(stack)) as foreign:
        file = await client.files.create(file=("a", b"secret"), purpose="user_data")
        for asked in (foreign.files.retrieve, foreign.files.content, foreign.files.delete):
            with pytest.raises(NotFoundError):
                await asked(file.id)
        assert [one async for one in foreign.files.list()] == []
        with pytest.raises(NotFoundError):
            await foreign.batches.create(
                input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
            )
        assert (await client.files.content(file.id)).content == b"secret"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\secrets\\a.txt", "a.txt"),
        ('a"; filename="b.html', 'a"; filename="b.html'),
        ("..", "file"),
        ("naïve 漢字.jsonl", "naïve 漢字.jsonl"),
        ("<script>alert(1)</script>.html", "script>.html"),
        ("x" * 400, "x" * 255),
    ],
)
async def test_a_name_is_no_path_and_no_header(stack: Stack, name: str, shown: str) -> None:
    async with stack.openai() as client:
        file = await client.files.create(file=(name, b"content"), purpose="user_data")
        assert file.filename == shown
        raw = await client.files.with_raw_response.content(file.id)
        disposition = raw.headers["content-disposition"]
        assert disposition.startswith('attachment; filename="')
        assert disposition.count('"') == 2
        assert raw.headers["x-content-type-options"] == "nosniff"
        assert raw.headers["content-type"] == "application/octet-stream"
    (blob,) = blobs(folder_of(stack))
    assert blob.name == file.id.removeprefix("file_")


@pytest.mark.parametrize(
    ("body", "headers", "field"),
    [
        (b"{}", {"content-type": "application/json"}, "form"),
        (b"", {"content-type": "multipart/form-data; boundary=x"}, "form"),
        (b"--x\r\n\r\n", {"content-type": "multipart/form-data; boundary=x"}, "form"),
        (
            b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n',
            {"content-type": "multipart/form-data; boundary=x"},
            "file",
        ),
        (
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc\r\n--x--\r\n',
            {"content-type": "multipart/form-data; boundary=x"},
            "purpose",
        ),
        (
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc\r\n'
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="b"\r\n\r\nabc\r\n--x--\r\n',
            {"content-type": "multipart/form-data; boundary=x"},
            "twice",
        ),
        (
            b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n' + b"b" * 5000 + b"\r\n--x--\r\n",
            {"content-type": "multipart/form-data; boundary=x"},
            "purpose",
        ),
        (
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc\r\n'
            b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n--x--\r\n',
            {"content-type": "multipart/form-data; boundary=x"},
            "purpose",
        ),
    ],
)
async def test_a_form_that_is_none_is_refused(stack: Stack, body: bytes, headers: dict[str, str], field: str) -> None:
    answer = await stack.http.post(
        "/v1/files", content=body, headers={"authorization": f"Bearer {stack.key}", **headers}
    )
    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]
    assert blobs(folder_of(stack)) == []


async def test_a_project_keeps_so_many_bytes(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> None:
    options = GatewayOptions(timeouts=quick_timeouts(), file_quota=3000)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack:
        client = stack.openai()
        async with client:
            first = await client.files.create(file=("a", b"x" * 2000), purpose="user_data")
            with pytest.raises(BadRequestError) as refused:
                await client.files.create(file=("b", b"x" * 2000), purpose="user_data")
            assert refused.value.code == "storage_exceeded"
            assert len(blobs(tmp_path)) == 1
            await client.files.delete(first.id)
            await client.files.create(file=("b", b"x" * 3000), purpose="user_data")


def _form(content: bytes) -> tuple[bytes, bytes]:
    """A form with this file in two parts: up to the file's half, and the rest."""
    begin = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    begin += b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    half = len(content) // 2
    return begin + content[:half], content[half:] + b"\r\n--x--\r\n"


async def _upload_in_parts(stack: Stack, content: bytes, go_on: asyncio.Event, *, announced: bool) -> int:
    first, second = _form(content)

    async def body() -> AsyncIterator[bytes]:
        yield first
        await go_on.wait()
        yield second

    headers = {"authorization": f"Bearer {stack.key}", "content-type": "multipart/form-data; boundary=x"}
    if announced:
        headers["content-length"] = str(len(first) + len(second))
    return (await stack.http.post("/v1/files", content=body(), headers=headers)).status_code


async def _rooms(stack: Stack) -> list[int]:
    return [row[0] for row in await stack.rows("SELECT bytes FROM file_reservation")]


@pytest.mark.parametrize("announced", [True, False])
async def test_uploads_at_once_do_not_pass_the_quota(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, *, announced: bool
) -> None:
    """What is on its way counts before its content has come, and no longer when it does not come."""
    options = GatewayOptions(timeouts=quick_timeouts(), file_quota=3000)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack, stack.openai() as c:
        go_on = asyncio.Event()
        first = asyncio.create_task(_upload_in_parts(stack, b"x" * 2000, go_on, announced=announced))
        while not await _rooms(stack):  # noqa: ASYNC110  # a row
            await asyncio.sleep(0.01)
        with pytest.raises(BadRequestError) as refused:
            await c.files.create(file=("b", b"x" * 2000), purpose="user_data")
        assert refused.value.code == "storage_exceeded"
        go_on.set()
        assert await first == 200
        assert await _rooms(stack) == []
        await c.files.create(file=("c", b"x" * 1000), purpose="user_data")


async def test_an_upload_that_comes_to_no_end_gives_its_room_back(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    options = GatewayOptions(timeouts=quick_timeouts(), file_quota=3000)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack, stack.openai() as c:
        left = asyncio.create_task(_upload_in_parts(stack, b"x" * 2000, asyncio.Event(), announced=True))
        while not await _rooms(stack):  # noqa: ASYNC110  # a row
            await asyncio.sleep(0.01)
        left.cancel()
        while await _rooms(stack):  # noqa: ASYNC110  # a row
            await asyncio.sleep(0.01)
        assert blobs(tmp_path) == []
        await c.files.create(file=("b", b"x" * 3000), purpose="user_data")


async def test_room_for_a_file_ends_when_its_gateway_died(stack: Stack) -> None:
    files = stack.gateway.files
    assert files is not None
    await files.reserve(stack.tenant.id, stack.project.id, files.quota)
    with pytest.raises(QuotaExceeded):
        await files.reserve(stack.tenant.id, stack.project.id, 1, 1)
    async with stack.database.transaction() as session:
        await session.execute(text("UPDATE file_reservation SET until = 1"))
    await files.reserve(stack.tenant.id, stack.project.id, 1, 1)
    assert sorted(await _rooms(stack)) == [1, files.quota]
    await files.forget()
    assert await _rooms(stack) == [1]


async def test_a_file_far_beyond_the_quota_is_refused_before_it_comes(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    options = GatewayOptions(timeouts=quick_timeouts(), file_quota=3000)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack:
        url = stack.http.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        headers = (
            f"POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {stack.key}\r\n"
            "content-type: multipart/form-data; boundary=x\r\ncontent-length: 1000000\r\n\r\n"
        )
        writer.write(headers.encode())
        async with asyncio.timeout(10):
            assert b" 400 " in await reader.readline()
        writer.close()
        assert blobs(tmp_path) == []


async def test_a_project_keeps_so_many_files(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files without content take no bytes of the quota."""
    monkeypatch.setattr("file_store.store.MOST_FILES", 2)
    async with stack.openai() as client:
        first = await client.files.create(file=("a", b""), purpose="user_data")
        await client.files.create(file=("b", b""), purpose="user_data")
        with pytest.raises(BadRequestError) as refused:
            await client.files.create(file=("c", b""), purpose="user_data")
        assert refused.value.code == "storage_exceeded"
        assert len(blobs(folder_of(stack))) == 2
        await client.files.delete(first.id)
        await client.files.create(file=("c", b""), purpose="user_data")


async def test_files_end_with_the_key_of_their_project(stack: Stack) -> None:
    async with stack.openai() as client:
        file = await client.files.create(file=("a", b"secret"), purpose="user_data")
        keys = stack.gateway.services.scope_keys
        assert keys is not None
        await keys.destroy(stack.tenant.id, stack.project.id, "erased")
        with pytest.raises(NotFoundError):
            await client.files.content(file.id)
        assert [one async for one in client.files.list()] == []
        assert stack.gateway.files is not None
        assert await stack.gateway.files.forget() == 1
        assert blobs(folder_of(stack)) == []
        assert await stack.rows("SELECT 1 FROM stored_file") == []


async def test_blobs_without_a_row_are_swept_when_they_are_old(stack: Stack) -> None:
    async with stack.openai() as client:
        kept = await client.files.create(file=("a", b"x"), purpose="user_data")
    (blob,) = blobs(folder_of(stack))
    old = time.time() - STRAY_S - 10
    os.utime(blob, (old, old))
    for name, when in (("a" * 32, old), ("b" * 32 + ".part", old), ("c" * 32, time.time())):
        stray = blob.parent.parent / name[:2] / name
        stray.parent.mkdir(exist_ok=True)
        stray.write_bytes(b"x")
        os.utime(stray, (when, when))
    assert stack.gateway.files is not None
    assert await stack.gateway.files.forget() == 2
    left = {path.name for path in blobs(folder_of(stack))}
    assert left == {blob.name, "c" * 32}
    assert kept.id.endswith(blob.name)


async def test_an_altered_blob_is_not_read(stack: Stack) -> None:
    async with stack.openai() as client:
        file = await client.files.create(file=("a", b"content" * 100), purpose="user_data")
        (blob,) = blobs(folder_of(stack))
        blob.write_bytes(blob.read_bytes()[:-1] + b"\0")
        with pytest.raises(NotFoundError):
            await client.files.content(file.id)


async def test_uploads_and_deletions_are_recorded(stack: Stack) -> None:
    async with stack.openai() as client:
        file = await client.files.create(file=("private-name", b"x"), purpose="user_data")
        await client.files.delete(file.id)
    entries = await stack.rows("SELECT action, target_id FROM audit_entry WHERE action LIKE 'file.%' ORDER BY number")
    assert [tuple(entry) for entry in entries] == [("file.created", file.id), ("file.deleted", file.id)]
    assert await stack.rows("SELECT 1 FROM audit_entry WHERE CAST(after AS TEXT) LIKE '%private-name%'") == []
