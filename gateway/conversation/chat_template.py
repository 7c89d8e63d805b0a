"""Renders conversations with a model's chat template, in segments that say which text the client wrote.

Templates are code that comes with a model: they run in Jinja's immutable sandbox, with the functions of Hugging Face's
`apply_chat_template`. To find the client's texts again, they are marked before rendering (`segments.Marks`). Some
templates transform contents (trim, split, test the length), so each marked rendering is compared with a plain one, and
the first of these ways that leaves the text unchanged is used:

1. marks around each content;
2. marks inside its outer white space, for templates that trim;
3. no marks, but a cut after each character that may begin a special token, so that no special token is formed from the
   client's text. Such a prompt has no spans.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from msgspec import Struct

from gateway.conversation.segments import Marks, NoMarksLeft, Segment
from gateway.generation_request import Text, Turn

_JOINT = "\n"
"""Joins the text parts of a message, since templates take one string."""


class TemplateError(Exception):
    """The template cannot be loaded. The message names the file or the reason."""


class ConversationRefused(Exception):
    """The template does not accept this conversation. The message says why."""


class Rendered(Struct, frozen=True):
    """A rendered prompt. `Segment.content` is an index into `contents`."""

    segments: list[Segment]
    contents: tuple[Text, ...]


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> None:
    raise ConversationRefused(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # local time, as in Hugging Face's renderer


class ChatTemplate:
    """A model's compiled template. `special_texts`: the texts of special tokens, which contents must not form."""

    def __init__(self, source: str, variables: dict[str, str], special_texts: frozenset[str]) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template has a syntax error in line {error.lineno}: {error.message}"
            ) from error
        self._variables = variables
        self._first_characters = frozenset(text[0] for text in special_texts if text)
        self._knows_developer = "developer" in source

    @classmethod
    def load(cls, folder: Path, special_texts: frozenset[str]) -> ChatTemplate:
        """Load `chat_template.jinja` of a model folder, else that of `tokenizer_config.json`. Raises TemplateError."""
        config_path, path = folder / "tokenizer_config.json", folder / "chat_template.jinja"
        try:
            config = json.loads(config_path.read_text(encoding="utf-8")) if config_path.is_file() else {}
            source = path.read_text(encoding="utf-8") if path.is_file() else config.get("chat_template")
        except (OSError, ValueError) as error:
            raise TemplateError(f"cannot read the chat template in {folder}: {error}") from error
        if isinstance(source, list):
            source = next((entry["template"] for entry in source if entry.get("name") == "default"), None)
        if not isinstance(source, str):
            raise TemplateError(f"{folder} has no chat template (chat_template.jinja)")
        return cls(source, _special_variables(config), special_texts)

    def render(self, turns: Sequence[Turn]) -> Rendered:
        """Render the conversation up to where the model's answer begins. Raises ConversationRefused."""
        contents = tuple(text for turn in turns for text in turn.texts)
        try:
            marks = Marks([content.text for content in contents])
        except NoMarksLeft as error:
            raise ConversationRefused("the text uses too many private-use code points") from error
        plain = self._run(turns, lambda index, text: text)
        for marked in (marks.whole, marks.core):
            try:
                segments = marks.split(self._run(turns, marked))
            except ConversationRefused:
                continue
            if segments is not None and "".join(segment.text for segment in segments) == plain:
                return Rendered(segments, contents)
        return Rendered(self._cut(turns, marks, plain), contents)

    def _cut(self, turns: Sequence[Turn], marks: Marks, plain: str) -> list[Segment]:
        rendered = self._run(turns, lambda index, text: marks.cut_at(text, self._first_characters))
        if rendered.replace(marks.cut, "") != plain:
            raise ConversationRefused("the model's chat template cannot render this text safely")
        return [Segment(piece, None) for piece in rendered.split(marks.cut) if piece]

    def _run(self, turns: Sequence[Turn], mark: Callable[[int, str], str]) -> str:
        messages, index = [], 0
        for turn in turns:
            pieces = []
            for text in turn.texts:
                pieces.append(mark(index, text.text))
                index += 1
            role = "system" if turn.role == "developer" and not self._knows_developer else turn.role
            messages.append({"role": role, "content": _JOINT.join(pieces)})
        try:
            return self._template.render(
                messages=messages, tools=None, documents=None, add_generation_prompt=True, **self._variables
            )
        except ConversationRefused:
            raise
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise ConversationRefused(f"the model's chat template failed: {error}") from error


def _special_variables(config: dict[str, Any]) -> dict[str, str]:
    """`bos_token` and the like of a `tokenizer_config.json`, where a token is a string or an object with its text."""
    variables = {}
    for name, value in config.items():
        if name.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                variables[name] = text
    return variables
