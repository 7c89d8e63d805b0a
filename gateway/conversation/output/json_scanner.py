"""Follows JSON that arrives in pieces, without parsing it twice: where a value ends, and what a call in it says."""

from __future__ import annotations

import json
import re

_SPACE = " \t\r\n"
_LONGEST_NAME = 256
_NAMES, _ARGUMENTS = frozenset({"name"}), frozenset({"arguments", "parameters", "args"})


class ValueScanner:
    """Finds the end of one JSON value. `take` returns how many characters belong to it; then look at `done`."""

    def __init__(self) -> None:
        self.done = False
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._scalar = False

    def take(self, text: str) -> int:
        """How many characters at the beginning of `text` belong to the value."""
        for index, character in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
                    self.done = self._depth == 0
            elif self._scalar and character in ",]}" + _SPACE:
                self.done = True
                return index
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                self.done = self._depth <= 0
            elif self._depth == 0 and character not in _SPACE:
                self._scalar = True
            if self.done:
                return index + 1
        return len(text)


class CallScanner:
    """Reads one call, such as {"name": "f", "arguments": {…}}, as it arrives.

    `name` is set once it is known, and `arguments` has what can be passed on since it was last taken: the model's own
    text. `wrong`: this is no call.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.done = False
        self.wrong = False
        self._raw: list[str] = []
        self._arguments: list[str] = []
        self._state = "begin"
        self._text = ""
        self._key = ""
        self._value: ValueScanner | None = None
        self._parts: list[str] = []
        """Of a value that is looked at once it is whole."""
        self._streams = False
        """Whether the value is arguments that are passed on as they come: an object."""
        self._any_arguments = False

    @property
    def raw(self) -> str:
        """All that was taken while no name was known."""
        return "".join(self._raw)

    def take(self, text: str) -> int:
        """How many characters belong to the call, as far as it is one."""
        for index, character in enumerate(text):
            if self.name is None:
                self._raw.append(character)
            self._next(character)
            if self.done or self.wrong:
                return index + 1
        return len(text)

    def take_arguments(self) -> str:
        """The arguments since the last call; nothing before the name is known."""
        if self.name is None:
            return ""
        arguments, self._arguments = self._arguments, []
        return "".join(arguments)

    def _next(self, character: str) -> None:
        if self._value is not None:
            self._in_value(character)
        elif character in _SPACE and self._state != "key":
            return
        elif self._state == "key":
            self._in_key(character)
        elif self._state == "begin" and character == "{":
            self._state = "open"
        elif self._state in ("open", "comma") and character == '"':
            self._state, self._text = "key", ""
        elif self._state == "colon" and character == ":":
            self._value, self._parts, self._streams = ValueScanner(), [], False
        elif self._state == "after" and character == ",":
            self._state = "comma"
        elif self._state in ("open", "after") and character == "}":
            self._close()
        else:
            self.wrong = True

    def _in_key(self, character: str) -> None:
        if character != '"':
            self._text += character
            self.wrong = len(self._text) > _LONGEST_NAME
            return
        self._key, self._state = self._text, "colon"
        first_may_be = self.name is not None or self._any_arguments or self._key in _NAMES | _ARGUMENTS | _OTHERS
        self.wrong = not first_may_be

    def _in_value(self, character: str) -> None:
        scanner = self._value
        assert scanner is not None
        if not self._parts and not self._streams:
            if character in _SPACE:
                return
            self._streams = self._key in _ARGUMENTS and character == "{"
        taken = scanner.take(character)
        if taken:
            (self._arguments if self._streams else self._parts).append(character)
        if not scanner.done:
            return
        self._value, self._state = None, "after"
        self._end_value()
        if not taken:
            self._next(character)

    def _end_value(self) -> None:
        if self._key in _NAMES and self.name is None:
            value = _decoded("".join(self._parts))
            if isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME and not _SURROGATE.search(value):
                self.name = value
            else:
                self.wrong = True
        elif self._key in _ARGUMENTS:
            self._any_arguments = True
            if not self._streams:  # an object in a string, as some models write it, or none
                written = "".join(self._parts)
                self._arguments.append("{}" if written == "null" else _object_in(written))

    def _close(self) -> None:
        if self.name is None:
            self.wrong = True
            return
        if not self._any_arguments:
            self._arguments.append("{}")
        self.done = True


_OTHERS = frozenset({"type", "id", "function", "index"})
"""Keys that may stand in a call beside its name and arguments."""


def _object_in(written: str) -> str:
    """The object that a string holds, as some models write it; else the JSON text as it stands."""
    value = _decoded(written)
    if isinstance(value, str) and isinstance(_decoded(value), dict) and not _SURROGATE.search(value):
        return value
    return written


_SURROGATE = re.compile("[\ud800-\udfff]")
"""What no JSON in UTF-8 can hold, but its escapes can spell."""


def _decoded(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
