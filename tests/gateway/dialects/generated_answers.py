"""Answers as models may give them, and both vendors' official clients, which are answered with any body."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from hypothesis import strategies as st
from msgspec.structs import replace
from openai import OpenAI

from billing.usage import Counts, Usage
from gateway.conversation.output import events as said
from gateway.generation.delivery import ChoiceDelta, Finished, FinishReason

ANSWERS = int(os.environ.get("ACCUMULATED_ANSWERS", "150"))
"""How many answers each client's accumulator is fed with; `make test-long` says 2,000."""
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
).map(lambda parts: _numbered([event for part in parts for event in part]))


def _numbered(events: list[said.OutputEvent]) -> list[said.OutputEvent]:
    """The events with their calls numbered as they come."""
    number = -1
    numbered: list[said.OutputEvent] = []
    for event in events:
        if isinstance(event, said.CallStart):
            number += 1
        of_call = isinstance(event, said.CallStart | said.ArgumentsDelta | said.CallEnd)
        numbered.append(replace(event, call=number) if of_call else event)
    return numbered


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


class Answering:
    """The clients, answered with `body`."""

    def __init__(self) -> None:
        from anthropic import Anthropic  # takes seconds, for which few tests need to wait

        self.body = b""
        transport = httpx2.MockTransport(
            lambda _: httpx2.Response(200, content=self.body, headers={"content-type": "text/event-stream"})
        )
        http = httpx2.Client(transport=transport)
        self.openai = OpenAI(api_key="x", base_url="http://test", max_retries=0, http_client=http)
        self.anthropic = Anthropic(api_key="x", base_url="http://test", max_retries=0, http_client=http)


@contextmanager
def answering_clients() -> Iterator[Answering]:
    """The clients, closed afterwards."""
    made = Answering()
    try:
        yield made
    finally:
        made.openai.close()
        made.anthropic.close()
