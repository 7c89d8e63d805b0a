"""The stream of the Responses API, as the official client's own accumulator takes it, equals the whole answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from openai import OpenAI

from billing.usage import Counts, Usage
from gateway.conversation.output import events as said
from gateway.dialects.openai.responses.custom_input import CustomInput
from gateway.dialects.openai.responses.response_object import Response
from gateway.dialects.openai.responses.tools import CalledAs, ToolNames
from gateway.dialects.openai.responses.writer import ResponsesWriter
from gateway.generation.delivery import ChoiceDelta, Finished, FinishReason, Started, merge_deltas
from tests.fast import examples

RESPONSE = Response(
    id="resp_01934f6e0d2a7b3c8e51a9c4d7f60b12",
    created_at=1,
    status="in_progress",
    model="tiny",
    service_tier="default",
    store=False,
)
NAMES = ToolNames({"edit": CalledAs("custom", "edit"), "files__read": CalledAs("function", "read", "files")})
TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12) | st.sampled_from(
    ["\u2028", "\x85", "data: x\n\n", "🚀"]
)


def pieces(text: str) -> st.SearchStrategy[list[str]]:
    """The text cut anywhere."""
    cuts = st.lists(st.integers(0, len(text)), max_size=6).map(sorted)
    return cuts.map(lambda at: [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)])


@st.composite
def calls(draw: st.DrawFn) -> list[said.OutputEvent]:
    name = draw(st.sampled_from(["weather", "edit", "files__read"]))
    arguments = {"input": draw(TEXT)} if name == "edit" else draw(st.dictionaries(TEXT, TEXT, max_size=2))
    text = json.dumps(arguments, ensure_ascii=draw(st.booleans()))
    whole = draw(st.booleans()) or not text
    shown = text if whole else text[: draw(st.integers(0, len(text)))]
    events: list[said.OutputEvent] = [said.CallStart(0, name)]
    events += [said.ArgumentsDelta(0, piece) for piece in draw(pieces(shown)) if piece]
    return [*events, said.CallEnd(0)] if whole else events


OUTPUTS = st.lists(
    st.one_of(
        TEXT.map(lambda text: [said.TextDelta(text)]), TEXT.map(lambda text: [said.ReasoningDelta(text)]), calls()
    ),
    max_size=6,
).map(lambda parts: [event for part in parts for event in part])


@st.composite
def deltas(draw: st.DrawFn) -> list[ChoiceDelta]:
    """An output as it arrives: plain text, or a parser's events, some at a time."""
    if draw(st.booleans()):
        return [ChoiceDelta(0, text) for text in draw(st.lists(TEXT, max_size=8))]
    events = draw(OUTPUTS)
    cuts = sorted(draw(st.lists(st.integers(0, len(events)), max_size=6)))
    return [
        ChoiceDelta(0, "", events=tuple(events[a:b])) for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True)
    ]


def ended(reason: FinishReason) -> Finished:
    return Finished((reason,), Counts(), Usage(uncached=3, output=2), 10, "USD", (None,))


def written(arrived: list[ChoiceDelta], end: Finished) -> tuple[dict[str, Any], bytes]:
    """The whole answer, and the stream, of the same output."""
    one = ResponsesWriter(RESPONSE, None, NAMES)  # type: ignore[arg-type]  # without log probabilities
    whole = json.loads(one.whole(merge_deltas([ChoiceDelta(0, ""), *arrived]), end))
    other = ResponsesWriter(RESPONSE, None, NAMES)  # type: ignore[arg-type]
    stream = other.started(Started(end.usage, end.counts)) + b"".join(other.events([one]) for one in arrived)
    return whole, stream + other.keep_alive() + other.finished(end)


class Client:
    """The official client, answered with `body`."""

    def __init__(self) -> None:
        self.body = b""
        transport = httpx2.MockTransport(
            lambda _: httpx2.Response(200, content=self.body, headers={"content-type": "text/event-stream"})
        )
        self.openai = OpenAI(
            api_key="x", base_url="http://test", max_retries=0, http_client=httpx2.Client(transport=transport)
        )


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.openai.close()


@settings(max_examples=examples(1000), deadline=None)
@given(arrived=deltas(), reason=st.sampled_from(["stop", "length", "budget"]))
def test_the_official_accumulator_makes_the_whole_answer(
    client: Client, arrived: list[ChoiceDelta], reason: FinishReason
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
