"""A whole chat request, with the official client against a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.gateway.stack import Stack, running_stack
from tests.gateway.tiny_model import make_model_folder, make_spaced_tokenizer

MESSAGES: Any = [{"role": "user", "content": "What does textwrap.dedent do?"}]


async def test_a_whole_answer(stack: Stack) -> None:
    stack.say("Remove any common leading whitespace.")
    async with stack.openai() as client:
        answer = await client.chat.completions.create(model="tiny", messages=MESSAGES)
    assert answer.choices[0].message.content == "Remove any common leading whitespace."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is None
    assert answer.object == "chat.completion"
    assert answer.model == "tiny"
    assert answer.usage is not None
    run = next(iter(stack.replica.runs.values()))
    assert answer.usage.prompt_tokens == len(run.generate.tokens)
    assert answer.usage.completion_tokens == run.counts.output
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    pico = len(run.generate.tokens) * 400_000 + run.counts.output * 1_600_000
    assert answer.usage.cost == {"currency": "USD", "amount": f"0.{pico:012d}"}  # type: ignore[attr-defined]
    (event,) = await stack.settled(1)
    assert event.cost_pico == pico
    assert (event.status, event.reason, event.delivery, event.source) == ("ok", "stop", "confirmed", "gateway")
    assert event.count_prompt == event.uncached == len(run.generate.tokens)
    await stack.until(lambda: stack.replica.acked)
    assert not stack.replica.journal


async def test_a_streamed_answer(stack: Stack) -> None:
    stack.say("Grüße aus 東京! 👩‍👩‍👧", pause=0.002)
    text, finish, usage, ids = "", None, None, set()
    async with stack.openai() as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            ids.add(chunk.id)
            assert chunk.object == "chat.completion.chunk"
            if chunk.choices:
                assert usage is None
                text += chunk.choices[0].delta.content or ""
                finish = chunk.choices[0].finish_reason or finish
            else:
                usage = chunk.usage
    assert text == "Grüße aus 東京! 👩‍👩‍👧"
    assert "�" not in text
    assert finish == "stop"
    assert usage is not None
    assert usage.completion_tokens == next(iter(stack.replica.runs.values())).counts.output
    assert len(ids) == 1
    await stack.settled(1)


async def test_where_bytes_are_tokens_and_spaces_letters(stocked_sqlite_url: str, tmp_path: Path) -> None:
    """A text that goes on keeps the space that a text of its own would lose, and its tokens make it up."""
    folder = make_model_folder(tmp_path / "tiny")
    (folder / "tokenizer.json").write_text(make_spaced_tokenizer())
    said = "fox says 日本語 日本語日本語"
    async with running_stack(stocked_sqlite_url, tmp_path, folder) as stack:
        stack.say(said, end=False)
        async with stack.openai() as client:
            ask: Any = {"model": "tiny", "prompt": "The quick", "max_tokens": 64}
            plain = await client.completions.create(**ask)
            assert plain.choices[0].text == f" {said}"
            echoed = await client.completions.create(**ask, echo=True)
            assert echoed.choices[0].text == f"The quick {said}"
            stream = await client.completions.create(**ask, stream=True)
            assert "".join([chunk.choices[0].text async for chunk in stream]) == f" {said}"
        await stack.settled(3)


async def test_the_frames_of_a_stream(stack: Stack) -> None:
    stack.say("one two", burst=100)
    answer = await stack.post({"model": "tiny", "messages": MESSAGES, "stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"].startswith("req_")
    *frames, last = answer.text.strip().split("\n\n")
    assert last == "data: [DONE]"
    chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert all("usage" not in chunk for chunk in chunks)
    assert chunks[-1]["choices"][0] == {"delta": {}, "finish_reason": "stop", "index": 0, "logprobs": None}
    await stack.settled(1)


async def test_a_model_says_the_context_that_its_replicas_have(stack: Stack) -> None:
    """A replica may have memory for less than the model could take."""
    stack.replica.context = 100
    stack.replica.drop()
    await stack.until(lambda: stack.gateway.services.fleet.context_tokens("tiny") == 100)
    headers = {"authorization": f"Bearer {stack.key}"}
    (listed,) = (await stack.http.get("/v1/models", headers=headers)).json()["data"]
    assert listed == (await stack.http.get("/v1/models/tiny", headers=headers)).json()
    assert listed["context_tokens"] == 100
