"""The stream of the Responses API, as the official client's own accumulator takes it, equals the whole answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.conversation.output import events as said
from gateway.dialects.openai.responses.custom_input import CustomInput
from gateway.dialects.openai.responses.response_object import Response
from gateway.dialects.openai.responses.tools import CalledAs, ToolNames
from gateway.dialects.openai.responses.writer import ResponsesWriter
from gateway.generation.delivery import ChoiceDelta, Finished, FinishReason, Started, merge_deltas
from tests.fast import examples
from tests.gateway.dialects.generated_answers import ANSWERS, TEXT, Answering, answering_clients, deltas, ended, pieces

RESPONSE = Response(
    id="resp_01934f6e0d2a7b3c8e51a9c4d7f60b12",
    created_at=1,
    status="in_progress",
    model="tiny",
    service_tier="default",
    store=False,
)
NAMES = ToolNames({"edit": CalledAs("custom", "edit"), "files__read": CalledAs("function", "read", "files")})


def written(arrived: list[ChoiceDelta], end: Finished) -> tuple[dict[str, Any], bytes]:
    """The whole answer, and the stream, of the same output."""
    one = ResponsesWriter(RESPONSE, None, NAMES)  # type: ignore[arg-type]  # without log probabilities
    whole = json.loads(one.whole(merge_deltas([ChoiceDelta(0, ""), *arrived]), end))
    other = ResponsesWriter(RESPONSE, None, NAMES)  # type: ignore[arg-type]
    stream = other.started(Started(end.usage, end.counts)) + b"".join(other.events([one]) for one in arrived)
    return whole, stream + other.keep_alive() + other.finished(end)


@pytest.fixture(scope="module")
def client() -> Iterator[Answering]:
    with answering_clients() as made:
        yield made


@settings(max_examples=examples(ANSWERS), deadline=None)
@given(arrived=deltas(), reason=st.sampled_from(["stop", "length", "budget"]))
def test_the_official_accumulator_makes_the_whole_answer(
    client: Answering, arrived: list[ChoiceDelta], reason: FinishReason
) -> None:
    whole, client.body = written(arrived, ended(reason))
    texts: dict[str, str] = {}
    last: Any = None
    with client.openai.responses.stream(model="tiny", input="x") as stream:
        for number, event in enumerate(stream):
            assert event.sequence_number == number
            last = event
            if event.type.endswith(".delta"):
                item: Any = event
                texts[item.item_id] = texts.get(item.item_id, "") + item.delta
        final = stream.get_final_response().to_dict() if reason == "stop" else last.response.to_dict()
    for answer in (final, whole):
        answer.pop("completed_at", None)
    for item in final["output"]:  # what the helper adds
        item.pop("parsed_arguments", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    assert final == whole
    for item in whole["output"]:
        content = item.get("content") or [{}]
        said_ = item.get("arguments", item.get("input", content[0].get("text")))
        assert texts.get(item["id"], "") == said_


@settings(max_examples=examples(500), deadline=None)
@given(data=st.data(), text=TEXT, ascii_=st.booleans())
def test_a_custom_tools_text_comes_out_of_any_split(data: st.DataObject, text: str, ascii_: bool) -> None:
    written_ = json.dumps({"input": text}, ensure_ascii=ascii_)
    reader = CustomInput()
    shown = [reader.feed(piece) for piece in data.draw(pieces(written_))]
    assert "".join(shown) + reader.finish() == text


@pytest.mark.parametrize("text", ["plain", '{"other": 1}', '{"input": 7}', "", "{" * 400])
def test_what_is_no_such_object_is_the_text(text: str) -> None:
    reader = CustomInput()
    assert "".join(map(reader.feed, text)) + reader.finish() == text


def test_identities_stay() -> None:
    arrived = [ChoiceDelta(0, "", events=(said.CallStart(0, "weather"), said.CallEnd(0)))]
    whole, stream = written(arrived, replace(ended("stop")))
    (call,) = whole["output"]
    assert call["arguments"] == "{}"
    assert stream.count(call["id"].encode()) == 5
