"""Files, as Anthropic's client uploads, lists, reads and deletes them."""

from __future__ import annotations

import os

import pytest
from anthropic import BadRequestError, NotFoundError

from file_store.sealed_content import PIECE
from tests.gateway.endpoints.test_files import blobs, folder_of, foreign_key
from tests.gateway.stack import Stack


@pytest.mark.parametrize("surface", ["files", "beta.files"])
async def test_a_file_comes_back_as_it_was(stack: Stack, surface: str) -> None:
    content = os.urandom(PIECE + 77)
    async with stack.anthropic() as client:
        files = client.files if surface == "files" else client.beta.files
        file = await files.upload(file=("../report.pdf", content, "application/pdf"))
        assert (file.type, file.filename, file.mime_type, file.size_bytes, file.downloadable, file.expires_at) == (
            "file",
            "report.pdf",
            "application/pdf",
            len(content),
            True,
            None,
        )
        assert await files.retrieve_metadata(file.id) == file
        assert await (await files.download(file.id)).read() == content
        assert [one async for one in files.list()] == [file]
        deleted = await files.delete(file.id)
        assert (deleted.id, deleted.type) == (file.id, "file_deleted")
        assert blobs(folder_of(stack)) == []
        with pytest.raises(NotFoundError) as unknown:
            await files.retrieve_metadata(file.id)
        assert unknown.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]


async def test_files_are_listed_in_pages(stack: Stack) -> None:
    async with stack.anthropic() as client:
        made = [(await client.beta.files.upload(file=(f"{n}.txt", b"x"))).id for n in range(7)]
        assert [one.id async for one in client.beta.files.list(limit=3)] == made[::-1]
        some = await client.beta.files.list(ids=[made[4], made[1], made[1], "file_" + "0" * 32])
        assert ([one.id for one in some.data], some.next_page) == ([made[4], made[1]], None)

        async def page(**query: str) -> dict[str, object]:
            headers = {"x-api-key": stack.key, "anthropic-version": "2023-06-01"}
            headers["anthropic-beta"] = "files-api-2025-04-14"
            return (await stack.http.get("/v1/files", params=query, headers=headers)).json()

        first = await page(limit="3")
        assert (first["first_id"], first["last_id"], first["has_more"]) == (made[6], made[4], True)
        second = await page(limit="3", after_id=made[4])
        assert [one["id"] for one in second["data"]] == [made[3], made[2], made[1]]  # type: ignore[attr-defined]
        back = await page(limit="2", before_id=made[3])
        assert [one["id"] for one in back["data"]] == [made[5], made[4]]  # type: ignore[attr-defined]
        assert (back["has_more"], back["next_page"]) == (True, None)
        for query in (
            {"after_id": made[0], "before_id": made[1]},
            {"page": "nonsense"},
            {"ids": "x"},
            {"order": "asc"},
        ):
            assert (await page(**query))["type"] == "error", query


async def test_the_end_of_a_file_is_asked_for(stack: Stack) -> None:
    async with stack.anthropic() as client:
        file = await client.beta.files.upload(file=("a.txt", b"x"), expires_in_seconds=7_776_000)
        assert file.expires_at is not None
        assert (file.expires_at - file.created_at).total_seconds() == 7_776_000
        for seconds in (3599, 7_776_001):
            with pytest.raises(BadRequestError, match="expires_in_seconds"):
                await client.beta.files.upload(file=("a.txt", b"x"), expires_in_seconds=seconds)
        assert len(blobs(folder_of(stack))) == 1


async def test_both_dialects_see_the_same_files(stack: Stack) -> None:
    async with stack.anthropic() as client, stack.openai() as other:
        uploaded = await client.beta.files.upload(file=("a.txt", b"x"))
        created = await other.files.create(file=("b.jsonl", b"{}"), purpose="batch")
        assert [one.id async for one in other.files.list()] == [created.id, uploaded.id]
        assert [one.id async for one in client.beta.files.list()] == [created.id, uploaded.id]
        assert (await other.files.retrieve(uploaded.id)).purpose == "user_data"
        assert (await other.files.content(uploaded.id)).content == b"x"


async def test_a_foreign_tenant_sees_nothing(stack: Stack) -> None:
    key = await foreign_key(stack)
    async with stack.anthropic() as client, stack.anthropic(api_key=key) as foreign:
        file = await client.beta.files.upload(file=("a.txt", b"secret"))
        for asked in (foreign.beta.files.retrieve_metadata, foreign.beta.files.download, foreign.beta.files.delete):
            with pytest.raises(NotFoundError):
                await asked(file.id)
        assert [one async for one in foreign.beta.files.list(ids=[file.id])] == []


async def test_a_version_that_is_not_known_is_refused(stack: Stack) -> None:
    headers = {"x-api-key": stack.key, "anthropic-version": "2019-01-01"}
    answer = await stack.http.get("/v1/files", headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (400, "error")
