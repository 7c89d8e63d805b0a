"""How calls are written within a family's markers: as JSON, as Python's calls, as XML. Each reads one call's text."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from gateway.conversation.output.events import EventLog
from gateway.conversation.output.json_scanner import CallScanner, ValueScanner

Schemas: TypeAlias = Callable[[str], Mapping[str, Any]]
"""The JSON schema of a tool's arguments, by its name; empty for an unknown one. Asked only where values need types."""


class CallPayload(Protocol):
    """Reads the text of one call, or of several in a row, into a log."""

    @property
    def finished(self) -> bool:
        """Whether nothing more belongs to it."""
        ...

    def take(self, text: str) -> int:
        """How many characters belong to it."""
        ...

    def close(self) -> str:
        """Nothing more comes. Returns what was read and is in no call, to be shown as text."""
        ...


class JsonCalls:
    """Calls as JSON objects: one, or with `many` any number, in an array or with semicolons between them."""

    def __init__(self, log: EventLog, *, many: bool = False) -> None:
        self._log = log
        self._many = many
        self._between = " \t\r\n" + ("[],;" if many else "")
        self._scanner: CallScanner | None = None
        self._call: int | None = None
        self.finished = False

    def take(self, text: str) -> int:
        """Read on; returns how many characters were read."""
        at = 0
        while at < len(text) and not self.finished:
            if self._scanner is None:
                if text[at] in self._between:
                    at += 1
                    continue
                if text[at] != "{":
                    self.finished = True
                    break
                self._scanner, self._call = CallScanner(), None
            at += self._scanner.take(text[at:])
            self._report(self._scanner)
        return at

    def _report(self, scanner: CallScanner) -> None:
        if scanner.name is not None and self._call is None:
            self._call = self._log.begin_call(scanner.name)
        if self._call is not None:
            self._log.arguments(self._call, scanner.take_arguments())
        if scanner.done and self._call is not None:
            self._log.end_call(self._call)
            self._scanner = None
            self.finished = not self._many
        elif scanner.wrong:
            self.finished = True

    def close(self) -> str:
        """What was read of an object that turned out to be no call, or whose name did not come."""
        return self._scanner.raw if self._scanner is not None and self._call is None else ""


_FENCE = "` \t\r\n"


class NamedJson:
    """A call whose name is known before its arguments, which are one JSON object. Fences around it are passed over."""

    def __init__(self, log: EventLog, name: str) -> None:
        self._log = log
        self._call = log.begin_call(name)
        self._value: ValueScanner | None = None
        self._before = ""
        self.finished = False

    def take(self, text: str) -> int:
        """Read on; returns how many characters were read."""
        start = 0
        if self._value is None:
            start = text.find("{")
            self._before += text if start < 0 else text[:start]
            if start < 0:
                return len(text)
            self._value = ValueScanner()
        taken = self._value.take(text[start:])
        self._log.arguments(self._call, text[start : start + taken])
        self.finished = self._value.done
        if self.finished:
            self._log.end_call(self._call)
        return start + taken

    def end(self) -> None:
        """The call's end marker has come: without an object it has no arguments."""
        if self._value is None and not self.finished:
            self._log.arguments(self._call, "{}")
            self._log.end_call(self._call)
        self.finished = True

    def close(self) -> str:
        """What stands before the object, but for a fence."""
        return self._before if self._before.strip(_FENCE).removeprefix("json") else ""


class XmlCall:
    """`<function=NAME><parameter=KEY>VALUE</parameter>…</function>`, as Qwen3-Coder writes it.

    Values are typed by the tool's schema: a string stays one, and anything else is the JSON that it reads as. They
    become the members of one JSON object, each when it is complete.
    """

    def __init__(self, log: EventLog, schemas: Schemas) -> None:
        self._log = log
        self._schemas = schemas
        self._buffer = ""
        self._call: int | None = None
        self._properties: Mapping[str, Any] = {}
        self._members = 0
        self._seen = 0
        """Within a parameter: how far its end was looked for. A value may be long, and comes token by token."""
        self.finished = False

    def take(self, text: str) -> int:
        """Read on; returns how many characters were read."""
        self._buffer += text
        while not self.finished and self._step():
            pass
        if not self.finished:
            return len(text)
        over, self._buffer = len(self._buffer), ""
        return max(0, len(text) - over)

    def close(self) -> str:
        """What is no call. A parameter that the limit cut off goes into the arguments as far as it came."""
        rest, self._buffer = self._buffer, ""
        if self._call is None:
            return rest
        opening = rest.find("<parameter=")
        if not self.finished and opening >= 0:
            key, _, value = rest[opening + len("<parameter=") :].partition(">")
            begun = json.dumps(value.removeprefix("\n"), ensure_ascii=False)[:-1]
            self._log.arguments(self._call, f"{', ' if self._members else '{'}{json.dumps(key.strip())}: {begun}")
        return ""

    def _step(self) -> bool:
        """Read one element; False while none is whole."""
        if self._call is None:
            head = self._cut("<function=", ">")
            if head is None:
                return False
            name = head.strip()
            properties = self._schemas(name).get("properties")
            self._properties = properties if isinstance(properties, dict) else {}
            self._call = self._log.begin_call(name)
            return True
        if self._seen and "</parameter>" not in self._buffer[self._seen :]:
            self._seen = max(1, len(self._buffer) - len("</parameter>"))
            return False
        opening, closing = self._buffer.find("<parameter="), self._buffer.find("</function>")
        if closing >= 0 and not 0 <= opening < closing:
            self._buffer = self._buffer[closing + len("</function>") :]
            self._log.arguments(self._call, "}" if self._members else "{}")
            self._log.end_call(self._call)
            self.finished = True
            return False
        if opening < 0 or (end := self._buffer.find("</parameter>", opening)) < 0:
            self._seen = max(1, len(self._buffer) - len("</parameter>")) if opening >= 0 else 0
            return False
        self._seen = 0
        key, _, value = self._buffer[opening + len("<parameter=") : end].partition(">")
        self._buffer = self._buffer[end + len("</parameter>") :]
        prefix = ", " if self._members else "{"
        self._members += 1
        self._log.arguments(self._call, f"{prefix}{json.dumps(key.strip())}: {self._typed(key.strip(), value)}")
        return True

    def _cut(self, opening: str, closing: str) -> str | None:
        at = self._buffer.find(opening)
        end = self._buffer.find(closing, at) if at >= 0 else -1
        if end < 0:
            return None
        inner, self._buffer = self._buffer[at + len(opening) : end], self._buffer[end + len(closing) :]
        return inner

    def _typed(self, key: str, value: str) -> str:
        if value.startswith("\n"):
            value = value[1:]
        value = value.removesuffix("\n")
        schema = self._properties.get(key)
        kind = schema.get("type", "string") if isinstance(schema, dict) else "string"
        if kind not in ("string", ["string"]):
            lowered = {"True": "true", "False": "false", "None": "null"}.get(value.strip(), value.strip())
            try:
                json.loads(lowered)
            except (ValueError, RecursionError):
                pass
            else:
                return lowered
        return json.dumps(value, ensure_ascii=False)


_DEEPEST = 64
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}


class NotACall(Exception):
    """The text is no call in Python's form."""


def json_of_python(text: str) -> str:
    """The JSON object of the keyword arguments of a call such as `a=1, b=['x']`. Raises NotACall."""
    reader = _PythonReader(text)
    members = []
    reader.skip_space()
    while not reader.at_end:
        key = reader.word()
        reader.expect("=")
        members.append(f"{json.dumps(key)}: {reader.value(0)}")
        reader.skip_space()
        if not reader.at_end:
            reader.expect(",")
            reader.skip_space()
    return "{" + ", ".join(members) + "}"


def _refuse(_: str) -> object:
    """Not-a-number and the infinities are no JSON."""
    raise NotACall


class _PythonReader:
    """Reads Python's literals as JSON."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._text)

    def skip_space(self) -> None:
        while not self.at_end and self._text[self._at] in " \t\r\n":
            self._at += 1

    def expect(self, character: str) -> None:
        self.skip_space()
        if self._peek() != character:
            raise NotACall
        self._at += 1

    def word(self) -> str:
        start = self._at
        while not self.at_end and (self._text[self._at].isalnum() or self._text[self._at] in "_-+."):
            self._at += 1
        if start == self._at:
            raise NotACall
        return self._text[start : self._at]

    def value(self, depth: int) -> str:
        if depth > _DEEPEST:
            raise NotACall
        self.skip_space()
        match self._peek():
            case "'" | '"':
                return json.dumps(self._string(), ensure_ascii=False)
            case "[":
                return "[" + ", ".join(self._items("]", depth)) + "]"
            case "(":
                return "[" + ", ".join(self._items(")", depth)) + "]"
            case "{":
                return "{" + ", ".join(self._items("}", depth)) + "}"
        word = self.word()
        if word in _WORDS:
            return _WORDS[word]
        try:
            return json.dumps(json.loads(word, parse_constant=_refuse))
        except ValueError:
            raise NotACall from None

    def _items(self, close: str, depth: int) -> list[str]:
        self._at += 1
        items = []
        self.skip_space()
        while self._peek() != close:
            item = self.value(depth + 1)
            if close == "}":
                self.expect(":")
                key = item if item[0] == '"' else json.dumps(item)
                item = f"{key}: {self.value(depth + 1)}"
            items.append(item)
            self.skip_space()
            if self._peek() == ",":
                self._at += 1
                self.skip_space()
            elif self._peek() != close:
                raise NotACall
        self._at += 1
        return items

    def _string(self) -> str:
        start, quote = self._at, self._peek()
        self._at += 1
        while self._peek() != quote:
            self._at += 2 if self._peek() == "\\" else 1
        self._at += 1
        try:
            text = ast.literal_eval(self._text[start : self._at].replace("\n", "\\n"))
        except (ValueError, SyntaxError):
            raise NotACall from None
        return str(text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _peek(self) -> str:
        if self.at_end:
            raise NotACall
        return self._text[self._at]


class PythonCalls:
    """`[f(a=1), g(b='x')]`: a list of Python's calls. Each call's arguments are passed on when it is complete."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._parts: list[str] = []
        self._quote = ""
        self._escaped = False
        self._depth = 0
        self._opened = False
        self._calls = 0
        self.finished = False

    def take(self, text: str) -> int:
        """Read on; returns how many characters were read."""
        for index, character in enumerate(text):
            self._next(character)
            if self.finished:
                return index + 1
        return len(text)

    def close(self) -> str:
        """What is in no call, with the bracket before the first."""
        parts, self._parts = "".join(self._parts), []
        if self._calls and not parts.strip(" \t\r\n,]"):
            return ""
        return f"[{parts}" if self._opened and not self._calls else parts

    def _next(self, character: str) -> None:
        if not self._opened:
            self._opened = character == "["
            if not self._opened:
                self._parts.append(character)
                self.finished = character not in " \t\r\n"
            return
        self._parts.append(character)
        if self._depth == 0 and character == "]" and not self._quote:
            self.finished = True
            return
        self._follow(character)
        if self._depth == 0 and character == ")" and not self._quote:
            self._end_call()

    def _follow(self, character: str) -> None:
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == self._quote:
                self._quote = ""
        elif character in "'\"":
            self._quote = character
        elif character in "([{":
            self._depth += 1
        elif character in ")]}":
            self._depth -= 1

    def _end_call(self) -> None:
        text = "".join(self._parts)
        name, _, rest = text.lstrip(" \t\r\n,").partition("(")
        try:
            if not name or not all(part.isidentifier() for part in name.replace("-", "_").split(".")):
                raise NotACall
            arguments = json_of_python(rest[:-1])
        except NotACall:
            self.finished = True
            return
        self._parts = []
        self._calls += 1
        call = self._log.begin_call(name)
        self._log.arguments(call, arguments)
        self._log.end_call(call)
