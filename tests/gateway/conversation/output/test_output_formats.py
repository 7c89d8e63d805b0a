"""Whatever the tokens, a family's output says the same: text, reasoning and calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversation.output.call_payloads import NotACall, json_of_python
from gateway.conversation.output.events import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
)
from gateway.conversation.output.marked_parser import MarkedParser
from gateway.conversation.output.output_formats import OUTPUT_FORMATS
from tests.gateway.conversation.output.samples import SAMPLES, SCHEMAS, Sample

Piece = tuple[int, str]
WORD = 1_000


def parser_of(sample: Sample, *, special: bool) -> tuple[MarkedParser, dict[str, int]]:
    """A new parser, and the ids of its markers, which are one token each if `special`."""
    made = OUTPUT_FORMATS[sample.format].parser
    markers = {text: number for number, text in enumerate(made.markers())} if special else {}
    tokens = {number: text for text, number in markers.items()}
    return made(tokens, lambda name: SCHEMAS.get(name, {}), reasons=sample.reasons), markers


def pieces_of(sample: Sample, markers: dict[str, int], cuts: Sequence[int] = ()) -> list[Piece]:
    """The output as tokens: markers where they are, and the text between them cut at these places."""
    pattern = "|".join(map(re.escape, sorted(markers, key=len, reverse=True)))
    parts = re.split(f"({pattern})", sample.output) if markers else [sample.output]
    pieces: list[Piece] = []
    at = 0
    for part in parts:
        if part in markers:
            pieces.append((markers[part], ""))
        elif part:
            inside = [cut - at for cut in cuts if 0 < cut - at < len(part)]
            pieces += [(WORD, part[start:end]) for start, end in pairwise([0, *inside, len(part)])]
        at += len(part)
    return pieces


def events_of(parser: MarkedParser, pieces: Iterable[Piece]) -> list[OutputEvent]:
    events = [event for token, text in pieces for event in parser.feed(token, text)]
    return joined([*events, *parser.finish()])


def joined(events: Sequence[OutputEvent]) -> list[OutputEvent]:
    """Neighbouring deltas of one kind as one."""
    result: list[OutputEvent] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            result[-1] = TextDelta(last.text + event.text)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            result[-1] = ReasoningDelta(last.text + event.text)
        elif isinstance(event, ArgumentsDelta) and isinstance(last, ArgumentsDelta) and event.call == last.call:
            result[-1] = ArgumentsDelta(event.call, last.text + event.text)
        else:
            result.append(event)
    return result


def check(sample: Sample, events: Sequence[OutputEvent]) -> None:
    starts = [event for event in events if isinstance(event, CallStart)]
    ended = {event.call for event in events if isinstance(event, CallEnd)}
    assert [start.call for start in starts] == list(range(len(starts)))
    said = []
    for start in starts:
        text = "".join(e.text for e in events if isinstance(e, ArgumentsDelta) and e.call == start.call)
        said.append((start.name, json.loads(text) if start.call in ended else text))
    assert said == sample.calls
    assert len(starts) - len(ended) == sample.open
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert text.startswith(sample.text) if sample.text.startswith("{") else text == sample.text
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == sample.reasoning


@pytest.mark.parametrize("special", [True, False], ids=["tokens", "texts"])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample.format}: {sample.output[:40]!r}")
def test_an_output_says_the_same_at_every_two_way_split(sample: Sample, special: bool) -> None:
    parser, markers = parser_of(sample, special=special)
    whole = events_of(parser, pieces_of(sample, markers))
    check(sample, whole)
    for cut in range(1, len(sample.output)):
        assert events_of(parser_of(sample, special=special)[0], pieces_of(sample, markers, [cut])) == whole


@given(st.sampled_from(SAMPLES), st.booleans(), st.sets(st.integers(1, 400)))
def test_an_output_says_the_same_however_it_is_cut(sample: Sample, special: bool, cuts: set[int]) -> None:
    parser, markers = parser_of(sample, special=special)
    whole = events_of(parser, pieces_of(sample, markers))
    assert events_of(parser_of(sample, special=special)[0], pieces_of(sample, markers, sorted(cuts))) == whole


@given(
    st.sampled_from(sorted(OUTPUT_FORMATS)),
    st.text(st.sampled_from("<>[]{}()\"'\\ \n:,=abfntool_call|functs"), max_size=80),
    st.data(),
)
def test_any_text_is_read_without_an_error_and_the_same_however_it_is_cut(
    name: str, text: str, data: st.DataObject
) -> None:
    sample = Sample(name, text)
    cuts = sorted(data.draw(st.sets(st.integers(1, 80), max_size=5)))
    one, other = (parser_of(sample, special=False)[0] for _ in range(2))
    assert events_of(one, pieces_of(sample, {})) == events_of(other, pieces_of(sample, {}, cuts))


@pytest.mark.parametrize(
    "sample", [s for s in SAMPLES if s.calls and not s.open], ids=lambda s: f"{s.format}: {s.output[:40]!r}"
)
def test_characters_of_a_marker_that_are_no_token_stay_text(sample: Sample) -> None:
    if not OUTPUT_FORMATS[sample.format].trigger or sample.format == "phi4_mini":
        return
    parser, _ = parser_of(sample, special=True)
    events = events_of(parser, [(WORD, sample.output)])
    assert not any(isinstance(event, CallStart) for event in events)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_python_literals_become_json(value: object) -> None:
    assert json.loads(json_of_python(f"x={value!r}")) == {"x": value}


@pytest.mark.parametrize(
    "text", ["x", "x=", "1", "x=[", "x=y", "x=f(1)", "x=NaN", "x=" + "[" * 100 + "]" * 100, "x=1 y=2"]
)
def test_what_is_no_literal_is_refused(text: str) -> None:
    with pytest.raises(NotACall):
        json_of_python(text)


@pytest.mark.parametrize("name", ["\\ud800", "a\\udfffb", ""])
def test_a_name_that_no_answer_can_hold_is_text(name: str) -> None:
    written = f'{{"name": "{name}", "arguments": {{}}}}'
    for format_ in ("hermes", "text"):
        marked = {"hermes": f"<tool_call>{written}</tool_call>", "text": f"Tool call: {written}"}[format_]
        parser, markers = parser_of(Sample(format_, marked), special=False)
        events = events_of(parser, pieces_of(Sample(format_, marked), markers))
        assert "".join(e.text for e in events if isinstance(e, TextDelta)) == written
        assert not any(isinstance(e, CallStart) for e in events)


WORDS = st.text(st.sampled_from("abcxyz"), min_size=3, max_size=6)
LOSSLESS = sorted(set(OUTPUT_FORMATS) - {"mistral", "harmony"})
"""The formats without parts that say nothing to a client, such as ids and headers."""


@given(st.sampled_from(LOSSLESS), st.data())
def test_no_word_is_lost_however_broken_the_output(name: str, data: st.DataObject) -> None:
    """What turns out to be no call is text: a client pays for it."""
    made = OUTPUT_FORMATS[name].parser
    noise = st.sampled_from(
        ["{", "}", '"', ": ", "(", ")", "[", "]", ", ", "=", " ", "\n", "<function=", ">", '{"name": "']
    )
    parts = data.draw(st.lists(st.one_of(WORDS, noise, st.sampled_from(sorted(made.markers()))), max_size=12))
    output = "".join(parts)
    parser, markers = parser_of(Sample(name, output), special=False)
    events = events_of(parser, pieces_of(Sample(name, output), markers))
    said = " ".join(
        event.name if isinstance(event, CallStart) else event.text for event in events if not isinstance(event, CallEnd)
    )
    for word in re.findall("[abcxyz]{3,6}", re.sub("|".join(map(re.escape, made.markers())), " ", output)):
        assert word in said.replace("\\", "")
