"""How each family of models writes reasoning and calls. One class a way of writing, one line a family.

Sources: the families' own chat templates and model cards; the markers are facts of their vocabularies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from msgspec import Struct

from gateway.conversation.messages import TEXT_CALL
from gateway.conversation.output.call_payloads import CallPayload, JsonCalls, NamedJson, PythonCalls, Schemas, XmlCall
from gateway.conversation.output.marked_parser import MarkedParser

_SPACE = " \t\r\n"
_LONGEST_NAME = 256
_FENCE = "` \t\r\n"


class TaggedCalls(MarkedParser):
    """Hermes, Qwen 2.5 and 3, Qwen3-Coder: each call between `<tool_call>` and `</tool_call>`, as JSON or as XML."""

    MARKERS: ClassVar[Mapping[str, str]] = {"<tool_call>": "call", "</tool_call>": "end"}

    def __init__(self, tokens: Mapping[int, str], schemas: Schemas, *, reasons: bool | None = False) -> None:
        super().__init__(tokens, schemas, reasons=reasons)
        self._in_call = False

    def mark(self, name: str) -> None:
        """Calls begin and end."""
        self.close_payload()
        self._in_call = name == "call"

    def text(self, text: str) -> None:
        """A call's text tells by its first character how it is written."""
        if self._in_call:
            inner = text.lstrip(_SPACE)
            if inner:
                self.payload = XmlCall(self.log, self.schemas) if inner[0] == "<" else JsonCalls(self.log)
                self._take_text(inner)
            return
        super().text(text)

    def after_payload(self, text: str) -> str:
        """What stands between a call and its end marker is text, if it is more than white space."""
        self._in_call = False
        return text


class LeadingCalls(MarkedParser):
    """Families whose answer is either calls or text, told by how it begins."""

    MARKERS: ClassVar[Mapping[str, str]] = {"<|python_tag|>": "calls"}
    OPENS = "{"

    def __init__(self, tokens: Mapping[int, str], schemas: Schemas, *, reasons: bool | None = False) -> None:
        super().__init__(tokens, schemas, reasons=reasons)
        self._decided = False
        self._spaces = ""

    def mark(self, name: str) -> None:
        """A marker before calls says nothing more than that they come."""
        if name == "calls":
            self._decided = False

    def text(self, text: str) -> None:
        """Text, or the beginning of calls."""
        if self._decided:
            super().text(text)
            return
        inner = text.lstrip(_SPACE)
        if not inner:
            self._spaces += text
            return
        self._decided = True
        if inner[0] == self.OPENS:
            self.payload = self.calls()
            self._take_text(inner)
        else:
            super().text(self._spaces + text)

    def calls(self) -> CallPayload:
        """What reads the calls."""
        return JsonCalls(self.log, many=True)


class PythonicCalls(LeadingCalls):
    """Llama 3.2 and 4: `[f(a=1), g(b='x')]`, maybe between `<|python_start|>` and `<|python_end|>`."""

    MARKERS: ClassVar[Mapping[str, str]] = {"<|python_start|>": "calls", "<|python_end|>": "end"}
    OPENS = "["

    def calls(self) -> CallPayload:
        """Calls as Python writes them."""
        return PythonCalls(self.log)


class TextCalls(MarkedParser):
    """Models whose template knows no tools: `Tool call: {"name": …, "arguments": …}`, as they are told to write it."""

    MARKERS: ClassVar[Mapping[str, str]] = {TEXT_CALL: "call"}

    def mark(self, name: str) -> None:
        """A call begins."""
        self.close_payload()
        self.payload = JsonCalls(self.log)


class FunctoolsCalls(MarkedParser):
    """Phi-4-mini: `functools[{"name": …, "arguments": …}, …]`."""

    MARKERS: ClassVar[Mapping[str, str]] = {"functools[": "calls"}

    def mark(self, name: str) -> None:
        """The list of calls begins."""
        self.close_payload()
        self.payload = JsonCalls(self.log, many=True)


class MistralCalls(MarkedParser):
    """Mistral: `[TOOL_CALLS]` and a JSON array, or for each call the marker, its name, maybe `[CALL_ID]` and an id, and
    `[ARGS]` with its arguments. Reasoning stands between `[THINK]` and `[/THINK]`."""

    MARKERS: ClassVar[Mapping[str, str]] = {
        "[TOOL_CALLS]": "calls",
        "[CALL_ID]": "id",
        "[ARGS]": "arguments",
    }
    REASONING = ("[THINK]", "[/THINK]")

    def __init__(self, tokens: Mapping[int, str], schemas: Schemas, *, reasons: bool | None = False) -> None:
        super().__init__(tokens, schemas, reasons=reasons)
        self._part = "text"
        self._name = ""
        self._id = ""

    def mark(self, name: str) -> None:
        """Each part of a call follows its marker."""
        if name == "calls":
            self.close_payload()
            self._end_name()
            self._part = "name"
        elif name == "id" and self._part == "name":
            self._part, self._id = "id", ""
        elif name == "arguments" and self._part in ("name", "id"):
            self._begin()

    def text(self, text: str) -> None:
        """A name until the arguments begin, or an array of whole calls."""
        if self._part == "text":
            super().text(text)
        elif self._part == "id":
            self._id += text
            if "{" in self._id:  # the marker of the arguments is missing
                _, brace, rest = self._id.partition("{")
                self._begin()
                self._take_text(brace + rest)
            elif len(self._id) > _LONGEST_NAME:
                self._end_name()
        elif self._part == "name":
            self._name += text
            inner = self._name.lstrip(_SPACE)
            if inner[:1] in ("[", "{") and inner:
                self._part = "text"
                self.payload = JsonCalls(self.log, many=True)
                self._take_text(inner)
            elif "{" in inner:  # v13 and later may leave [ARGS] out
                self._name, brace, rest = inner.partition("{")
                self._begin()
                self._take_text(brace + rest)
            elif len(inner) > _LONGEST_NAME:
                self._part = "text"
                super().text(self._name)

    def end(self) -> None:
        """A name without arguments is text."""
        self._end_name()
        super().end()

    def _end_name(self) -> None:
        if self._part in ("name", "id"):
            self.log.text(self._name + self._id)
        self._part, self._name, self._id = "text", "", ""

    def _begin(self) -> None:
        self.payload = NamedJson(self.log, self._name.strip())
        self._part, self._name = "text", ""


class DeepSeekCalls(MarkedParser):
    """DeepSeek V3 and R1 (type, name, JSON in a fence) and V3.1 (name, JSON), each call between its two markers."""

    MARKERS: ClassVar[Mapping[str, str]] = {
        "<｜tool▁calls▁begin｜>": "calls",
        "<｜tool▁call▁begin｜>": "call",
        "<｜tool▁sep｜>": "sep",
        "<｜tool▁call▁end｜>": "end",
        "<｜tool▁calls▁end｜>": "calls end",
    }

    def __init__(self, tokens: Mapping[int, str], schemas: Schemas, *, reasons: bool | None = False) -> None:
        super().__init__(tokens, schemas, reasons=reasons)
        self._part = "text"
        self._held = ""

    def mark(self, name: str) -> None:
        """The parts of a call."""
        if name == "call":
            self.close_payload()
            self._end_name()
            self._part = "kind"
        elif name == "sep" and self._part == "kind":
            if self._held.strip() == "function":
                self._part, self._held = "name", ""
            else:
                self._begin(self._held)
        elif name == "end":
            if isinstance(self.payload, NamedJson):
                self.payload.end()
            self.close_payload()
            self._end_name()
            self._part = "between"
        elif name in ("calls", "calls end"):
            self.close_payload()
            self._end_name()
            self._part = "between" if name == "calls" else "text"

    def text(self, text: str) -> None:
        """Names up to the line's end or the marker, then the arguments. Between calls fences are nothing."""
        if self._part == "text" or (self._part == "between" and text.strip(_FENCE)):
            super().text(text)
        elif self._part in ("kind", "name"):
            self._held += text
            if len(self._held) > _LONGEST_NAME:
                self._end_name()
                return
            name, newline, rest = self._held.partition("\n")
            if self._part == "name" and newline:
                self._begin(name)
                self._take_text(rest)

    def after_payload(self, text: str) -> str:
        """A fence may follow the arguments."""
        self._part = "between"
        return text

    def end(self) -> None:
        """A name without arguments is text."""
        self._end_name()
        super().end()

    def _end_name(self) -> None:
        if self._part in ("kind", "name"):
            self.log.text(self._held)
        self._part, self._held = "text", ""

    def _begin(self, name: str) -> None:
        self._part, self._held = "arguments", ""
        self.payload = NamedJson(self.log, name.strip())


class HarmonyChannels(MarkedParser):
    """gpt-oss: messages in channels. `analysis` is reasoning, `final` the answer, a recipient `functions.NAME` a call.

    The recipient stands before the channel or behind it; `<|constrain|>` and a format may follow.
    """

    MARKERS: ClassVar[Mapping[str, str]] = {
        "<|start|>": "start",
        "<|channel|>": "channel",
        "<|constrain|>": "constrain",
        "<|message|>": "message",
        "<|end|>": "end",
        "<|call|>": "call",
        "<|return|>": "return",
    }
    REASONING = ()

    def __init__(self, tokens: Mapping[int, str], schemas: Schemas, *, reasons: bool | None = False) -> None:
        super().__init__(tokens, schemas, reasons=reasons)
        self._part = "header"
        self._header = ""
        self._channel = "final"

    @property
    def reasoning(self) -> bool:
        """Whether a message of the analysis is open."""
        return self._part == "content" and self._channel == "analysis"

    def mark(self, name: str) -> None:
        """Headers up to the message, then its content up to the end. An analysis ends by its marker alone, as the
        replica has it (`ReasoningMarkers.end`)."""
        if self.reasoning and name != "end":
            return
        if name == "start":
            self._part, self._header = "header", ""
        elif name == "channel":
            self._part = "header"
            self._header += " <|channel|>"
        elif name == "constrain":
            self._part = "format"
        elif name == "message":
            self._begin()
        elif name in ("end", "call", "return"):
            if isinstance(self.payload, NamedJson):
                self.payload.end()
            self.close_payload()
            self._part, self._header = "header", ""

    def text(self, text: str) -> None:
        """A header's words, or a message's content."""
        if self._part == "header":
            self._header += text
            if len(self._header) > 4 * _LONGEST_NAME:
                self._end_header()
        elif self._part == "content":
            if self._channel == "analysis":
                self.log.reasoning(text)
            else:
                self.log.text(text)

    def _begin(self) -> None:
        header, self._header = self._header.replace("<|channel|>", " channel=").split(), ""
        joined = " ".join(header).replace("channel= ", "channel=").split()
        self._part = "content"
        self._channel = next((word.removeprefix("channel=") for word in joined if word.startswith("channel=")), "final")
        recipient = next((word.removeprefix("to=") for word in joined if word.startswith("to=")), "")
        if recipient.startswith("functions."):
            self._part = "call"
            self.payload = NamedJson(self.log, recipient.removeprefix("functions."))

    def after_payload(self, text: str) -> str:
        """What stands between a call's arguments and its end is text, if it is more than white space."""
        self._part, self._channel = "content", "final"
        return text

    def end(self) -> None:
        """A header without a message is text: this output has no channels."""
        self._end_header()
        super().end()

    def _end_header(self) -> None:
        if self._part == "header" and "<|channel|>" not in self._header:
            self.log.text(self._header)
            self._part, self._channel, self._header = "content", "final", ""


class PlainText(MarkedParser):
    """Families that write no calls: all is text, and reasoning where they mark it."""

    def mark(self, name: str) -> None:
        """There are no markers of calls."""


class ReasoningMarkers(Struct, frozen=True):
    """The texts around a family's reasoning. `follows`: what the model writes behind `end`, where that does not lead to
    the answer by itself. `header`: what stands between `begin` and the reasoning, `answer`: before an answer that is no
    call; families without them have neither."""

    begin: str = "<think>"
    end: str = "</think>"
    follows: str = ""
    header: str = ""
    answer: str = ""


_THINK = ReasoningMarkers()
_ANALYSIS = ReasoningMarkers(
    "<|channel|>analysis", "<|end|>", "<|start|>assistant", "<|message|>", "<|channel|>final<|message|>"
)


class OutputFormat(Struct, frozen=True):
    """A family's way of writing its output. `trigger`: the text with which calls begin, if one marker always does."""

    parser: type[MarkedParser]
    trigger: str = ""
    reasoning: ReasoningMarkers = _THINK


OUTPUT_FORMATS: Mapping[str, OutputFormat] = {
    "hermes": OutputFormat(TaggedCalls, "<tool_call>"),
    "qwen": OutputFormat(TaggedCalls, "<tool_call>"),
    "llama3_json": OutputFormat(LeadingCalls),
    "pythonic": OutputFormat(PythonicCalls),
    "mistral": OutputFormat(MistralCalls, "[TOOL_CALLS]", ReasoningMarkers("[THINK]", "[/THINK]")),
    "deepseek": OutputFormat(DeepSeekCalls, "<｜tool▁calls▁begin｜>"),
    "harmony": OutputFormat(HarmonyChannels, "", _ANALYSIS),
    "phi4_mini": OutputFormat(FunctoolsCalls, "functools["),
    "gemma": OutputFormat(PythonicCalls),
    "text": OutputFormat(TextCalls, TEXT_CALL),
    "none": OutputFormat(PlainText),
}
"""A served model's `output_format` → how to read what it writes."""


def detect_output_format(template: str, special_texts: frozenset[str]) -> str:
    """The format that a chat template asks its model for, by the markers in it: "text" where it knows no tools."""
    if "tools" not in template:
        return "text"
    for marker, name in (
        ("<|channel|>", "harmony"),
        ("<｜tool▁call", "deepseek"),
        ("[TOOL_CALLS]", "mistral"),
        ("<tool_call>", "hermes"),
        ("functools", "phi4_mini"),
        ("<|python_start|>", "pythonic"),
        ("<|python_tag|>", "llama3_json"),
    ):
        if marker in template or (marker in special_texts and "tools" in template):
            return name
    return "llama3_json" if "parameters" in template else "hermes"
