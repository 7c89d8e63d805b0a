"""Several prompts in one request: they are held, answered and billed together, or none of what was not given is."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.generation.answer_parts import AnswerParts
from protocol.requests import Generate
from tests.gateway.fake_replica import Script
from tests.gateway.stack import Stack, running_stack

FIRST, SECOND, THIRD, LONG = [5] * 10, [6] * 12, [7] * 14, [8] * 300
UNCACHED, OUTPUT = 400_000, 1_600_000
MOST = 100
ENDLESS: dict[str, Any] = {"tokens": [65] * MOST, "pause": 0.05}


def body(*prompts: list[int], stream: bool = False) -> dict[str, Any]:
    return {"model": "tiny", "prompt": list(prompts), "max_tokens": MOST, "stream": stream}


def scripts(stack: Stack, *of: Script) -> None:
    """What the replica does with the first prompt, the second one …"""
    by_prompt = dict(zip((FIRST[0], SECOND[0], THIRD[0]), of, strict=False))

    def choose(generate: Generate) -> Script:
        return by_prompt[generate.tokens[0]]

    stack.replica.script = choose


async def post(stack: Stack, asked: dict[str, Any]) -> Any:
    return await stack.http.post("/v1/completions", json=asked, headers={"authorization": f"Bearer {stack.key}"})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", [(FIRST, LONG), (LONG, FIRST)])
async def test_money_for_one_prompt_of_two(
    fresh_sqlite_url: str, tmp_path: Path, model_folder: Path, stream: bool, prompts: tuple[list[int], list[int]]
) -> None:
    """Nothing is computed or billed, whichever of them comes first."""
    grant = (len(FIRST) // 2 + len(LONG)) * UNCACHED + MOST * OUTPUT
    async with running_stack(fresh_sqlite_url, tmp_path, model_folder, grant=grant) as stack:
        stack.say("Hi")
        answer = await post(stack, body(*prompts, stream=stream))
        assert answer.status_code == 402
        await stack.until(lambda: not len(stack.gateway.requests))
        assert await stack.settled(0) == []
        assert not stack.replica.runs
        assert (await post(stack, body(LONG))).status_code == 200
        await stack.settled(1)


@pytest.mark.parametrize("order", ["before", "after"])
async def test_our_failure_of_one_prompt_bills_none(stack: Stack, order: str) -> None:
    """Neither one that was through, nor one that still ran; whether the failed one ended before or after the first."""
    early, late = (0.0, 0.3) if order == "after" else (0.3, 0.0)
    scripts(
        stack,
        Script(tokens=stack.tokens("one"), prefill=early),
        Script(tokens=[], prefill=late, reason="error"),
        Script(**ENDLESS),
    )
    answer = await post(stack, body(FIRST, SECOND, THIRD))
    assert answer.status_code == 500
    events = await stack.settled(3)
    assert [(event.status, event.cost_pico) for event in events] == [("failed", 0)] * 3
    first = "stop" if order == "after" else "abort"
    reasons = {event.count_prompt: event.reason for event in events}
    assert reasons == {len(FIRST): first, len(SECOND): "error", len(THIRD): "abort"}
    assert not stack.replica.journal, "the replica was told that all of it is known"


@pytest.mark.parametrize("how", ["left", "suspended"])
async def test_who_ends_while_one_prompt_waits_for_the_others_money(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """All holds are given back, also that of the one that was held first."""
    admission = stack.gateway.admission
    reserve = admission.reserve

    async def slow(prepared: Any, overdue: Any) -> Any:
        held = await reserve(prepared, overdue)
        if prepared.prompt.tokens == SECOND:
            await asyncio.sleep(0.3)
        return held

    monkeypatch.setattr(admission, "reserve", slow)
    stack.say("Hi")
    asking = asyncio.create_task(post(stack, body(FIRST, SECOND)))
    await stack.until(lambda: len(stack.gateway.requests) == 2)
    await asyncio.sleep(0.1)
    if how == "left":
        asking.cancel()
    else:
        stack.gateway.requests.end_all_of(stack.tenant.id, None)
        assert (await asking).status_code == 403
    await stack.until(lambda: not len(stack.gateway.requests))
    assert await stack.settled(0) == []
    assert not stack.replica.runs


async def test_of_a_stream_what_came_is_billed(stack: Stack) -> None:
    """The first prompt was answered, the second failed, and nobody will hear of the third."""
    scripts(
        stack,
        Script(tokens=stack.tokens("one"), prefill=0.1),
        Script(tokens=[], reason="error"),
        Script(**ENDLESS),
    )
    answer = await post(stack, body(FIRST, SECOND, THIRD, stream=True))
    frames = [frame.removeprefix("data: ") for frame in answer.text.strip().split("\n\n")]
    chunks = [json.loads(frame) for frame in frames if frame.startswith("{")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk.get("choices")) == "one"
    assert "error" in chunks[-1]
    billed = {event.count_prompt: event for event in await stack.settled(3)}
    first = billed.pop(len(FIRST))
    assert (first.status, first.output) == ("ok", len(stack.tokens("one")))
    assert first.cost_pico == len(FIRST) * UNCACHED + first.output * OUTPUT
    assert [(event.status, event.cost_pico) for event in billed.values()] == [("failed", 0)] * 2


async def test_who_leaves_before_all_is_there_pays_for_the_prompts(stack: Stack) -> None:
    """As with one prompt: nothing was delivered, although the first one was through."""
    scripts(stack, Script(tokens=stack.tokens("one")), Script(**ENDLESS))
    leaving = asyncio.create_task(post(stack, body(FIRST, SECOND)))
    await stack.until(lambda: len(stack.replica.done) == 1 and len(stack.replica.runs) == 2)
    await asyncio.sleep(0.05)
    leaving.cancel()
    events = await stack.settled(2)
    assert {(event.status, event.output, event.uncached) for event in events} == {
        ("cancelled", 0, len(FIRST)),
        ("cancelled", 0, len(SECOND)),
    }


async def test_all_prompts_are_billed_as_the_answer_says(stack: Stack) -> None:
    scripts(stack, *(Script(tokens=stack.tokens(word)) for word in ("one", "two", "three")))
    answer = await post(stack, body(FIRST, SECOND, THIRD))
    assert [choice["text"] for choice in answer.json()["choices"]] == ["one", "two", "three"]
    events = await stack.settled(3)
    usage = answer.json()["usage"]
    assert usage["prompt_tokens"] == sum(event.uncached for event in events) == 36
    assert usage["completion_tokens"] == sum(event.output for event in events)
    assert usage["cost"]["amount"] == f"0.{sum(event.cost_pico for event in events):012d}"


class _Part:
    ended_badly = False


async def test_a_part_that_ends_alone_does_not_wait() -> None:
    """Whoever is woken looks at how it stands itself."""
    parts, one = AnswerParts(2), _Part()
    parts.join(one)  # type: ignore[arg-type]
    waiting = asyncio.create_task(parts.admitted(one))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    parts.wake()
    await asyncio.sleep(0)
    assert not waiting.done()
    one.ended_badly = True
    parts.wake()
    await asyncio.wait_for(waiting, 5)
