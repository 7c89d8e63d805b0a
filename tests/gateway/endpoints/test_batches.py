"""OpenAI's batches, as its own client orders, polls and reads them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.gateway.stack import Stack

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
