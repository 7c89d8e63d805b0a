"""Limits of the size and depth of a grammar in `Generate.grammar`, which gateway and replica both check."""

from __future__ import annotations

from typing import Any

MAX_GRAMMAR_CHARS = 65_536
"""Characters of a regular expression or of a Lark or GBNF grammar."""
MAX_SCHEMA_BYTES = 262_144
MAX_SCHEMA_DEPTH = 96
"""How deep objects and arrays of a JSON schema may be nested."""
MAX_CHOICE_TEXTS = 10_000
"""Texts of a `choice`."""
MAX_CHOICE_CHARS = 262_144
"""Characters of all texts of a `choice`, together."""
MAX_CALLABLE = 128
"""Tools that an answer must call one of."""
MAX_GROUP_DEPTH = 200
"""How deep groups of a regular expression or of a grammar may be nested."""
_MAX_TEXT_BYTES = 4 * MAX_SCHEMA_BYTES


class GrammarTooLarge(ValueError):
    """A grammar is over one of these limits; the message says which one."""


def check_grammar_text(text: str) -> None:
    """Check the JSON text of `Generate.grammar` before it is parsed. Raises GrammarTooLarge."""
    if len(text) > _MAX_TEXT_BYTES:
        raise GrammarTooLarge(f"it has {len(text)} characters, more than {_MAX_TEXT_BYTES}")


def check_grammar(kind: str, body: Any) -> None:
    """Check the parsed value under the key `kind` of `Generate.grammar`. Raises GrammarTooLarge."""
    match kind, body:
        case "json_schema", _:
            check_depth(body)
        case "regex" | "grammar", str():
            _check_expression(body)
        case "calls", {"lark": str(), "schemas": list()}:
            _check_expression(body["lark"])
            if len(body["schemas"]) > MAX_CALLABLE:
                raise GrammarTooLarge(f"it has {len(body['schemas'])} tools, more than {MAX_CALLABLE}")
            for schema in body["schemas"]:
                check_depth(schema)
        case "choice", list():
            if len(body) > MAX_CHOICE_TEXTS:
                raise GrammarTooLarge(f"it has {len(body)} texts, more than {MAX_CHOICE_TEXTS}")
            chars = sum(len(text) for text in body if isinstance(text, str))
            if chars > MAX_CHOICE_CHARS:
                raise GrammarTooLarge(f"its texts have {chars} characters, more than {MAX_CHOICE_CHARS}")


def check_depth(value: Any) -> None:
    """Check how deep a parsed JSON value is nested, without recursion. Raises GrammarTooLarge."""
    level, depth = [value], 0
    while level:
        level = [
            item
            for container in level
            if isinstance(container, dict | list)
            for item in (container.values() if isinstance(container, dict) else container)
        ]
        depth += 1
        if depth > MAX_SCHEMA_DEPTH + 1:
            raise GrammarTooLarge(f"it is nested more than {MAX_SCHEMA_DEPTH} levels deep")


def _check_expression(text: str) -> None:
    if len(text) > MAX_GRAMMAR_CHARS:
        raise GrammarTooLarge(f"it has {len(text)} characters, more than {MAX_GRAMMAR_CHARS}")
    # Brackets inside quoted text count as well: this is an upper bound of the parser's recursion. The trial process
    # decides exactly.
    depth = 0
    for character in text:
        if character in "([{":
            depth += 1
            if depth > MAX_GROUP_DEPTH:
                raise GrammarTooLarge(f"its groups are nested more than {MAX_GROUP_DEPTH} levels deep")
        elif character in ")]}" and depth:
            depth -= 1
