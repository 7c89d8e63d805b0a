"""Answers of many log probabilities: bounded before any work, made once of what choices share, and beside the event
loop."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from gateway.dialects.openai import completions_response
from gateway.dialects.openai.chat_response import ChatWriter
from gateway.dialects.openai.completions_response import TextWriter
from gateway.endpoints.generation_response import MOST_SCORES
from gateway.errors import RateLimited
from protocol.requests import MOST_CHOICES
from tests.gateway.endpoints.test_responses import sent
from tests.gateway.stack import Stack, running_stack
from tests.gateway.tiny_model import make_model_folder

CONTEXT = 4096
MOST_TOKENS = MOST_SCORES // (MOST_CHOICES * 21)
USER = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def long_stack(stocked_sqlite_url: str, tmp_path: Path) -> AsyncIterator[Stack]:
    folder = make_model_folder(tmp_path / "tiny", context=CONTEXT)
    async with running_stack(stocked_sqlite_url, tmp_path, folder, context=CONTEXT) as running:
        yield running


async def complete(stack: Stack, **body: Any) -> Any:
    headers = {"authorization": f"Bearer {stack.key}"}
    return await stack.http.post("/v1/completions", json={"model": "tiny", **body}, headers=headers)


def noting_threads(monkeypatch: pytest.MonkeyPatch, of: Any, name: str) -> list[threading.Thread]:
    """The threads in which a method runs."""
    threads: list[threading.Thread] = []
    method = getattr(of, name)

    def noted(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return method(*args)

    monkeypatch.setattr(of, name, noted)
    return threads


async def test_what_could_be_too_large_is_refused_before_any_work(long_stack: Stack) -> None:
    stack = long_stack
    stack.say("x")
    echo = {"echo": True, "n": MOST_CHOICES, "max_tokens": 1}
    answer = await complete(stack, prompt=[300] * (MOST_TOKENS + 1), logprobs=20, **echo)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "echo")
    assert str(MOST_SCORES) in answer.json()["error"]["message"]
    several = await complete(stack, prompt=[[300] * 2000] * 64, logprobs=20, echo=True, n=2)
    assert (several.status_code, several.json()["error"]["param"]) == (400, "echo")
    many = {"model": "tiny", "messages": USER, "n": MOST_CHOICES, "logprobs": True, "top_logprobs": 20}
    answer = await stack.post({**many, "max_completion_tokens": MOST_TOKENS + 1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_completion_tokens")
    assert not stack.replica.runs
    await stack.settled(0)


async def test_what_may_be_as_large_is_answered(long_stack: Stack) -> None:
    stack = long_stack
    stack.say("x")
    many = {"model": "tiny", "messages": USER, "n": MOST_CHOICES, "logprobs": True, "top_logprobs": 20}
    assert (await stack.post({**many, "max_tokens": MOST_TOKENS})).status_code == 200
    assert (await stack.post(many)).status_code == 200, "without a limit it is shortened"
    assert sent(stack).sampling.max_tokens == MOST_TOKENS
    assert (await stack.post({**many, "logprobs": False, "top_logprobs": 0, "max_tokens": 4000})).status_code == 200
    assert (await complete(stack, prompt=[300] * 4000, echo=True, max_tokens=1, logprobs=20)).status_code == 200


async def test_a_prompt_that_is_scored_is_believed_to_read_nothing(long_stack: Stack) -> None:
    """Its replica computes all of it: that is no sign that the replica forgets what others have there."""
    stack = long_stack
    stack.say("x")
    await complete(stack, prompt=[300] * 3000, max_tokens=1)
    route = sent(stack).route
    assert route is not None
    assert route.names
    assert (await complete(stack, prompt=[300] * 3000, echo=True, max_tokens=1, logprobs=1)).status_code == 200
    scored = sent(stack).route
    assert scored is not None
    assert (scored.names, scored.expected) == (b"", 3000)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echoed_prompt_is_read_once_for_all_choices(
    *, stream: bool, long_stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, tokens, choices = long_stack, (long_stack.tokens("Grüße aus Köln! 東京", end=False) * 100)[:1000], 8
    script = stack.say("The quick brown fox", burst=100, likeliest=3)
    scored = []
    text_logprobs = completions_response.text_logprobs

    def counting(scores: Any, *args: Any) -> Any:
        scored.append(len(scores))
        return text_logprobs(scores, *args)

    monkeypatch.setattr(completions_response, "text_logprobs", counting)
    threads = noting_threads(monkeypatch, TextWriter, "events" if stream else "whole")
    answer = await complete(stack, prompt=tokens, echo=True, n=choices, logprobs=3, max_tokens=50, stream=stream)
    assert answer.status_code == 200
    if stream:
        frames = [json.loads(line[6:]) for line in answer.text.split("\n\n")[:-2]]
        told = [choice for frame in frames for choice in frame["choices"]]
    else:
        told = answer.json()["choices"]
    assert sum(scored) <= len(tokens) + len(script.tokens), "more than once each"
    tokenizer = next(iter(stack.models)).tokenizer
    prompt_text = tokenizer.decode(tokens)
    values = [None, *[-1.5 - at for at in range(len(tokens) - 1)]]
    for number in range(choices):
        own = [choice for choice in told if choice["index"] == number]
        text = "".join(choice["text"] for choice in own)
        assert text == prompt_text + ("The quick brown fox" if number == 0 else "")
        parts = [choice["logprobs"] for choice in own if choice["logprobs"]]
        lists = {name: list(chain.from_iterable(part[name] for part in parts)) for name in parts[0]}
        generated = len(script.tokens) - 1 if number == 0 else 0
        assert {name: len(values) for name, values in lists.items()} == dict.fromkeys(lists, len(tokens) + generated)
        assert lists["token_logprobs"][: len(tokens)] == values
        assert lists["top_logprobs"][0] is None
        assert all(at[name] == value for at, name, value in list(
            zip(lists["top_logprobs"], lists["tokens"], lists["token_logprobs"], strict=True))[1:])  # fmt: skip
        assert all(text[offset:].startswith(name) for offset, name in zip(lists["text_offset"], lists["tokens"],
                   strict=True) if not name.startswith("bytes:"))  # fmt: skip
    assert threads
    if stream:
        assert threading.main_thread() not in threads[: choices - 1]
    else:
        assert threading.main_thread() not in threads
    await stack.settled(1)


async def test_a_large_answer_waits_for_a_thread(long_stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was paid for: that others of its tenant wait is no reason to refuse it."""
    stack, run, refused = long_stack, long_stack.gateway.threads.run, []
    threads = noting_threads(monkeypatch, ChatWriter, "whole")

    async def busy(*args: Any) -> Any:
        if len(refused) < 2:
            refused.append(args)
            raise RateLimited("busy")
        return await run(*args)

    monkeypatch.setattr(stack.gateway.threads, "run", busy)
    script = stack.say("The quick brown fox " * 100, burst=100, likeliest=20)
    answer = await stack.post({"model": "tiny", "messages": USER, "logprobs": True, "top_logprobs": 20})
    content = answer.json()["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in content[:3]] == [-1.5, -2.5, -3.5]
    assert (len(content), len(content[0]["top_logprobs"])) == (len(script.tokens) - 1, 20)
    assert len(refused) == 2
    assert threads
    assert threading.main_thread() not in threads
    await stack.settled(1)
