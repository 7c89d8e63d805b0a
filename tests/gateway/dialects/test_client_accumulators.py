"""The streams of chat and messages, as the official clients' own accumulators take them, equal the whole answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dialects.anthropic.messages_response import MessageIdentity, MessageWriter
from gateway.dialects.openai.chat_response import ChatWriter
from gateway.dialects.openai.common_response import ResponseIdentity
from gateway.generation.delivery import ChoiceDelta, FinishReason, Started, merge_deltas
from tests.fast import examples
from tests.gateway.dialects.generated_answers import ANSWERS, Answering, answering_clients, deltas, ended

ID = UUID("01934f6e-0d2a-7b3c-8e51-a9c4d7f60b12")
REASONS: tuple[FinishReason, ...] = ("stop", "length", "budget")


@pytest.fixture(scope="module")
def client() -> Iterator[Answering]:
    with answering_clients() as made:
        yield made


def stream_of(writer: Any, arrived: list[ChoiceDelta], end: Any) -> bytes:
    begin: bytes = writer.started(Started(end.usage, end.counts))
    return begin + b"".join(writer.events([one]) for one in arrived) + writer.keep_alive() + writer.finished(end)


@settings(max_examples=examples(ANSWERS), deadline=None)
@given(arrived=deltas(), reason=st.sampled_from(REASONS), usage=st.booleans())
def test_chat_is_what_openais_accumulator_makes_of_its_stream(
    client: Answering, arrived: list[ChoiceDelta], reason: FinishReason, usage: bool
) -> None:
    identity = ResponseIdentity(f"chatcmpl-{ID.hex}", 1, "tiny", "req_1", "default")
    end = ended(reason)

    def writer() -> ChatWriter:
        return ChatWriter(identity, None, logprobs=False, include_usage=usage)  # type: ignore[arg-type]

    whole = json.loads(writer().whole(merge_deltas([ChoiceDelta(0, ""), *arrived]), end))
    client.body = stream_of(writer(), arrived, end)
    options: Any = {"stream_options": {"include_usage": True}} if usage else {}
    with client.openai.chat.completions.stream(
        model="tiny", messages=[{"role": "user", "content": "x"}], **options
    ) as stream:
        for _ in stream:
            pass
        # the helper raises where an answer was cut off, and shows what there is of it
        final = stream.get_final_completion() if reason == "stop" else stream.current_completion_snapshot
    (choice,), (theirs,) = whole["choices"], final.to_dict()["choices"]
    message: Any = theirs["message"]  # type: ignore[index]
    assert theirs["finish_reason"] == choice["finish_reason"]  # type: ignore[index]
    assert (message.get("content") or "") == (choice["message"]["content"] or "")
    assert message.get("reasoning_content") == choice["message"].get("reasoning_content")
    calls = [
        {"id": call["id"], "type": call["type"], "function": {k: call["function"][k] for k in ("name", "arguments")}}
        for call in message.get("tool_calls") or ()
    ]
    assert calls == choice["message"].get("tool_calls", [])
    assert final.id == whole["id"]
    if usage:
        assert final.usage is not None
        assert final.usage.to_dict() == whole["usage"]


def signature(thinking: str) -> str:
    return f"{len(thinking)} characters"


@settings(max_examples=examples(ANSWERS), deadline=None)
@given(arrived=deltas(), reason=st.sampled_from(REASONS))
def test_a_message_is_what_anthropics_accumulator_makes_of_its_stream(
    client: Answering, arrived: list[ChoiceDelta], reason: FinishReason
) -> None:
    identity, end = MessageIdentity.of(ID, "tiny", "req_1", lane="standard", fills_context=False), ended(reason)
    whole = json.loads(MessageWriter(identity, signature).whole(merge_deltas([ChoiceDelta(0, ""), *arrived]), end))
    client.body = stream_of(MessageWriter(identity, signature), arrived, end)
    with client.anthropic.messages.stream(
        model="tiny", max_tokens=9, messages=[{"role": "user", "content": "x"}]
    ) as stream:
        texts = "".join(stream.text_stream)
        final = stream.get_final_message().to_dict()
    blocks: Any = final["content"]
    assert texts == "".join(block["text"] for block in whole["content"] if block["type"] == "text")
    assert len(blocks) == len(whole["content"])
    for theirs, ours in zip(blocks, whole["content"], strict=True):
        for name, value in ours.items():
            assert theirs[name] == value, name
    for name in ("id", "model", "role", "stop_reason", "stop_sequence", "type"):
        assert final.get(name) == whole[name], name
    assert {name: value for name, value in final["usage"].items() if value is not None} == {
        name: value
        for name, value in whole["usage"].items()
        if value is not None and name != "cost"  # ours, which the accumulator leaves out
    }
