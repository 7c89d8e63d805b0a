"""Hostile and nonsensical grammars by seed: schemas, regular expressions, Lark and GBNF grammars, choices, garbage.

Each is the text of `Generate.grammar`. Half are known ways to exhaust a parser, with random sizes. Half are random
pieces of the languages themselves, to cover what nobody thought of.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

_LETTERS = "abcxyz019_ -äß€"
_FORMATS = ["date", "email", "uuid", "uri", "ipv6", "hostname", "duration", "wizard"]


def hostile_grammar(seed: int) -> str:
    """The grammar of this seed."""
    chance = random.Random(seed)
    kind = chance.randrange(10)
    if kind < 4:
        return json.dumps({"json_schema": _schema(chance) if chance.random() < 0.5 else _bad_schema(chance)})
    if kind < 6:
        return json.dumps({"regex": _regex(chance, 6) if chance.random() < 0.5 else _bad_regex(chance)})
    if kind < 9:
        return json.dumps({"grammar": _lark(chance) if chance.random() < 0.5 else _bad_lark(chance)})
    return _other(chance)


def _size(chance: random.Random, most: int) -> int:
    """Small as often as large."""
    return int(most ** chance.random())


# ------------------------------------------------------------ schemas


def _schema(chance: random.Random, depth: int = 5) -> Any:
    def inner() -> Any:
        return _schema(chance, depth - 1)

    if depth <= 0 or chance.random() < 0.1:
        return chance.choice(
            [True, False, {}, {"type": "string"}, {"type": "null"}, {"$ref": "#"}, {"$ref": "#/$defs/a"}]
        )
    schema: dict[str, Any] = {}
    if chance.random() < 0.8:
        schema["type"] = chance.choice(
            ["object", "array", "string", "integer", "number", "boolean", ["string", "null"]]
        )
    number = chance.choice([0, 1, -1, 3, 17, 999_983, 10**9, 10**19, 0.001, 1e300, -(10**12)])
    ways: list[tuple[str, Callable[[], Any]]] = [
        ("properties", lambda: {_name(chance): inner() for _ in range(_size(chance, 12))}),
        ("required", lambda: [_name(chance) for _ in range(_size(chance, 4))]),
        ("additionalProperties", inner),
        ("patternProperties", lambda: {_regex(chance, 2): inner() for _ in range(2)}),
        ("propertyNames", inner),
        ("items", inner),
        ("prefixItems", lambda: [inner() for _ in range(_size(chance, 6))]),
        (chance.choice(["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"]),
         lambda: _size(chance, 100_000)),
        (chance.choice(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]), lambda: number),
        (chance.choice(["anyOf", "oneOf", "allOf"]), lambda: [inner() for _ in range(_size(chance, 5))]),
        ("enum", lambda: [chance.choice([None, 1, "a", [1], {"a": 2}]) for _ in range(_size(chance, 20))]),
        ("pattern", lambda: _regex(chance, 4)),
        ("format", lambda: chance.choice(_FORMATS)),
        ("$defs", lambda: {"a": inner(), "b": inner()}),
        ("$ref", lambda: chance.choice(["#", "#/$defs/a", "#/$defs/b", "#/nowhere", "https://example.com/x"])),
        ("x-guidance", lambda: {"item_separator": _regex(chance, 2)}),
    ]  # fmt: skip
    for keyword, value in chance.sample(ways, _size(chance, 5)):
        schema[keyword] = value()
    return schema


def _name(chance: random.Random) -> str:
    return "".join(chance.choice(_LETTERS) for _ in range(_size(chance, 12)))


def _bad_schema(chance: random.Random) -> Any:
    way, size = chance.randrange(13), _size(chance, 4000)
    if way == 0:  # references from one to the next
        defs: dict[str, Any] = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(size)}
        return {"$ref": "#/$defs/a0", "$defs": {**defs, f"a{size}": {"type": "string"}}}
    if way == 1:  # the same through properties, and back
        defs = {f"a{n}": _object({"x": {"$ref": f"#/$defs/a{(n + 1) % size}"}}) for n in range(size)}
        return {"$ref": "#/$defs/a0", "$defs": defs}
    if way == 2:  # one in another
        schema: Any = {"type": "string"}
        for _ in range(min(size, 300)):
            schema = chance.choice([{"type": "array", "items": schema}, _object({"a": schema}), {"anyOf": [schema]}])
        return schema
    if way == 3:
        return {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(size)}}
    if way == 4:
        return {"anyOf": [_object({f"p{n}": {"type": "string", "pattern": f"^a{{{n}}}$"}}) for n in range(size // 4)]}
    if way == 5:
        return {"allOf": [{"type": "string", "pattern": f".*{chr(97 + n % 26)}.{{{n}}}"} for n in range(size % 40)]}
    if way == 6:
        return {
            "type": "integer",
            "multipleOf": chance.choice([7, 9_973, 999_983]),
            "minimum": -size,
            "maximum": 10**18,
        }
    if way == 7:
        return {"enum": ["v" * (n % 50) + str(n) for n in range(size * 2)]}
    if way == 8:
        return {"type": "array", "items": {"type": "string"}, "minItems": size * 100, "maxItems": size * 200}
    if way == 9:
        return {"type": "string", "minLength": size * 100, "maxLength": size * 10_000}
    if way == 10:
        return {"type": "string", "pattern": _bad_regex(chance)}
    if way == 11:
        arms = [{"$ref": f"#/$defs/a{chance.randrange(20)}"} for _ in range(3)]
        return {"anyOf": arms, "$defs": {f"a{n}": {"anyOf": chance.sample(arms, 2)} for n in range(20)}}
    return {"type": "object", "patternProperties": {f"{chr(97 + n % 26)}.*{n}": {} for n in range(size % 60)}}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


# ------------------------------------------------------------ regular expressions


def _regex(chance: random.Random, depth: int) -> str:
    if depth <= 0:
        return chance.choice(["a", "b", ".", r"\d", r"\w", r"\s", "[^a]", "[a-z]", r"\p{L}", "ß", "", r"\b", "^", "$"])
    one, other = _regex(chance, depth - 1), _regex(chance, depth - 2)
    least = _size(chance, 300)
    return chance.choice([
        one + other, f"({one}|{other})", f"({one})*", f"({one})+?", f"({one}){{{least}}}",
        f"({one}){{{least},{least + _size(chance, 300)}}}", f"(?:{one})?{other}", f"[{_name(chance)}]{one}",
        f"(?i:{one})",
        f"({one}", f"{one})", f"(?={one}){other}", f"(?P<n>{one})", f"{one}\\{chance.choice('nrtux0Qk<1')}",
    ])  # fmt: skip


def _bad_regex(chance: random.Random) -> str:
    size = _size(chance, 3000)
    return chance.choice([
        "(" * size + "a" + ")" * size, f"(a?){{{size}}}a{{{size}}}", f".*a.{{{size}}}",
        f"(.*a.{{{size}}}|.*b.{{{size}}})x",
        "(" * 5 + "a{1,20}" + "){1,20}" * 5, "|".join(f"a{{{n}}}b" for n in range(size)), f"(a|b|ab){{1,{size * 30}}}",
        rf"(\p{{L}}|\p{{N}}){{1,{size}}}@\p{{Lu}}{{{size}}}", "(a*)*" * (size % 200), "(x+x+)+y", "[^a]" * size,
        "&".join([".*a.*"] * (size % 50)), "(?i)" + "ſ" * size, "(a|" * (size % 190) + "b" + ")" * (size % 190),
    ])  # fmt: skip


# ------------------------------------------------------------ Lark and GBNF


def _lark(chance: random.Random) -> str:
    names = ["start", *(f"r{n}" for n in range(_size(chance, 20)))]

    def item() -> str:
        return chance.choice([
            chance.choice(names), f'"{_name(chance)}"', f"/{_regex(chance, 3)}/".replace("//", "/a/"), "X",
            f"({chance.choice(names)} | {chance.choice(names)}){chance.choice('*+?')}",
            f"{chance.choice(names)}{{1,{_size(chance, 1000)}}}", f"%json {json.dumps(_schema(chance, 2))}",
        ])  # fmt: skip

    def rule() -> str:
        return " | ".join(" ".join(item() for _ in range(_size(chance, 4))) for _ in range(_size(chance, 4)))

    gbnf = chance.random() < 0.25
    lines = [f"{'root' if gbnf and name == 'start' else name}{' ::=' if gbnf else ':'} {rule()}" for name in names]
    ends = [] if gbnf else [f"X: /{_regex(chance, 3)}/", *chance.sample(["%ignore /[ ]+/", "%ignore X"], 1)]
    return "\n".join([*lines, *ends])


def _bad_lark(chance: random.Random) -> str:
    size = _size(chance, 3000)
    return chance.choice([
        'start: e\ne: e "+" e | e "*" e | e e | /[a-z]/', 'start: a\na: a a | "a" |',
        'start: s\ns: "a" s "b" s | "b" s "a" s |',
        "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(size)) + f'\nr{size}: "a"',
        "start: " + "(" * size + '"a"' + ")" * size, "start: " + " | ".join(f'"{n}"' for n in range(size)),
        "start: " + " ".join(['"a"?'] * size), "start: x*\nx: y*\ny: z*\nz: x |",
        "start: /(.*a.{12})&(.*b.{13})&(.*c.{14})/",
        "start: r0\n" + "\n".join(f'r{n}: r{(n * 7 + 1) % size} r{(n * 3 + 2) % size} | "a"' for n in range(size)),
        'start: "a"{1,' + str(size * 1000) + "}", "start: X\nX: /" + "a?" * size + "a" * size + "/",
        "root ::= " + "[a-z] " * size, 'root ::= "a" root "b" | root root | ""',
        "start: A A\nA: " + " ".join(["/a+/"] * size),
        "start: x\nx: /a/ x /b/ | x x x |  /c*/", "start: %regex {" + '"substring_chars": "' + "ab" * size + '"}',
    ])  # fmt: skip


# ------------------------------------------------------------ the rest


def _other(chance: random.Random) -> str:
    size = _size(chance, 4000)
    return chance.choice([
        json.dumps({"choice": ["a" * n for n in range(size // 8)]}),
        json.dumps({"choice": [_name(chance) for _ in range(size)]}),
        json.dumps({"choice": ["x" * 60 * size]}), json.dumps({"choice": [None, {}, "a"]}), json.dumps({"regex": None}),
        '{"json_schema": ' + "[" * size + "]" * size + "}", '{"json_schema": ' + '{"a":' * size,
        "\x00" * size, "{" * size,
        json.dumps({"json_schema": "x" * size}), json.dumps({"grammar": {"a": 1}}), json.dumps({"wizard": size}),
        "".join(chr(chance.randrange(1, 0xD7FF)) for _ in range(size)),
    ])  # fmt: skip
