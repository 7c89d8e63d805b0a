"""Renders conversations with a model's chat template, in segments that say which text the client wrote.

Templates are code that comes with a model: they run in Jinja's immutable sandbox, with the functions of Hugging Face's
`apply_chat_template`. To find the client's texts again, they are marked before rendering (`segments.Marks`). Some
templates transform contents (trim, split, test the length), so each marked rendering is compared with a plain one, and
the first of these ways that leaves the text unchanged is used:

1. marks around each content;
2. marks inside its outer white space, for templates that trim;
3. no marks, but a cut after each character that may begin a special token, so that no special token is formed from the
   client's text. Such a prompt has no spans.

Of a tool's definition and of a call's arguments every string is marked; the span is from the first mark to the last,
and is tokenized as one text. For templates that read a schema, only names and descriptions are marked, in the same two
ways, and the rest is cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.sandbox
from msgspec import Struct

from gateway.conversation.messages import (
    CutArguments,
    Marking,
    Piece,
    is_word_of_schemas,
    messages_with_tools,
    messages_without_tools,
    one_call_each,
    pieces_of,
    strings_of,
)
from gateway.conversation.reasoning import TEMPLATE_VARIABLES
from gateway.conversation.segments import Marks, NoMarksLeft, Segment
from gateway.generation_request import Text, Tool, ToolCall, Turn
from model_files.model_documents import is_document, read_document
from prompt_cache.model_digest import template_files

_PROBES = ("first_probe", "second_probe")
_REASONING = ("<think>", "<|channel|>", "[THINK]")
_TOOLS = re.compile(r"\btools\b")
_PLACE = re.compile('"(?:\ud800|\\\\ud800)([0-9]+)"')
"""A string of half a surrogate pair, which no client can send, and a number."""


class TemplateError(Exception):
    """The template cannot be loaded. The message names the file or the reason."""


class ConversationRefused(Exception):
    """The template does not accept this conversation. The message says why."""


class Rendered(Struct, frozen=True):
    """A rendered prompt. `Segment.content` is an index into `contents`."""

    segments: list[Segment]
    contents: tuple[Piece, ...]


class _Unmarked(Marking):
    """Leaves everything as it is."""

    def text(self, index: int, text: str) -> str:
        return text

    def value(self, index: int, text: str) -> str:
        return text

    def free(self, index: int, text: str) -> str:
        return text

    def key(self, text: str) -> str:
        return text


class _Marked(Marking):
    """Marks texts with `mark`; values of JSON too if `deep`, else they are cut as its keys are."""

    def __init__(
        self, marks: Marks, first_characters: frozenset[str], mark: Callable[[int, str], str], *, deep: bool
    ) -> None:
        self._marks = marks
        self._first_characters = first_characters
        self._mark = mark
        self._deep = deep

    def text(self, index: int, text: str) -> str:
        return self._mark(index, text)

    def value(self, index: int, text: str) -> str:
        return self._marks.whole(index, text) if self._deep else self.key(text)

    def free(self, index: int, text: str) -> str:
        return self._marks.whole(index, text)

    def key(self, text: str) -> str:
        return text if is_word_of_schemas(text) else self._marks.cut_around(text, self._first_characters)


class _Cut(_Marked):
    """Marks nothing, and cuts everything."""

    def __init__(self, marks: Marks, first_characters: frozenset[str]) -> None:
        super().__init__(marks, first_characters, lambda _, text: marks.cut_at(text, first_characters), deep=False)

    def free(self, index: int, text: str) -> str:
        return self._marks.cut_at(text, self._first_characters)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """The JSON of a value. Arguments that were cut off stand in it as the model wrote them."""
    if isinstance(value, CutArguments):
        return value.written
    cut: list[str] = []

    def place_of(arguments: object) -> str:
        if not isinstance(arguments, CutArguments):
            raise TypeError(f"{type(arguments).__name__} is no JSON")
        cut.append(arguments.written)
        return f"\ud800{len(cut) - 1}"

    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, default=place_of, **options)
    return _PLACE.sub(lambda place: cut[int(place[1])], text) if cut else text


def _raise(message: str) -> None:
    raise ConversationRefused(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # local time, as in Hugging Face's renderer


class ChatTemplate:
    """A model's compiled template. `special_tokens`: texts by the names that templates know them by, such as
    `bos_token`; `special_texts`: the texts of all special tokens, which contents must not form. `tool_use`: the source
    of another template, for conversations with tools."""

    def __init__(
        self,
        source: str,
        special_tokens: dict[str, str],
        special_texts: frozenset[str],
        tool_use: str | None = None,
    ) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
            # one dictionary instead of Jinja's chain of two, which each rendering copies
            self._template.globals = dict(self._template.globals)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template has a syntax error in line {error.lineno}: {error.message}"
            ) from error
        self.special_tokens = special_tokens
        self._first_characters = frozenset(text[0] for text in special_texts if text)
        self._knows_developer = "developer" in source
        self._tool_use = None if tool_use is None else ChatTemplate(tool_use, special_tokens, special_texts)
        self.source = source + (tool_use or "")
        """Of both templates, if there are two."""
        self.knows_tools = _TOOLS.search(source) is not None
        self.reasons = any(marker in self.source for marker in _REASONING)
        """Whether its model marks its reasoning."""
        self.reasoning_variables = TEMPLATE_VARIABLES & jinja2.meta.find_undeclared_variables(environment.parse(source))
        if self._tool_use is not None:
            self.reasoning_variables |= self._tool_use.reasoning_variables
        """The variables by which it is told how much to reason."""
        self._one_call = self.knows_tools and not self._renders_two_calls()
        self._special = re.compile("|".join(map(re.escape, sorted(special_texts, reverse=True))) or r"(?!)")

    def _renders_two_calls(self) -> bool:
        """Whether the template renders two calls in one message. Some refuse them, others drop the second."""
        self._one_call = False
        for names in (_PROBES, _PROBES[:1]):
            calls = tuple(ToolCall("{}", "", id=name, name=name) for name in names)
            results = (Turn("tool", (Text("ok", ""),), name, name) for name in names)
            turns = (Turn("user", (Text("both", ""),)), Turn("assistant", calls), *results)
            try:
                rendered = self._run(turns, (), _Unmarked(), answer=True)
            except ConversationRefused:
                continue
            return names == _PROBES and all(name in rendered for name in names)
        return True  # where one call is refused too, it is not their number

    @classmethod
    def load(cls, folder: Path, special_texts: frozenset[str]) -> ChatTemplate:
        """Load the templates of a model folder, as transformers does: `chat_template.jinja` and those in
        `additional_chat_templates`, else those of `tokenizer_config.json`, one or a list with names. Of the others than
        `default`, `tool_use` is used. Raises TemplateError, GgufError."""
        config_path = folder / "tokenizer_config.json"
        try:
            config = json.loads(read_document(config_path)) if is_document(config_path) else {}
            named: dict[Any, Any] = {
                name: path.read_text(encoding="utf-8") for name, path in template_files(folder).items()
            }
        except (OSError, ValueError) as error:
            raise TemplateError(f"cannot read the chat template in {folder}: {error}") from error
        configured = config.get("chat_template")
        if not isinstance(configured, list):
            configured = [{"name": "default", "template": configured}]
        in_config = {entry.get("name"): entry.get("template") for entry in configured if isinstance(entry, dict)}
        named = {"default": in_config.get("default"), **(named or in_config)}
        default, tool_use = named.get("default"), named.get("tool_use")
        if not isinstance(default, str):
            raise TemplateError(f"{folder} has no chat template (chat_template.jinja)")
        if not (tool_use is None or isinstance(tool_use, str)):
            raise TemplateError(f"{folder}: the chat template tool_use is no text")
        try:
            return cls(default, _special_tokens(config), special_texts, tool_use)
        except TemplateError as error:
            raise TemplateError(f"{folder}: {error}") from error

    def render(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool] = (),
        *,
        continued: bool = False,
        variables: Mapping[str, object] = {},  # never changed
        check_length: Callable[[int], None] = lambda _: None,
    ) -> Rendered:
        """Render the conversation up to where the model's answer begins. `continued`: it begins where the last turn,
        which is the model's own and has text, ends. `variables`: those of `reasoning_variables` that the client gave.
        `check_length` is told the number of characters before the marked renderings, which take several times as much
        memory, and may refuse. Raises ConversationRefused, and what `check_length` raises."""
        if tools and self._tool_use is not None:
            return self._tool_use.render(
                turns, tools, continued=continued, variables=variables, check_length=check_length
            )
        pieces = pieces_of(turns, tools)
        run = partial(self._run, turns, tools, answer=not continued, variables=variables)
        plain = run(_Unmarked())
        check_length(len(plain) - (_length_after_last_text(plain, turns) if continued else 0))
        try:
            marks = Marks(list(strings_of(pieces)))
        except NoMarksLeft as error:
            raise ConversationRefused("the text uses too many private-use code points") from error
        last = sum(len(turn.texts) for turn in turns) - 1 if continued else None
        for marking in self._markings(marks, pieces):
            try:
                segments = marks.split(run(marking))
            except ConversationRefused:
                continue
            if segments is None or "".join(segment.text for segment in segments) != plain:
                continue
            if last is not None:
                segments = _up_to(segments, last)
            if segments:
                return Rendered(self._joined(segments, pieces), pieces)
        marking = _Cut(marks, self._first_characters)
        return Rendered(_cut(run(marking), marking, marks, plain, turns if continued else ()), pieces)

    def _markings(self, marks: Marks, pieces: Sequence[Piece]) -> Iterator[Marking]:
        structured = self.knows_tools and any(isinstance(piece, Tool | ToolCall) for piece in pieces)
        for deep in (True, False) if structured else (True,):
            for mark in (marks.whole, marks.core):
                yield _Marked(marks, self._first_characters, mark, deep=deep)

    def _joined(self, segments: list[Segment], pieces: Sequence[Piece]) -> list[Segment]:
        """The segments with each tool and each call as one, unless special tokens of the template lie within it."""
        joined: list[Segment] = []
        start: int | None = None
        """Where in `joined` the tool or call begins that may go on."""
        for segment in segments:
            if segment.content is None:
                joined.append(segment)
                continue
            if start is not None and joined[start].content == segment.content:
                between = "".join(piece.text for piece in joined[start + 1 :])
                if not self._special.search(between):
                    whole = f"{joined[start].text}{between}{segment.text}"
                    joined[start:] = [Segment(whole, segment.content)]
                    continue
            joined.append(segment)
            start = len(joined) - 1 if isinstance(pieces[segment.content], Tool | ToolCall) else None
        return joined

    def _run(self, turns: Sequence[Turn], tools: Sequence[Tool], marking: Marking, *, answer: bool,
             variables: Mapping[str, object] = {}) -> str:  # fmt: skip
        definitions = None
        if self.knows_tools:
            messages, definitions = messages_with_tools(turns, tools, marking)
            if self._one_call:
                messages = one_call_each(messages)
        else:
            messages = messages_without_tools(turns, tools, marking)
        if not self._knows_developer:
            for message in messages:
                if message["role"] == "developer":
                    message["role"] = "system"
        try:
            return self._template.render(
                messages=messages, tools=definitions, documents=None, add_generation_prompt=answer,
                **self.special_tokens, **variables,
            )  # fmt: skip
        except ConversationRefused:
            raise
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise ConversationRefused(f"the model's chat template failed: {error}") from error


def _cut(rendered: str, marking: Marking, marks: Marks, plain: str, continued: Sequence[Turn]) -> list[Segment]:
    """The segments of a rendering that is cut. `continued`: the turns, if the answer goes on with the last one."""
    if rendered.replace(marks.cut, "") != plain:
        raise ConversationRefused("the model's chat template cannot render this text safely")
    if continued:
        said = marking.text(0, continued[-1].texts[-1].text.strip())
        at = rendered.rfind(said)
        if at < 0:
            raise ConversationRefused("the model's chat template cannot continue this answer")
        rendered = rendered[: at + len(said)]
    return [Segment(piece, None) for piece in rendered.split(marks.cut) if piece]


def _length_after_last_text(rendered: str, turns: Sequence[Turn]) -> int:
    """How many characters follow the last text of the turns; all of them where the template changed it."""
    said = turns[-1].texts[-1].text.strip()
    at = rendered.rfind(said)
    return len(rendered) if at < 0 else len(rendered) - at - len(said)


def _up_to(segments: list[Segment], content: int) -> list[Segment]:
    """The segments up to the last one of this content; none if it is not there."""
    ends = [index for index, segment in enumerate(segments) if segment.content == content]
    return segments[: ends[-1] + 1] if ends else []


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """`bos_token` and the like of a `tokenizer_config.json`, where a token is a string or an object with its text."""
    texts = {}
    for name, value in config.items():
        if name.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                texts[name] = text
    return texts
