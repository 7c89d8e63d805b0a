"""Rewrites what JSON schemas say of texts: patterns in the library's syntax, formats as patterns, or a refusal by name.

Formats that no specification of JSON schema defines are annotations, as is the media type of a content.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.grammar.ecma_patterns import UnknownPattern, translate_pattern
from engine.grammar.schema_nodes import Node, Schema, types_of, unsupported

_HEX = "[0-9a-fA-F]"
_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_LEAP_DAY = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29"
_DATE = (
    f"(?:{_LEAP_DAY}|[0-9]{{4}}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])))"
)
_TIME = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:[.][0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_BASE64, _BASE64URL = (
    f"^(?:[{digits}]{{4}})*(?:[{digits}]{{2}}==|[{digits}]{{3}}=)?$" for digits in ("A-Za-z0-9+/", r"A-Za-z0-9_\-")
)
_CONDITIONS: dict[str, Schema | None] = {
    # What the library has. Its dates have a 29th of February each year.
    **{form: {"format": form} for form in ["duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"]},
    # Those of pydantic have its names.
    "date": {"pattern": f"^{_DATE}$"},
    "date-time": {"pattern": f"^{_DATE}[tT]{_TIME}$"},
    "base64": {"pattern": _BASE64},
    "base64url": {"pattern": _BASE64URL},
    "json-pointer": {"pattern": f"^{_POINTER}$"},
    "relative-json-pointer": {"pattern": f"^(?:0|[1-9][0-9]*)(?:#|{_POINTER})$"},
    **{
        f"uuid{n}": {"pattern": f"^{_HEX}{{8}}-{_HEX}{{4}}-{n}{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}$"}
        for n in range(1, 9)
    },
    "ipvanyaddress": {"anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]},
    # Formats of JSON schema that nothing here holds.
    **dict.fromkeys(["idn-email", "idn-hostname", "iri", "iri-reference", "regex", "uri-reference", "uri-template"]),
}
"""Format -> what a text of it fulfils; None for one that is refused. Others are annotations."""
_ENCODINGS = {
    "base64": _BASE64,
    "base64url": _BASE64URL,
    "base32": "^(?:[A-Z2-7]{8})*(?:[A-Z2-7]{2}={6}|[A-Z2-7]{4}={4}|[A-Z2-7]{5}===|[A-Z2-7]{7}=)?$",
    "base16": "^(?:[0-9A-F]{2})*$",
}


def prepare_texts(nodes: Sequence[Node]) -> None:
    """Rewrite patterns, formats and encodings in place. Raises InvalidGrammar."""
    for schema, path in nodes:
        conditions: list[Schema] = []
        if "pattern" in schema:
            first, *others = _translate(schema["pattern"], path, "pattern")
            schema["pattern"] = first
            conditions += [{"pattern": pattern} for pattern in others]
        if isinstance(named := schema.get("patternProperties"), dict):
            schema["patternProperties"] = {_translate_name(pattern, path): value for pattern, value in named.items()}
        for keyword in ("contentMediaType", "contentSchema"):
            schema.pop(keyword, None)
        types = types_of(schema)
        if types is None or "string" in types:
            conditions += _formats(schema, path)
        _add_conditions(schema, conditions)


def _formats(schema: Schema, path: str) -> list[Schema]:
    """Conditions in place of the format and the encoding, where the library does not have it."""
    conditions: list[Schema] = []
    form, encoding = schema.get("format"), schema.pop("contentEncoding", None)
    if isinstance(form, str):
        condition = _CONDITIONS.get(form, {})
        if condition is None:
            raise unsupported(path, "format", "describe the text with `pattern`", f"{form!r}")
        del schema["format"]
        conditions.append(dict(condition))
    if isinstance(encoding, str) and encoding.lower() in _ENCODINGS and encoding != form:
        conditions.append({"pattern": _ENCODINGS[encoding.lower()]})
    return conditions


def _add_conditions(schema: Schema, conditions: list[Schema]) -> None:
    """Add what the text must fulfil too: in the schema itself where there is room, else as `allOf`."""
    for condition in conditions:
        if condition.keys().isdisjoint(schema):
            schema.update(condition)
        else:
            of_texts = {"type": "string"} if schema.get("type") == "string" else {}
            schema["allOf"] = [*schema.get("allOf", []), condition | of_texts]


def _translate(pattern: Any, path: str, keyword: str) -> list[str]:
    if not isinstance(pattern, str):
        raise unsupported(path, keyword, "give a text", repr(pattern)[:40])
    try:
        return translate_pattern(pattern)
    except UnknownPattern as unknown:
        raise unsupported(path, keyword, "write it without", f"with {unknown}") from unknown


def _translate_name(pattern: str, path: str) -> str:
    first, *others = _translate(pattern, path, "patternProperties")
    if others:
        raise unsupported(path, "patternProperties", "write it without", "with a look-ahead")
    return first
