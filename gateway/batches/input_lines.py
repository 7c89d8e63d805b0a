"""The lines of a batch's input: found in its bytes, checked before any of them is run, placed beside their like.

Nothing of the input is kept but where each line lies. A line's place in the order of running is made of digests of
longer and longer beginnings of its prompt, so that lines which share a prefix are neighbours and read it from the
cache.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from batch_store.records import BatchProblem, Line, Surface
from gateway.dialects.json_paths import ABSENT

OPENAI_ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
"""What the lines of an OpenAI batch may ask."""
MESSAGES_ENDPOINT = "/v1/messages"
MOST_LINES = {"openai": 50_000, "anthropic": 100_000}
MOST_LINE_BYTES = 8 * 1024 * 1024
"""Bytes of a line, as of the body of a request."""
MOST_EMPTY_LINES = 100_000
"""Empty lines of an input: each takes time to be passed over, and none is a request."""
MOST_PROBLEMS = 100
"""Problems of an input that are told of."""
_LONGEST_ID = {"openai": 512, "anthropic": 64}
_ANTHROPIC_ID = re.compile(r"[A-Za-z0-9_-]+")
_BOM = b"\xef\xbb\xbf"
_BEGINNINGS = (256, 2048, 16_384)
"""Bytes of a prompt by which it is placed."""
_DIGEST = 4
_SHOWN = 80


class InputLine(Struct, frozen=True):
    """A line, decoded. `body` is the JSON of the request."""

    custom_id: str
    method: str
    url: str
    body: Raw


class _Body(Struct):
    """What is looked at of a request's body."""

    model: str
    stream: bool | None = None
    background: bool | None = None
    tools: Raw = ABSENT
    system: Raw = ABSENT
    instructions: Raw = ABSENT
    messages: Raw = ABSENT
    input: Raw = ABSENT
    prompt: Raw = ABSENT


_line, _body = msgspec.json.Decoder(InputLine), msgspec.json.Decoder(_Body)
_prompts = msgspec.json.Decoder(str | list[Any])


class InvalidLine(Exception):
    """A line cannot be run."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class LineSplitter:
    """Finds lines in bytes that come in pieces; of a line it holds `most` bytes at most. Empty lines are none, and a
    byte order mark at the beginning is passed over. JSON takes the CR of a CRLF for a space."""

    def __init__(self, most: int = MOST_LINE_BYTES) -> None:
        self._most = most
        self._begin = 0
        """Where the line begins of which `_rest` is a part."""
        self._rest = b""
        self._empty = 0

    def feed(self, piece: bytes) -> Iterator[tuple[int, bytes]]:
        """The lines that end in this piece, and where they begin. Raises InvalidLine for one that is too long, and for
        too many empty ones."""
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            yield from self._found(line)
            self._begin += len(line) + 1
        self._check(self._rest)

    def end(self) -> Iterator[tuple[int, bytes]]:
        """The last line, if it has no line break. Raises InvalidLine."""
        yield from self._found(self._rest)

    def _found(self, line: bytes) -> Iterator[tuple[int, bytes]]:
        self._check(line)
        begin = self._begin
        if begin == 0 and line.startswith(_BOM):
            begin, line = len(_BOM), line[len(_BOM) :]
        if line.strip():
            yield begin, line
            return
        self._empty += 1
        if self._empty > MOST_EMPTY_LINES:
            raise InvalidLine("too_many_lines", f"there are more than {MOST_EMPTY_LINES} empty lines before it")

    def _check(self, line: bytes) -> None:
        if len(line) > self._most:
            raise InvalidLine("line_too_long", f"a line may have {self._most} bytes at most")


class InputChecker:
    """Checks the lines of one input: each by itself, and that their ids are unique."""

    def __init__(self, surface: Surface, endpoint: str) -> None:
        self.lines: list[Line] = []
        self.problems: list[BatchProblem] = []
        self._surface = surface
        self._endpoint = endpoint
        self._ids: set[bytes] = set()
        self._seen = 0
        self._splitter = LineSplitter()

    @property
    def over(self) -> bool:
        """Whether nothing more is looked at: there are too many problems, or one after which no line can be told."""
        return len(self.problems) >= MOST_PROBLEMS or any(one.line is None for one in self.problems)

    def feed(self, piece: bytes) -> None:
        """Check the lines that end in this piece. Work for a thread."""
        self._take(self._splitter.feed(piece))

    def end(self) -> None:
        """Check the last line, and that there is one."""
        if not self.over:
            self._take(self._splitter.end())
        if not self._seen and not self.problems:
            self.problems.append(BatchProblem("empty_file", "The input has no lines."))

    def _take(self, found: Iterator[tuple[int, bytes]]) -> None:
        try:
            for offset, content in found:
                if self.over:
                    return
                self._seen += 1
                most = MOST_LINES[self._surface]
                if self._seen > most:
                    self.problems.append(BatchProblem("too_many_lines", f"The input has more than {most} lines."))
                    return
                self._check(offset, content)
        except InvalidLine as error:  # where the line ends is not known
            message = f"Line {self._seen + 1}: {error}."
            self.problems.append(BatchProblem(error.code, message))

    def _check(self, offset: int, content: bytes) -> None:
        try:
            place = self._place(content)
        except InvalidLine as error:
            self.problems.append(
                BatchProblem(error.code, f"Line {self._seen}: {error}.", line=self._seen, param=error.param)
            )
            return
        self.lines.append(Line(number=self._seen - 1, offset=offset, length=len(content), place=place))

    def _place(self, content: bytes) -> bytes:
        line = read_line(content)
        check_id(line.custom_id, self._surface)
        digest = hashlib.sha256(line.custom_id.encode(errors="surrogatepass")).digest()[:16]
        if digest in self._ids:
            shown = line.custom_id[:_SHOWN]
            raise InvalidLine("duplicate_custom_id", f"an earlier line has the custom_id {shown!r} too", "custom_id")
        self._ids.add(digest)
        if line.method != "POST":
            raise InvalidLine("invalid_method", "the method must be POST", "method")
        if line.url != self._endpoint:
            problem = f"the url {line.url[:_SHOWN]!r} is not the batch's endpoint {self._endpoint!r}"
            raise InvalidLine("mismatched_endpoint", problem, "url")
        return place_of(bytes(line.body))


def read_line(content: bytes) -> InputLine:
    """A line, decoded. Raises InvalidLine."""
    try:
        return _line.decode(content)
    except msgspec.ValidationError as error:
        raise InvalidLine("invalid_line", str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidLine("invalid_json_line", f"it is not valid JSON ({str(error)[:_SHOWN]})") from error


def check_id(custom_id: str, surface: Surface) -> None:
    """Raise InvalidLine for an id that no line may have."""
    longest = _LONGEST_ID[surface]
    if not 1 <= len(custom_id) <= longest:
        raise InvalidLine("invalid_custom_id", f"a custom_id has 1 to {longest} characters", "custom_id")
    if surface == "anthropic" and not _ANTHROPIC_ID.fullmatch(custom_id):
        raise InvalidLine("invalid_custom_id", "a custom_id has letters, digits, '_' and '-'", "custom_id")


def place_of(content: bytes) -> bytes:
    """Where a request with this body stands in the order of running. Raises InvalidLine for one that no batch runs."""
    try:
        body = _body.decode(content)
    except msgspec.ValidationError as error:
        raise InvalidLine("invalid_request", str(error), "body") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidLine("invalid_request", f"its body is not valid JSON ({str(error)[:_SHOWN]})", "body") from error
    if body.stream:
        raise InvalidLine("invalid_request", "a batch streams no answers", "body.stream")
    if body.background:
        raise InvalidLine("invalid_request", "a batch runs nothing in the background", "body.background")
    if body.prompt:
        _check_prompt(bytes(body.prompt))
    parts = (body.tools, body.system, body.instructions, body.messages, body.input, body.prompt)
    prompt = body.model.encode(errors="surrogatepass") + b"\0" + b"\0".join(map(bytes, parts))
    return b"".join(hashlib.sha256(prompt[:length]).digest()[:_DIGEST] for length in _BEGINNINGS)


def _check_prompt(prompt: bytes) -> None:
    """Raise InvalidLine for several prompts: each would be a request of its own, and a line is one."""
    if not prompt.startswith(b"["):
        return
    prompts = _prompts.decode(prompt)
    if isinstance(prompts, list) and len(prompts) > 1 and not isinstance(prompts[0], int):
        raise InvalidLine("invalid_request", "a line has one prompt; put others in lines of their own", "body.prompt")
