"""Reads the text of a custom tool's call out of the JSON that the model writes, `{"input": "…"}`, as it comes."""

from __future__ import annotations

import json
import re

from gateway.dialects.json_objects import WHOLE_CHARACTERS
from gateway.dialects.openai.responses.tools import INPUT

_OPENING = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_LONGEST_OPENING = 256


class CustomInput:
    """The text of one call. What is no such object is the text itself, so that nothing of it is lost."""

    def __init__(self) -> None:
        self._waiting = ""
        self._inside: bool | None = None
        """Whether what comes is within the string; None while its opening is not whole."""
        self._plain = False

    def feed(self, more: str) -> str:
        """Take in more of the JSON; returns what of the text is certain."""
        if self._inside is False:
            return ""
        if self._plain:
            return more
        self._waiting += more
        if self._inside is None:
            opening = _OPENING.match(self._waiting)
            if opening is None:
                self._plain = len(self._waiting) > _LONGEST_OPENING
                return self._rest() if self._plain else ""
            self._inside, self._waiting = True, self._waiting[opening.end() :]
        whole = WHOLE_CHARACTERS.match(self._waiting)
        assert whole is not None, "it matches the empty text"
        taken, self._waiting = whole[0], self._waiting[whole.end() :]
        if self._waiting.startswith('"'):
            self._inside, self._waiting = False, ""
        return _unescaped(taken)

    def finish(self) -> str:
        """What was held back, when no more comes."""
        return self._rest() if self._inside is None else ""

    def _rest(self) -> str:
        rest, self._waiting = self._waiting, ""
        return rest


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:  # an escape that JSON does not know
        return text
