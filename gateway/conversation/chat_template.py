"""A model's chat template: a conversation to text, in segments that say which part the client wrote.

Templates come with models and are code: they run in Jinja's immutable sandbox, with what Hugging Face's own renderer
offers. Some transform contents (trim, split, test the length); the marked rendering is therefore compared with a plain
one, and the first way of marking that leaves the text alone is taken:

1. marks around each whole content;
2. marks inside its outer white space (the template trims);
3. no marks, but a cut after each character that may begin a special token, so that none is made of the client's text;
   such a prompt has no spans for its contents.
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
"""Between the text parts of one message: templates take one string."""


class TemplateError(Exception):
    """The template cannot be used; the message names the file or the reason."""


class ConversationRefused(Exception):
    """The template does not accept this conversation; the message is the template's."""


class Rendered(Struct, frozen=True):
    """A rendered prompt; a content segment's index points into `contents`."""

    segments: list[Segment]
    contents: tuple[Text, ...]


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> None:
    raise ConversationRefused(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # templates print the local date, as elsewhere


class ChatTemplate:
    """One model's template, compiled. `special_texts` are the special tokens that contents must not forge."""

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
            raise TemplateError(f"the chat template is broken at line {error.lineno}: {error.message}") from error
        self._variables = variables
        self._first_characters = frozenset(text[0] for text in special_texts if text)
        self._knows_developer = "developer" in source

    @classmethod
    def load(cls, folder: Path, special_texts: frozenset[str]) -> ChatTemplate:
        """The template of a model folder: `chat_template.jinja`, else the one in `tokenizer_config.json`."""
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
        """The conversation as the model is to see it, ready for its answer.

        Raises ConversationRefused with the template's reason.
        """
        contents = tuple(text for turn in turns for text in turn.texts)
        try:
            marks = Marks([content.text for content in contents])
        except NoMarksLeft as error:
            raise ConversationRefused("the text uses too many private code points") from error
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
    """`bos_token` and its like; a token is written as text or as an object with its text."""
    variables = {}
    for name, value in config.items():
        if name.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                variables[name] = text
    return variables
