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
    output_format: str, tools: Sequence[Tool], choice: ToolChoice, named: frozenset[str]
) -> dict[str, object]:
    """The body of a grammar of the kind `calls`, for an answer of one call or more of these tools.

    `named`: the texts of the tokens that grammars know by name. Raises NoCallGrammar.
    """
    form = _FORMS.get(output_format)
    if form is None:
        raise NoCallGrammar(output_format)

    def rule(parts: Sequence[str]) -> str:
        return " ".join(_marker(part, named) if part.startswith(_MARKERS) else part for part in parts if part)

    several = choice.parallel and form.separator != ""
    lines = [
        f"start: {rule([*form.opens.split(' '), 'call', f'({form.separator} call)*' if several else '', form.closes])}",
        f"call: {' | '.join(f'call_{at}' for at in range(len(tools)))}",
        *(f"call_{at}: {rule(form.call(tool.name, f'@{at}'))}" for at, tool in enumerate(tools)),
    ]
    return {"lark": "\n".join(lines), "schemas": [json.loads(tool.schema) for tool in tools]}


def free_call_grammar(
    output_format: str, tools: Sequence[Tool], choice: ToolChoice, named: frozenset[str]
) -> dict[str, object] | None:
    """The body of a grammar for an answer that may be text, and whose calls, if any, fulfil the tools' schemas.

    Only where calls begin with a marker that is one token: no text can be taken for it. None elsewhere.
    """
    form, trigger = _FORMS.get(output_format), _TRIGGERS.get(output_format, "")
    if form is None or trigger not in named or not tools:
        return None
    body = call_grammar(output_format, tools, choice, named)
    calls, _, rules = str(body["lark"]).removeprefix("start: ").partition("\n")
    lark = f"start: TEXT? calls?\ncalls: {calls}\n{rules}\nTEXT: /(?s:.)+/"
    schemas = [
        json.loads(tool.schema) if tool.strict else plain_schema(json.loads(tool.schema), _DEEPEST) for tool in tools
    ]
    return {"lark": lark, "schemas": schemas}


_TRIGGERS = {
    "hermes": "<tool_call>",
    "qwen": "<tool_call>",
    "mistral": "[TOOL_CALLS]",
    "deepseek": "<｜tool▁calls▁begin｜>",
}
_DEEPEST = 8
_LARGEST_EXACT = 2**53
_TYPES = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})


def plain_schema(schema: object, depth: int) -> dict[str, object]:
    """What of a schema every grammar engine knows: names, types, choices, what must be there. Without `strict` the rest
    is a hint, as is all of a schema that cannot be read: nobody's request is refused for it."""
    if not isinstance(schema, dict) or depth == 0:
        return {}
    kind, plain = schema.get("type"), dict[str, object]()
    choices = schema.get("enum")
    if isinstance(choices, list) and choices and all(_is_plain(choice) for choice in choices):
        return {"enum": choices}
    kinds = kind if isinstance(kind, list) else [kind]
    if kinds and all(isinstance(one, str) and one in _TYPES for one in kinds):
        plain["type"] = kind
    properties = schema.get("properties")
    if isinstance(properties, dict) and kind in ("object", None):
        plain |= {
            "type": "object",
            "properties": {str(key): plain_schema(value, depth - 1) for key, value in properties.items()},
            "additionalProperties": not properties and depth < _DEEPEST,
        }
        required = schema.get("required")
        if isinstance(required, list):
            plain["required"] = [key for key in required if isinstance(key, str) and key in properties]
    if isinstance(schema.get("items"), dict) and kind == "array":
        plain["items"] = plain_schema(schema["items"], depth - 1)
    options = schema.get("anyOf")
    if isinstance(options, list) and options and not plain:
        return {"anyOf": [plain_schema(one, depth - 1) for one in options]}
    return plain


def _is_plain(choice: object) -> bool:
    """Whether every grammar engine can hold an output to it: some keep numbers as doubles."""
    return choice is None or isinstance(choice, str) or (isinstance(choice, int) and abs(choice) <= _LARGEST_EXACT)


def _marker(part: str, named: frozenset[str]) -> str:
    """A marker as a Lark symbol: a token by its name in angle brackets, anything else as text."""
    if part not in named:
        return _text(part)
    return part if part.startswith("<") and part.endswith(">") else f"<{part}>"
