"""OpenAI's batches, as its own client orders, polls and reads them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from openai import BadRequestError, ConflictError, NotFoundError, PermissionDeniedError
from sqlalchemy import text

from batch_store.running import BatchWork
from billing.verification.audit import audit_money
from gateway.services import GatewayOptions
from tenancy.repositories import KeyChange
from tenancy.rights.key_limits import key_limits
from tests.gateway.endpoints.test_files import folder_of, foreign_key
from tests.gateway.stack import Stack, quick_timeouts, running_stack

ENDPOINT: Final = "/v1/chat/completions"
SAID = "The quick brown fox."


def chat_line(custom_id: str, text: str = "Say it.", **more: Any) -> dict[str, Any]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 30, **more}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def jsonl(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


async def order(client: Any, content: bytes, endpoint: str = "/v1/chat/completions", **more: Any) -> Any:
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    return await client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)


async def until_ended(client: Any, batch_id: str, seconds: float = 60) -> Any:
    for _ in range(int(seconds / 0.05)):
        batch = await client.batches.retrieve(batch_id)
        if batch.status in ("completed", "failed", "expired", "cancelled"):
            return batch
        await asyncio.sleep(0.05)
    raise AssertionError(f"it is still {batch.status}: {batch.request_counts}")


async def until_progress(client: Any, batch_id: str, completed: int) -> None:
    for _ in range(1200):
        if (await client.batches.retrieve(batch_id)).request_counts.completed >= completed:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("no line is completed")


async def results(client: Any, file_id: str) -> dict[str, Any]:
    content = await client.files.content(file_id)
    lines = [json.loads(line) for line in content.text.splitlines()]
    by_id = {line["custom_id"]: line for line in lines}
    assert len(by_id) == len(lines), "no line is there twice"
    return by_id


async def test_a_batch_is_run_and_read(stack: Stack) -> None:
    stack.say(SAID)
    async with stack.openai() as client:
        batch = await order(client, jsonl(*(chat_line(f"line-{n}") for n in range(20))), metadata={"night": "1"})
        assert (batch.status, batch.object, batch.completion_window) == ("validating", "batch", "24h")
        ended = await until_ended(client, batch.id)
        assert (ended.status, ended.errors, ended.error_file_id) == ("completed", None, None)
        counts = ended.request_counts
        assert (counts.total, counts.completed, counts.failed, ended.metadata) == (20, 20, 0, {"night": "1"})
        found = await results(client, ended.output_file_id)
        assert set(found) == {f"line-{n}" for n in range(20)}
        for line in found.values():
            assert (line["response"]["status_code"], line["error"]) == (200, None)
            assert line["response"]["body"]["choices"][0]["message"]["content"] == SAID
            assert line["response"]["body"]["service_tier"] == "flex"
        usage = [line["response"]["body"]["usage"] for line in found.values()]
        assert ended.usage.input_tokens == sum(one["prompt_tokens"] for one in usage)
        assert ended.usage.output_tokens == sum(one["completion_tokens"] for one in usage) > 0
        assert [one.id async for one in client.batches.list()] == [batch.id]
    events = await stack.settled(20)
    assert {event.lane for event in events} == {"batch"}
    assert {f"req_{event.id.hex() if isinstance(event.id, bytes) else event.id.hex}" for event in events} == {
        line["response"]["request_id"] for line in found.values()
    }


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"prompt": "Once", "max_tokens": 30}),
        ("/v1/responses", {"input": "Say it.", "max_output_tokens": 30}),
    ],
)
async def test_other_endpoints_are_asked(stack: Stack, endpoint: str, body: dict[str, Any]) -> None:
    stack.say(SAID)
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": {"model": "tiny", **body}}
    async with stack.openai() as client:
        ended = await until_ended(client, (await order(client, jsonl(line), endpoint)).id)
        assert (ended.status, ended.request_counts.completed, ended.errors) == ("completed", 1, None)
        found = await results(client, ended.output_file_id)
        assert SAID in json.dumps(found["a"])
        assert ended.usage.output_tokens > 0
    await stack.settled(1)


async def test_a_failed_line_is_in_the_error_file_with_its_answer(stack: Stack) -> None:
    stack.say(SAID)
    async with stack.openai() as client:
        lines = (chat_line("good"), chat_line("bad", temperature=77), chat_line("none", model="no-such-model"))
        ended = await until_ended(client, (await order(client, jsonl(*lines))).id)
        counts = ended.request_counts
        assert (ended.status, counts.total, counts.completed, counts.failed) == ("completed", 3, 1, 2)
        assert set(await results(client, ended.output_file_id)) == {"good"}
        failed = await results(client, ended.error_file_id)
        assert set(failed) == {"bad", "none"}
        assert [failed[name]["response"]["status_code"] for name in ("bad", "none")] == [400, 404]
        assert failed["bad"]["response"]["body"]["error"]["param"] == "temperature"
        assert failed["bad"]["error"] is None
    await stack.settled(1)


@pytest.mark.parametrize(
    ("content", "code", "line"),
    [
        (b"", "empty_file", None),
        (b"\n \r\n\n", "empty_file", None),
        (jsonl(chat_line("a"), chat_line("b"), chat_line("a")), "duplicate_custom_id", 3),
        (jsonl(chat_line("a")) + b"{nonsense}\n", "invalid_json_line", 2),
        (jsonl(chat_line("a")) + b'{"custom_id": "b\xff"}\n', "invalid_json_line", 2),
        (jsonl(chat_line("a")).replace(b"tiny", b"ti\0y"), "invalid_json_line", 1),
        (jsonl({"method": "POST"}), "invalid_line", 1),
        (jsonl(chat_line("")), "invalid_custom_id", 1),
        (jsonl(chat_line("x" * 513)), "invalid_custom_id", 1),
        (jsonl(chat_line("a") | {"method": "GET"}), "invalid_method", 1),
        (jsonl(chat_line("a") | {"url": "/v1/responses"}), "mismatched_endpoint", 1),
        (jsonl(chat_line("a") | {"url": "/admin/v1/tenants"}), "mismatched_endpoint", 1),
        (jsonl(chat_line("a", stream=True)), "invalid_request", 1),
        (jsonl(chat_line("a") | {"body": []}), "invalid_request", 1),
        (jsonl(chat_line("a") | {"body": {}}), "invalid_request", 1),
        (jsonl(*(chat_line(str(n)) for n in range(200))).replace(b"POST", b"PUT"), "invalid_method", 1),
    ],
)
async def test_a_wrong_input_fails_the_batch_and_says_where(
    stack: Stack, content: bytes, code: str, line: int | None
) -> None:
    async with stack.openai() as client:
        ended = await until_ended(client, (await order(client, content)).id)
        assert (ended.status, ended.output_file_id, ended.error_file_id) == ("failed", None, None)
        assert (ended.errors.data[0].code, ended.errors.data[0].line) == (code, line)
        assert len(ended.errors.data) <= 100
        assert ended.request_counts.total == 0
        assert ended.failed_at is not None
    assert await stack.events() == []


async def test_several_prompts_are_no_line(stack: Stack) -> None:
    line = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/completions",
        "body": {"model": "tiny", "prompt": ["a", "b"]},
    }
    async with stack.openai() as client:
        ended = await until_ended(client, (await order(client, jsonl(line), "/v1/completions")).id)
        assert (ended.status, ended.errors.data[0].param) == ("failed", "body.prompt")


async def test_a_bom_crlf_and_a_missing_line_break_are_understood(stack: Stack) -> None:
    stack.say(SAID)
    content = b"\xef\xbb\xbf" + jsonl(chat_line("a"), chat_line("ü \\ \u2028")).replace(b"\n", b"\r\n")
    content += b"\r\n" + jsonl(chat_line("c")).rstrip(b"\n")
    async with stack.openai() as client:
        ended = await until_ended(client, (await order(client, content)).id)
        assert (ended.status, ended.request_counts.completed, ended.errors) == ("completed", 3, None)
        content_ = (await client.files.content(ended.output_file_id)).content
        found = {json.loads(line)["custom_id"] for line in content_.split(b"\n") if line}
        assert found == {"a", "ü \\ \u2028", "c"}


async def test_a_foreign_tenant_sees_no_batch(stack: Stack) -> None:
    stack.say(SAID)
    async with stack.openai() as client, stack.openai(await foreign_key(stack)) as foreign:
        batch = await order(client, jsonl(chat_line("a")))
        for asked in (foreign.batches.retrieve, foreign.batches.cancel):
            with pytest.raises(NotFoundError):
                await asked(batch.id)
        assert [one async for one in foreign.batches.list()] == []
        ended = await until_ended(client, batch.id)
        for asked in (foreign.files.retrieve, foreign.files.content, foreign.files.delete):
            with pytest.raises(NotFoundError):
                await asked(ended.output_file_id)
        assert set(await results(client, ended.output_file_id)) == {"a"}


async def test_an_order_is_checked(stack: Stack) -> None:
    async with stack.openai() as client:
        file = await client.files.create(file=("a", jsonl(chat_line("a"))), purpose="batch")
        other = await client.files.create(file=("a", jsonl(chat_line("a"))), purpose="user_data")
        asked: dict[str, Any] = {"input_file_id": file.id, "endpoint": "/v1/responses", "completion_window": "24h"}
        for wrong, field in (
            ({"endpoint": "/v1/embeddings"}, "endpoint"),
            ({"completion_window": "48h"}, "completion_window"),
            ({"input_file_id": other.id}, "input_file_id"),
            ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
            ({"output_expires_after": {"anchor": "created_at", "seconds": 3}}, "output_expires_after"),
        ):
            with pytest.raises(BadRequestError) as refused:
                await client.batches.create(**(asked | wrong))
            assert field in str(refused.value.param)
        with pytest.raises(NotFoundError):
            await client.batches.create(**(asked | {"input_file_id": "file_" + "0" * 32}))
    assert await stack.rows("SELECT 1 FROM batch") == []


async def test_a_project_that_keeps_nothing_orders_no_batch(stack: Stack) -> None:
    async with stack.openai() as client:
        file = await client.files.create(file=("a", jsonl(chat_line("a"))), purpose="batch")
        await stack.gateway.response_keeper.policies.set(stack.tenant.id, stack.project.id, retention_s=0)
        with pytest.raises(PermissionDeniedError) as refused:
            await client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
        assert refused.value.code == "content_not_kept"
    assert await stack.rows("SELECT 1 FROM batch") == []


async def test_a_project_without_room_for_results_orders_no_batch(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    """Results of lines that fail cost nothing, and one input may be ordered again and again."""
    content = jsonl(*(chat_line(f"{n}", temperature=77) for n in range(20)))
    options = GatewayOptions(timeouts=quick_timeouts(), file_quota=len(content) + 1000)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack:
        client = stack.openai()
        async with client:
            first = await until_ended(client, (await order(client, content)).id)
            assert (first.status, first.request_counts.failed) == ("completed", 20)
            with pytest.raises(BadRequestError) as refused:
                await client.batches.create(
                    input_file_id=first.input_file_id, endpoint=ENDPOINT, completion_window="24h"
                )
            assert refused.value.code == "storage_exceeded"
            await client.files.delete(first.error_file_id)
            await client.batches.create(input_file_id=first.input_file_id, endpoint=ENDPOINT, completion_window="24h")


async def test_a_cancelled_batch_says_which_lines_were_not_run(stack: Stack) -> None:
    stack.say(SAID, queued=0.5)
    async with stack.openai() as client:
        batch = await order(client, jsonl(*(chat_line(f"{n}") for n in range(150))))
        await until_progress(client, batch.id, 1)
        with pytest.raises(ConflictError):
            await client.files.delete(batch.input_file_id)
        asked = await client.batches.cancel(batch.id)
        assert asked.status in ("cancelling", "cancelled")
        assert (await client.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
        ended = await until_ended(client, batch.id)
        assert (ended.status, ended.cancelled_at is not None) == ("cancelled", True)
        well, left = await results(client, ended.output_file_id), await results(client, ended.error_file_id)
        assert well.keys().isdisjoint(left)
        assert {*well, *left} == {f"{n}" for n in range(150)}
        assert {line["error"]["code"] for line in left.values()} == {"batch_cancelled"}
        assert ended.request_counts.completed == len(well) < 150
        await client.batches.cancel(batch.id)
        await client.files.delete(batch.input_file_id)
    await stack.settled(len(well))


async def test_an_order_that_is_sent_again_with_its_key_is_one_batch(stack: Stack) -> None:
    stack.say(SAID)
    async with stack.openai() as client:
        file = await client.files.create(file=("in.jsonl", jsonl(chat_line("a"))), purpose="batch")
        asks: Any = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        key = {"Idempotency-Key": "one"}
        first, again = [await client.batches.create(**asks, extra_headers=key) for _ in range(2)]
        assert first == again
        await until_ended(client, first.id)
        assert [one.id for one in (await client.batches.list()).data] == [first.id]
        other = await client.batches.create(**asks, extra_headers={"Idempotency-Key": "two"})
        assert other.id != first.id
        await until_ended(client, other.id)
    await stack.settled(2)


async def test_a_finished_batch_is_not_cancelled(stack: Stack) -> None:
    stack.say(SAID)
    async with stack.openai() as client:
        ended = await until_ended(client, (await order(client, jsonl(chat_line("a")))).id)
        with pytest.raises(ConflictError):
            await client.batches.cancel(ended.id)


async def test_an_expired_batch_keeps_what_it_has(stack: Stack) -> None:
    stack.say(SAID, queued=2.0)
    async with stack.openai() as client:
        batch = await order(client, jsonl(*(chat_line(f"{n}") for n in range(200))))
        await until_progress(client, batch.id, 1)
        assert stack.gateway.batches is not None
        await stack.gateway.batches.stop()  # the next run looks when the batch ends
        async with stack.database.transaction() as session:
            await session.execute(text("UPDATE batch SET expires_at = 1, beat_at = 0"))
        ended = await until_ended(client, batch.id)
        assert (ended.status, ended.expired_at is not None) == ("expired", True)
        well, left = await results(client, ended.output_file_id), await results(client, ended.error_file_id)
        assert {*well, *left} == {f"{n}" for n in range(200)}
        assert {line["error"]["code"] for line in left.values()} == {"batch_expired"}
        assert ended.request_counts.completed == len(well) > 0


async def test_an_input_is_kept_while_its_batch_may_run(stack: Stack) -> None:
    """A batch whose input has expired would fail, and drop what was paid for."""
    async with stack.openai() as client:
        expiry: Any = {"anchor": "created_at", "seconds": 3600}
        file = await client.files.create(file=("a", jsonl(chat_line("a"))), purpose="batch", expires_after=expiry)
        batch = await client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
        kept = (await client.files.retrieve(file.id)).expires_at or 0
        assert kept > (batch.expires_at or 0) > (file.expires_at or 0) > 0


async def test_a_line_waits_for_money(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> None:
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder) as stack:
        stack.say(SAID)
        tenant = await stack.tenancy.create_tenant("poor")
        project = await stack.tenancy.create_project(tenant.id, "default")
        key = (await stack.tenancy.create_key(tenant.id, project.id)).key
        client = stack.openai(key)
        async with client:
            batch = await order(client, jsonl(chat_line("a"), chat_line("b")))
            while not await stack.rows("SELECT 1 FROM batch_line WHERE attempt >= 2"):  # noqa: ASYNC110  # a row
                await asyncio.sleep(0.05)
            assert (await client.batches.retrieve(batch.id)).status == "in_progress"
            await stack.balances.grant(tenant.id, 10**15, "USD")
            ended = await until_ended(client, batch.id)
            assert (ended.status, ended.request_counts.completed) == ("completed", 2)
        events = await stack.events()
        assert len(events) == 2


async def test_batches_without_money_keep_nobody_waiting(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tenants without money order more batches than a gateway runs, or looks at, at once."""
    monkeypatch.setattr("gateway.batches.line_pace._STALLED_S", 1.0)
    monkeypatch.setattr("gateway.batches.runner._LOOKED_AT", 10)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder) as stack:
        stack.say(SAID)
        for name in ("poor", "hostile"):
            tenant = await stack.tenancy.create_tenant(name)
            project = await stack.tenancy.create_project(tenant.id, "default")
            client = stack.openai((await stack.tenancy.create_key(tenant.id, project.id)).key)
            async with client:
                file = await client.files.create(file=("a", jsonl(chat_line("a"))), purpose="batch")
                for _ in range(6):
                    await client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
        client = stack.openai()
        async with client:
            ended = await until_ended(client, (await order(client, jsonl(chat_line("a")))).id, seconds=20)
            assert ended.status == "completed"


async def test_a_batch_without_money_does_not_try_all_its_lines(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder) as stack:
        tenant = await stack.tenancy.create_tenant("poor")
        project = await stack.tenancy.create_project(tenant.id, "default")
        client = stack.openai((await stack.tenancy.create_key(tenant.id, project.id)).key)
        async with client:
            await order(client, jsonl(*(chat_line(f"{n}") for n in range(500))))
            while not await stack.rows("SELECT 1 FROM batch_line WHERE attempt >= 1"):  # noqa: ASYNC110  # a row
                await asyncio.sleep(0.05)
            await asyncio.sleep(8.0)
            assert len(await stack.rows("SELECT 1 FROM batch_line WHERE attempt >= 1")) <= 130


@asynccontextmanager
async def other_key_of(stack: Stack) -> AsyncIterator[Any]:
    """A client with another key of the project."""
    async with stack.openai((await stack.tenancy.create_key(stack.tenant.id, stack.project.id)).key) as client:
        yield client


async def begun_batch(stack: Stack) -> Any:
    """A batch of the stack's key of which some lines are answered."""
    stack.say(SAID, queued=0.3)
    async with stack.openai() as client:
        batch = await order(client, jsonl(*(chat_line(f"{n}") for n in range(150))))
        await until_progress(client, batch.id, 1)
    return batch


@pytest.mark.parametrize("before", [True, False])
async def test_a_leaked_key_stops_its_batch(stack: Stack, *, before: bool) -> None:
    """Also when it turns out to be leaked after it was revoked."""
    batch = await begun_batch(stack)
    async with other_key_of(stack) as client:
        if before:
            await stack.tenancy.revoke(stack.public_id, stack.tenant.id)
        await stack.tenancy.revoke(stack.public_id, stack.tenant.id, leaked=True)
        ended = await until_ended(client, batch.id)
        assert (ended.status, ended.errors.data[0].code) == ("cancelled", "api_key_leaked")
        well, left = await results(client, ended.output_file_id), await results(client, ended.error_file_id)
        assert {*well, *left} == {f"{n}" for n in range(150)}
        assert left


async def test_a_batch_of_a_revoked_key_goes_on_and_says_so(stack: Stack) -> None:
    batch = await begun_batch(stack)
    async with other_key_of(stack) as client:
        await stack.tenancy.revoke(stack.public_id, stack.tenant.id)
        ended = await until_ended(client, batch.id)
        assert (ended.status, ended.request_counts.completed) == ("completed", 150)
        assert [one.code for one in ended.errors.data] == ["api_key_revoked"]


async def test_lines_ask_with_what_the_key_may_do_then(stack: Stack) -> None:
    batch = await begun_batch(stack)
    async with other_key_of(stack) as client:
        change = KeyChange(limits=key_limits(scopes=["models.read"]))
        await stack.tenancy.change_key(stack.public_id, change, stack.tenant.id)
        ended = await until_ended(client, batch.id)
        assert (ended.status, ended.errors) == ("completed", None)
        well, refused = await results(client, ended.output_file_id), await results(client, ended.error_file_id)
        assert {*well, *refused} == {f"{n}" for n in range(150)}
        assert {line["response"]["status_code"] for line in refused.values()} == {403}


async def test_lines_ask_for_what_the_key_may_ask_for_then(stack: Stack) -> None:
    batch = await begun_batch(stack)
    async with other_key_of(stack) as client:
        change = KeyChange(limits=key_limits(models=["another"]))
        await stack.tenancy.change_key(stack.public_id, change, stack.tenant.id)
        ended = await until_ended(client, batch.id)
        refused = await results(client, ended.error_file_id)
        assert {line["response"]["body"]["error"]["code"] for line in refused.values()} == {"model_not_allowed"}


async def test_a_batch_stops_when_its_project_keeps_nothing_any_more(stack: Stack) -> None:
    batch = await begun_batch(stack)
    await stack.gateway.response_keeper.policies.set(stack.tenant.id, stack.project.id, retention_s=0)
    async with stack.openai() as client:
        ended = await until_ended(client, batch.id)
        assert (ended.status, ended.errors.data[0].code) == ("cancelled", "content_not_kept")
        well, left = await results(client, ended.output_file_id), await results(client, ended.error_file_id)
        assert {*well, *left} == {f"{n}" for n in range(150)}
        assert left
    await stack.settled(len(well))


async def test_the_end_is_told_by_a_webhook(stack: Stack) -> None:
    stack.say(SAID)
    async with stack.openai() as client:
        ended = await until_ended(client, (await order(client, jsonl(chat_line("a")))).id)
    (message,) = await stack.rows("SELECT topic, payload FROM outbox WHERE topic LIKE 'batch.%'")
    said = json.loads(message.payload)
    assert (message.topic, said["id"], said["request_counts"]["completed"]) == ("batch.completed", ended.id, 1)


# ------------------------------------------------ workers that end


async def outputs_of(stack: Stack, batch_id: str) -> dict[str, Any]:
    async with stack.openai() as client:
        ended = await until_ended(client, batch_id)
        assert (ended.status, ended.error_file_id) == ("completed", None)
        assert ended.request_counts.completed == ended.request_counts.total
        return await results(client, ended.output_file_id)


async def test_a_worker_that_stops_gives_its_batch_to_another(stack: Stack, tmp_path: Path, model_folder: Path) -> None:
    stack.say(SAID, queued=0.3)
    (tmp_path / "b").mkdir()  # a test may wait
    url, files = f"sqlite:///{stack.database.engine.url.database}", folder_of(stack) / "files"
    async with stack.openai() as client:
        batch = await order(client, jsonl(*(chat_line(f"{n}") for n in range(150))))
        await until_progress(client, batch.id, 1)
    async with running_stack(url, tmp_path / "b", model_folder, name="gateway-b", files=files) as other:
        other.say(SAID)
        stack.server.should_exit = True
        await asyncio.wait([stack.serving], timeout=30)
        found = await outputs_of(other, batch.id)
        assert set(found) == {f"{n}" for n in range(150)}
        assert len(await other.settled(150)) == 150


async def test_lines_of_a_dead_worker_are_billed_once(stack: Stack, tmp_path: Path, model_folder: Path) -> None:
    """The worker falls silent in the middle; usage of some of its lines is settled, their results are lost."""
    stack.say(SAID, queued=0.3)
    (tmp_path / "b").mkdir()  # a test may wait
    url, files = f"sqlite:///{stack.database.engine.url.database}", folder_of(stack) / "files"
    runner = stack.gateway.batches
    assert runner is not None
    async with stack.openai() as client:
        batch = await order(client, jsonl(*(chat_line(f"{n}") for n in range(100))))
        await until_progress(client, batch.id, 1)
    runner._work.worker = "nobody"  # what it writes counts no more, as if it had died before it wrote
    await stack.until(lambda: not runner._runs)
    async with stack.database.transaction() as session:
        await session.execute(text("UPDATE batch SET beat_at = 0"))
    async with running_stack(url, tmp_path / "b", model_folder, name="gateway-b", files=files) as other:
        other.say(SAID)
        found = await outputs_of(other, batch.id)
        assert set(found) == {f"{n}" for n in range(100)}
        assert len(await paid(other, 100)) == 100


async def test_what_was_paid_for_is_answered_though_the_batch_was_cancelled_and_its_worker_died(
    stack: Stack, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b").mkdir()  # a test may wait
    url, files = f"sqlite:///{stack.database.engine.url.database}", folder_of(stack) / "files"
    stack.say(SAID)
    runner = stack.gateway.batches
    assert runner is not None
    monkeypatch.setattr(BatchWork, "write", _never_written)
    async with stack.openai() as client:
        batch = await order(client, jsonl(*(chat_line(f"{n}") for n in range(20))))
        await stack.settled(20)
        await runner.stop()
        monkeypatch.undo()
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
    async with stack.database.transaction() as session:
        await session.execute(text("UPDATE batch SET beat_at = 0"))
    async with running_stack(url, tmp_path / "b", model_folder, name="gateway-b", files=files) as other:
        other.say(SAID)
        client = other.openai(stack.key)
        async with client:
            ended = await until_ended(client, batch.id)
            assert (ended.status, ended.request_counts.completed, ended.error_file_id) == ("cancelled", 20, None)
        assert len(await paid(other, 20)) == 20


async def test_a_worker_whose_beats_are_not_heard_begins_no_line(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one may have the batch: what both begin has two ids, and would be billed twice."""
    monkeypatch.setattr("gateway.batches.batch_run._UNHEARD_S", 1.0)
    stack.say(SAID, queued=0.3)
    async with stack.openai() as client:
        batch = await order(client, jsonl(*(chat_line(f"{n}") for n in range(800))))
        await until_progress(client, batch.id, 1)
    monkeypatch.setattr(BatchWork, "write", _never_written)
    monkeypatch.setattr(BatchWork, "beat", _never_written)
    await asyncio.sleep(3.0)
    billed = len(await stack.events())
    await asyncio.sleep(2.0)
    assert len(await stack.events()) == billed < 800


@pytest.mark.both_databases
async def test_a_line_whose_answer_was_lost_is_answered_again_and_not_billed_again(
    database_url: str, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tmp_path / "files"
    (tmp_path / "b").mkdir()
    async with running_stack(database_url, tmp_path, model_folder, files=files) as stack:
        stack.say(SAID)
        runner = stack.gateway.batches
        assert runner is not None
        monkeypatch.setattr(BatchWork, "write", _never_written)
        client = stack.openai()
        async with client:
            batch = await order(client, jsonl(*(chat_line(f"{n}") for n in range(40))))
            first = {event.id for event in await stack.settled(40)}
        await runner.stop()
        monkeypatch.undo()
        async with stack.database.transaction() as session:
            await session.execute(text("UPDATE batch SET beat_at = 0"))
        async with running_stack(database_url, tmp_path / "b", model_folder, name="gateway-b", files=files) as other:
            other.say(SAID)
            found = await outputs_of(other, batch.id)
            assert set(found) == {f"{n}" for n in range(40)}
            assert await paid(other, 40) == first
            assert len(await other.events()) == 80, "what was run again is an attempt that is billed to nobody"
            assert not await other.rows("SELECT 1 FROM ended_hold")
            wrong = {finding.what for finding in await audit_money(other.database)}
            assert not {what for what in wrong if "hold" in what}


async def paid(stack: Stack, count: int) -> set[Any]:
    """The requests that are billed, once these are so many and no hold is open."""

    async def found() -> set[Any]:
        return {event.id for event in await stack.events() if event.cost_pico}

    end = time.monotonic() + 30
    while len(await found()) < count or "open" in await stack.holds():
        assert time.monotonic() < end, await stack.holds()
        await asyncio.sleep(0.05)
    return await found()


async def _never_written(*_: Any) -> Any:
    await asyncio.Event().wait()
