"""What a conversation costs to read grows with its items, and what is many items is read outside the event loop."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import Any

import pytest

from gateway.conversation.chat_template import ChatTemplate
from gateway.dialects.anthropic import messages_request
from gateway.dialects.openai import chat_request
from gateway.dialects.openai.responses import request as responses_request
from gateway.errors import InvalidRequest
from gateway.generation_request import Text, ToolCall, Turn
from tests.gateway.stack import Stack
from tests.gateway.tiny_model import TEMPLATE

MANY = 7_500
"""As many calls, and as many items beside them, as a body may have."""
MOST_S = 0.6
"""Processor seconds; what is quadratic takes 1.2 and more."""


def response_items(many: int) -> list[dict[str, Any]]:
    calls = [{"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"} for n in range(many)]
    return [*calls, *[{"role": "assistant", "content": "x"}] * many]


def responses() -> None:
    asked = responses_request.decode_request(json.dumps({"model": "m", "input": response_items(MANY)}).encode())
    responses_request.generation_of(asked)


def chat() -> None:
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": "f"}} for n in range(MANY // 10)]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "x"} for call in reversed(calls)]
    answers = [{"role": "assistant", "content": "x"}] * MANY
    said = [{"role": "assistant", "tool_calls": calls}, *results, *answers]
    chat_request.parse(json.dumps({"model": "m", "messages": said}).encode())


def messages() -> None:
    calls = [{"type": "tool_use", "id": f"c{n}", "name": "f", "input": {}} for n in range(MANY)]
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "x"} for call in reversed(calls)]
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": calls},
            {"role": "user", "content": results}]  # fmt: skip
    messages_request.parse(json.dumps({"model": "m", "max_tokens": 1, "messages": said}).encode())


def results_as_texts() -> None:
    calls = tuple(ToolCall("{}", "$", id=f"c{n}", name="f") for n in range(MANY))
    results = [Turn("tool", (Text("x" * 900, "$", "tool_result"),), call.id, "f") for call in calls]
    ChatTemplate(TEMPLATE, {}, frozenset()).render(
        [Turn("user", (Text("hi", "$"),)), Turn("assistant", calls), *results]
    )


@pytest.mark.parametrize("read", [responses, chat, messages, results_as_texts])
def test_the_cost_of_reading_grows_with_the_items(read: Any) -> None:
    began = time.process_time()
    with contextlib.suppress(InvalidRequest):  # what is refused was read before
        read()
    assert time.process_time() - began < MOST_S


async def test_many_small_items_are_read_outside_the_event_loop(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealed reasoning is read after the body: there the items are counted again, and each of them costs something."""
    threads = []
    generation_of = responses_request.generation_of

    def noted(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread())
        return generation_of(*args, **kwargs)

    monkeypatch.setattr(responses_request, "generation_of", noted)
    headers = {"authorization": f"Bearer {stack.key}"}
    for many, sealed in ((2000, "x"), (1, "x" * 70_000)):
        items = [*response_items(many), {"type": "reasoning", "encrypted_content": sealed}]
        answer = await stack.http.post("/v1/responses", json={"model": "tiny", "input": items}, headers=headers)
        assert answer.status_code == 400
    assert len(threads) == 2
    assert threading.main_thread() not in threads
