"""What is read of a batch's input, however large and however wrong it is."""

from __future__ import annotations

import json
import random
import tracemalloc
from itertools import pairwise

import pytest

from gateway.batches.input_lines import (
    MOST_EMPTY_LINES,
    MOST_LINE_BYTES,
    MOST_LINES,
    InputChecker,
    InvalidLine,
    LineSplitter,
    place_of,
)

_URL = "/v1/chat/completions"
PIECE = 256 * 1024


def line(number: int, text: str = "Hi", **more: object) -> bytes:
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], **more}
    said = {"custom_id": f"{number}", "method": "POST", "url": _URL, "body": body}
    return json.dumps(said).encode() + b"\n"


def split(content: bytes, sizes: list[int], most: int = MOST_LINE_BYTES) -> list[tuple[int, bytes]]:
    splitter, offset = LineSplitter(most), 0
    found: list[tuple[int, bytes]] = []
    for size in sizes:
        found += splitter.feed(content[offset : offset + size])
        offset += size
    found += splitter.feed(content[offset:])
    return [*found, *splitter.end()]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_lines_are_found_wherever_pieces_are_cut(bom: bytes, end: bytes) -> None:
    content = bom + b'{"a": 1}\r\n\n  \n{"b": "x"}\n{"c": 3}' + end
    draw = random.Random(7)
    whole = split(content, [])
    assert [text.strip() for _, text in whole] == [b'{"a": 1}', b'{"b": "x"}', b'{"c": 3}']
    for offset, text in whole:
        assert content[offset : offset + len(text)] == text
    for _ in range(200):
        sizes = [draw.randrange(1, 9) for _ in range(draw.randrange(12))]
        assert split(content, sizes) == whole


def test_a_line_of_a_gigabyte_is_refused_before_it_is_held() -> None:
    checker, piece = InputChecker("openai", _URL), b"x" * PIECE
    checker.feed(line(1))
    tracemalloc.start()
    fed = 0
    while not checker.over:
        checker.feed(piece)
        fed += PIECE
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert fed <= MOST_LINE_BYTES + 2 * PIECE
    assert peak < 4 * MOST_LINE_BYTES
    (problem,) = checker.problems
    assert (problem.code, problem.message.startswith("Line 2:")) == ("line_too_long", True)


def test_as_many_lines_as_are_allowed_and_one_more() -> None:
    checker = InputChecker("openai", _URL)
    for begin in range(0, MOST_LINES["openai"], 1000):
        checker.feed(b"".join(line(number) for number in range(begin, begin + 1000)))
    assert (len(checker.lines), checker.problems) == (50_000, [])
    checker.feed(line(50_000))
    assert [problem.code for problem in checker.problems] == ["too_many_lines"]
    assert checker.over


def test_empty_lines_have_a_bound() -> None:
    """An input of line breaks alone would be read for minutes, for nothing."""
    checker, piece = InputChecker("openai", _URL), b"\n" * PIECE
    checker.feed(line(1))
    fed = 0
    while not checker.over:
        checker.feed(piece)
        fed += PIECE
        assert fed < MOST_EMPTY_LINES + 2 * PIECE
    (problem,) = checker.problems
    assert (problem.code, problem.line) == ("too_many_lines", None)


def test_what_is_wrong_is_said_of_each_line_and_of_so_many() -> None:
    checker = InputChecker("openai", _URL)
    checker.feed(line(1) + line(1) + b"nonsense\n" + line(2) + line(2))
    assert [(one.line, one.code) for one in checker.problems] == [
        (2, "duplicate_custom_id"),
        (3, "invalid_json_line"),
        (5, "duplicate_custom_id"),
    ]
    checker.feed(b"nonsense\n" * 10_000)
    assert len(checker.problems) == 100


def test_lines_that_share_a_prefix_are_neighbours() -> None:
    def body(system: str, question: str) -> bytes:
        turns = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        return json.dumps({"model": "tiny", "temperature": 0, "messages": turns}).encode()

    systems = [f"{number} " + "You know all of this long text. " * 12 for number in range(5)]
    asked = [(system, f"question {number}") for number in range(20) for system in systems]
    random.Random(1).shuffle(asked)
    ordered = sorted(asked, key=lambda one: place_of(body(*one)))
    assert sum(one[0] != other[0] for one, other in pairwise(ordered)) == 4


@pytest.mark.parametrize("prompt", ['"text"', "[1, 2, 3]", '["one"]', "[[1, 2]]", "[]"])
def test_one_prompt_is_a_line(prompt: str) -> None:
    line = f'{{"model": "tiny", "prompt": {prompt}}}'.encode()
    assert place_of(line) == place_of(line.replace(b'"model": "tiny"', b'"model": "tiny", "temperature": 1'))
    assert place_of(line) != place_of(line.replace(b"tiny", b"other"))


@pytest.mark.parametrize("prompt", ['["one", "two"]', "[[1], [2]]"])
def test_several_prompts_are_none(prompt: str) -> None:
    with pytest.raises(InvalidLine, match="one prompt"):
        place_of(f'{{"model": "tiny", "prompt": {prompt}}}'.encode())


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(InvalidLine):
        place_of(b'{"model": "tiny", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
