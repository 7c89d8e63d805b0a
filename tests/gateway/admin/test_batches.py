"""Batches and files, as a tenant's people see them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.gateway.endpoints.test_batches import chat_line, jsonl, order, until_ended
from tests.gateway.endpoints.test_message_batches import until_ended as until_ended_of_messages
from tests.gateway.stack import Stack

SAID = "The quick brown fox."


def admin_key(stack: Stack) -> dict[str, str]:
    """The header of an administrator's key of the stack's tenant."""
    return {"authorization": f"Bearer {stack.admin_key}"}


def base(stack: Stack) -> str:
    return f"/admin/v1/tenants/{stack.tenant.name}"


async def a_batch(stack: Stack) -> Any:
    """A batch that has ended: two lines with an answer, and one that failed."""
    stack.say(SAID)
    async with stack.openai() as client:
        batch = await order(client, jsonl(chat_line("a"), chat_line("b"), chat_line("bad", temperature=77)))
        return await until_ended(client, batch.id)


async def booked(stack: Stack, count: int) -> None:
    """Wait until the books have so many requests."""
    for _ in range(200):
        if len(await stack.rows("SELECT 1 FROM usage_event")) >= count:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the books do not have them")


async def test_a_batch_is_listed_with_its_progress_and_cost(stack: Stack) -> None:
    batch, headers = await a_batch(stack), admin_key(stack)
    await booked(stack, 2)
    answer = (await stack.http.get(f"{base(stack)}/batches", headers=headers)).json()
    (shown,) = answer["data"]
    assert (shown["id"], shown["status"], shown["surface"], shown["lane"]) == (batch.id, "completed", "openai", "batch")
    assert shown["counts"] == {"total": 3, "left": 0, "completed": 2, "failed": 1, "cancelled": 0, "expired": 0}
    assert shown["results"] == ["output", "error"]
    (cost,) = shown["cost"]
    (booked_cost,) = (await stack.rows("SELECT sum(cost_pico) FROM usage_event"))[0]
    assert round(float(cost["amount"]) * 10**12) == int(booked_cost) > 0
    one = (await stack.http.get(f"{base(stack)}/batches/{batch.id}", headers=headers)).json()
    assert one == shown
    for query, count in (("state=running", 0), ("state=ended", 1), ("project=default", 1), (f"after={batch.id}", 0)):
        found = (await stack.http.get(f"{base(stack)}/batches?{query}", headers=headers)).json()
        assert len(found["data"]) == count, query


async def test_results_are_read_where_the_project_allows_it_and_that_is_recorded(stack: Stack) -> None:
    batch, headers = await a_batch(stack), admin_key(stack)
    paths = [
        f"{base(stack)}/batches/{batch.id}/results",
        f"{base(stack)}/batches/{batch.id}/results?kind=error",
        f"{base(stack)}/batches/{batch.id}/failed-lines",
        f"{base(stack)}/files/{batch.input_file_id}/content",
    ]
    for path in paths:
        refused = await stack.http.get(path, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "content_not_readable")
    assert await stack.rows("SELECT 1 FROM audit_entry WHERE action = 'file.read'") == []
    await stack.gateway.response_keeper.policies.set(stack.tenant.id, stack.project.id, readable=True)
    output, error, failed, content = [await stack.http.get(path, headers=headers) for path in paths]
    assert output.text.count(SAID) == 2
    assert output.headers["content-disposition"].startswith("attachment")
    assert output.headers["x-content-type-options"] == "nosniff"
    assert '"bad"' in error.text
    (line,) = failed.json()["data"]
    assert (line["custom_id"], line["status"], failed.json()["has_more"]) == ("bad", 400, False)
    assert "temperature" in line["message"]
    assert '"custom_id"' in content.text
    read = await stack.rows("SELECT target_id FROM audit_entry WHERE action = 'file.read' ORDER BY number")
    assert [row[0] for row in read] == [
        batch.output_file_id,
        batch.error_file_id,
        batch.error_file_id,
        batch.input_file_id,
    ]


async def test_lines_of_a_message_batch_that_failed_are_shown(stack: Stack) -> None:
    stack.say(SAID)
    await stack.gateway.response_keeper.policies.set(stack.tenant.id, stack.project.id, readable=True)
    headers = admin_key(stack)
    asked = {"model": "tiny", "max_tokens": 30, "messages": [{"role": "user", "content": "Say it."}]}
    async with stack.anthropic() as client:
        requests: Any = [
            {"custom_id": "a", "params": asked},
            {"custom_id": "bad", "params": {**asked, "temperature": 77}},
        ]
        batch = await client.messages.batches.create(requests=requests)
        path = f"{base(stack)}/batches/{batch.id}"
        assert (await until_ended_of_messages(client, batch.id)).id == batch.id
        shown = (await stack.http.get(path, headers=headers)).json()
    assert (shown["surface"], shown["input_file_id"], shown["results"]) == ("anthropic", None, ["output"])
    failed = (await stack.http.get(f"{path}/failed-lines", headers=headers)).json()
    ((line,), more) = failed["data"], failed["has_more"]
    assert (line["custom_id"], line["status"], line["code"], more) == ("bad", None, "invalid_request_error", False)


async def test_a_batch_is_cancelled(stack: Stack) -> None:
    stack.say(SAID, queued=5.0)
    headers = admin_key(stack)
    async with stack.openai() as client:
        batch = await order(client, jsonl(*(chat_line(f"line-{n}") for n in range(50))))
        path = f"{base(stack)}/batches/{batch.id}"
        cancelled = await stack.http.post(f"{path}/cancel", headers=headers)
        assert cancelled.json()["status"] in {"cancelling", "cancelled"}, cancelled.text
        ended = await until_ended(client, batch.id)
        assert ended.status == "cancelled"
    again = await stack.http.post(f"{path}/cancel", headers=headers)
    assert again.json()["status"] == "cancelled"
    finished = await a_batch(stack)
    refused = await stack.http.post(f"{base(stack)}/batches/{finished.id}/cancel", headers=headers)
    assert refused.status_code == 409
    entries = await stack.rows("SELECT target_id, actor_means FROM audit_entry WHERE action = 'batch.cancelled'")
    assert [tuple(row) for row in entries] == [(batch.id, "admin_key")]


async def test_files_are_listed_and_deleted(stack: Stack) -> None:
    headers = admin_key(stack)
    async with stack.openai() as client:
        file = await client.files.create(file=("a.txt", b"abc", "text/plain"), purpose="user_data")
        other = await client.files.create(file=("b.jsonl", b"{}"), purpose="batch")
    listed = (await stack.http.get(f"{base(stack)}/files", headers=headers)).json()["data"]
    assert [one["id"] for one in listed] == [other.id, file.id]
    assert (listed[1]["filename"], listed[1]["bytes"], listed[1]["mime_type"]) == ("a.txt", 3, "text/plain")
    some = (await stack.http.get(f"{base(stack)}/files?purpose=batch", headers=headers)).json()["data"]
    assert [one["id"] for one in some] == [other.id]
    rest = (await stack.http.get(f"{base(stack)}/files?after={other.id}", headers=headers)).json()["data"]
    assert [one["id"] for one in rest] == [file.id]
    deleted = await stack.http.delete(f"{base(stack)}/files/{file.id}", headers=headers)
    assert deleted.json()["deleted"] is True
    assert (await stack.http.get(f"{base(stack)}/files/{file.id}", headers=headers)).status_code == 404


async def test_a_file_that_a_batch_reads_stays(stack: Stack) -> None:
    stack.say(SAID, queued=5.0)
    headers = admin_key(stack)
    async with stack.openai() as client:
        batch = await order(client, jsonl(chat_line("a")))
        refused = await stack.http.delete(f"{base(stack)}/files/{batch.input_file_id}", headers=headers)
        assert (refused.status_code, batch.id in refused.text) == (409, True)


@pytest.mark.parametrize("name", ["nonsense", "batch_" + "0" * 32, "file_" + "0" * 32])
async def test_what_is_not_there_is_404(stack: Stack, name: str) -> None:
    headers = admin_key(stack)
    for path in (f"batches/{name}", f"batches/{name}/results", f"batches/{name}/failed-lines", f"files/{name}"):
        assert (await stack.http.get(f"{base(stack)}/{path}", headers=headers)).status_code == 404
