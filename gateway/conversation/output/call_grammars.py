"""The grammar of an answer that must call tools, in the words of each family.

The prompt keeps all tools, whatever may be called, so that its prefix, and with it the cache, stays the same. The
grammar is a Lark text for llguidance with a place `@N` for the schema of the N-th tool's arguments, as the protocol's
grammar kind `calls` has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from gateway.generation_request import Tool, ToolChoice


class NoCallGrammar(Exception):
    """The family has no form of calls that a grammar could hold an answer to."""


class _Form(Struct, frozen=True):
    """How calls are written: all of them between `opens` and `closes`, with `separator` between two.

    `call`: a tool's name and the place of its arguments → one call, as parts of a Lark rule. A part in angle brackets
    is a marker: a token where the model has it as one, else its text.
    """

    call: Callable[[str, str], Sequence[str]]
    opens: str = ""
    separator: str = ""
    closes: str = ""


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json_call(arguments: str) -> Callable[[str, str], Sequence[str]]:
    def call(name: str, place: str) -> Sequence[str]:
        return _text(f'{{"name": {json.dumps(name)}, "{arguments}": '), place, _text("}")

    return call


def _tagged(name: str, place: str) -> Sequence[str]:
    return "<tool_call>", _text("\n"), *_json_call("arguments")(name, place), _text("\n"), "</tool_call>"


def _as_text(name: str, place: str) -> Sequence[str]:
    begin, place, end = _json_call("arguments")(name, place)
    return _text("Tool call: " + json.loads(begin)), place, end


def _harmony(name: str, place: str) -> Sequence[str]:
    header = _text(f"commentary to=functions.{name} ")
    return "<|channel|>", header, "<|constrain|>", _text("json"), "<|message|>", place, "<|call|>"


def _deepseek(name: str, place: str) -> Sequence[str]:
    fence = _text(f"{name}\n```json\n")
    begin, sep, end = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    return begin, _text("function"), sep, fence, place, _text("\n```"), end


_FORMS: Mapping[str, _Form] = {
    "hermes": _Form(_tagged, separator=_text("\n")),
    "qwen": _Form(_tagged, separator=_text("\n")),  # as JSON, which its parser reads too
    "llama3_json": _Form(_json_call("parameters"), separator=_text("; ")),
    "mistral": _Form(_json_call("arguments"), opens='[TOOL_CALLS] "["', separator=_text(", "), closes=_text("]")),
    "deepseek": _Form(_deepseek, opens="<｜tool▁calls▁begin｜>", separator=_text("\n"), closes="<｜tool▁calls▁end｜>"),
    "harmony": _Form(_harmony),
    "phi4_mini": _Form(_json_call("arguments"), opens=_text("functools["), separator=_text(", "), closes=_text("]")),
    "text": _Form(_as_text, separator=_text("\n")),
}
_MARKERS = ("<", "[TOOL")


def call_grammar(
    output_format: str, tools: Sequence[Tool], choice: ToolChoice, special: frozenset[str]
) -> dict[str, object]:
    """The body of a grammar of the kind `calls`, for an answer of one call or more of these tools.

    `special`: the texts of the model's special tokens. Raises NoCallGrammar.
    """
    form = _FORMS.get(output_format)
    if form is None:
        raise NoCallGrammar(output_format)

    def rule(parts: Sequence[str]) -> str:
        return " ".join(_marker(part, special) if part.startswith(_MARKERS) else part for part in parts if part)

    several = choice.parallel and form.separator != ""
    lines = [
        f"start: {rule([*form.opens.split(' '), 'call', f'({form.separator} call)*' if several else '', form.closes])}",
        f"call: {' | '.join(f'call_{at}' for at in range(len(tools)))}",
        *(f"call_{at}: {rule(form.call(tool.name, f'@{at}'))}" for at, tool in enumerate(tools)),
    ]
    return {"lark": "\n".join(lines), "schemas": [json.loads(tool.schema) for tool in tools]}


def _marker(part: str, special: frozenset[str]) -> str:
    """A marker as a Lark symbol: a special token by its name in angle brackets, anything else as text."""
    if part not in special:
        return _text(part)
    return part if part.startswith("<") and part.endswith(">") else f"<{part}>"
