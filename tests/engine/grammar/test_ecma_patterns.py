"""Patterns mean what ECMA-262 says: what a grammar lets through is what Python's `re` matches."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.grammar.guide import InvalidGrammar
from tests.engine.grammar.test_grammar import accepted, grammars
from tests.fast import examples

ZOD_MAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
ZOD_BASE64 = r"^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$"


def matched(pattern: str, text: str) -> bool:
    grammar = json.dumps({"json_schema": {"type": "string", "pattern": pattern}})
    return accepted(grammar, json.dumps(text, ensure_ascii=False))


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("^.$", ["a", "😀", "\u0085"], ["\n", "\r", "\u2028", "\u2029", ""]),
        (r"^\s$", [" ", "\u00a0", "\ufeff", "\u2028"], ["\u0085", "a"]),
        (r"^\S\D\W$", ["äa-"], ["ä1-", " a-", "äaa"]),
        (r"^[[a&&b~~]$", ["[", "&", "~", "b"], ["]", "c"]),
        (r"^[\w-]+$", ["a-_9"], ["ä"]),
        (r"^[^\]x-z-]$", ["a", "["], ["]", "y", "-"]),
        (r"^[^]$", ["\n", "a"], ["ab"]),
        (r"^a{,3}\/\-$", ["a{,3}/-"], ["aa/-"]),
        (r"^\u00e9\x41\u{1F600}\ud83d\ude00\t\0\cJ$", ["éA😀😀\t\0\n"], ["éA😀\t\0\n"]),
        (r"(?<year>\d{4})", ["in 2026"], ["in 202"]),
        (r"^\p{Lu}[\p{Ll}.]$", ["Äö", "A."], ["äö", "A,"]),
        (r"\bcat\b", ["cat", "a cat.", "cat,"], ["cats", "a tomcat", "_cat"]),
        (r"^a\b-\b\w$", ["a-b"], ["ab"]),
        (r"^(?!admin$|root)\w+$", ["adm", "administrator", "roo"], ["admin", "root", "roots"]),
        (r"^(?=.*[A-Z])(?=.*\d).{4,}$", ["aA1b", "1aaA"], ["aaa1", "AAAA", "A1b"]),
        (r"^(?!.*--)[a-z-]+$", ["a-b", "-"], ["a--b"]),
        (r"^(?!.*\s)[\s\S]{2,}$", ["ab"], ["a b", "a\nb", "\n\n", "a\u2028"]),
        (r"^(?!.*[\n])[\s\S]{2,}$", ["ab", "a\rb\n"], ["a\nb"]),
        (r"^\(?s:.$", ["(s:a", "s:a"], ["s:\n", "s:\r"]),
        (r"^[(?s:)].$", ["(a"], ["(\n", "(\r"]),
        (ZOD_MAIL, ["a.b@c.org", "o'x@a-b.de"], [".a@c.org", "a..b@c.org", "a@c", "a.@c.org"]),
        (ZOD_BASE64, ["", "YWI=", "YWJj"], ["YWI", "==="]),
        (r"(?i)^ab.$", ["ABc"], ["b"]),
    ],
)  # fmt: skip
def test_a_pattern_is_read_as_ecma_says(pattern: str, yes: list[str], no: list[str]):
    assert [text for text in yes + no if matched(pattern, text)] == yes


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (r"(a)\1", r"pattern with `\1` is not supported: write it without"),
        ("(?<=a)b", "pattern with a look-behind is"),
        ("^a(?!b)", "pattern with a look-ahead that is not right behind the `^`"),
        (r"^(?!.*\s\s)", "pattern with a negative look-ahead for different characters"),
        ("^(?!a+)b", "pattern with a negative look-ahead that is more than a row"),
        (r"^.\b", r"pattern with `\b` beside what may be of a word or not"),
        ("(a", "pattern with a `(` without its `)`"),
        ("[b-a]", "pattern with a range whose end"),
        ("a**", "pattern with `*` without"),
        ("[a", "pattern with an end where more should follow"),
        ("(" * 100 + ")" * 100, "pattern with groups nested"),
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_what_a_grammar_cannot_hold_is_refused_by_name(pattern: str, said: str, named: bool):
    schema = {"patternProperties": {pattern: {}}} if named else {"type": "string", "pattern": pattern}
    said = said.replace("pattern with", "patternProperties with") if named else said
    with pytest.raises(InvalidGrammar) as refused:
        grammars().compiled(json.dumps({"json_schema": {"properties": {"a": schema}}}))
    assert f"properties.a.{said}" in str(refused.value)


characters = st.sampled_from(["a", "b", "-", ".", "1", "\r", "\u2028", "&", "["])
atoms = st.sampled_from(["a", ".", r"\w", r"\W", "[a-b.]", r"[^a\d]", r"[&&[]", r"\-", "(?:a|b1)", "(?:-.)"])
terms = st.tuples(atoms, st.sampled_from(["", "", "*", "?", "{1,2}"])).map("".join)
rows = st.lists(terms, min_size=1, max_size=4).map("".join)
aheads = st.sampled_from(["", "(?!a)", "(?!.*--)", "(?=.*[ab])", r"(?!ab$|\.)", r"(?=\w)"])
ends = st.sampled_from(["", r"\b", "$"])


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(
    begins=st.one_of(aheads.map("^{}".format), st.sampled_from(["", r"\b"])), row=rows, ends=ends,
    texts=st.lists(st.text(characters, max_size=5), min_size=8, max_size=8),
)  # fmt: skip
def test_a_grammar_matches_what_re_matches(begins: str, row: str, ends: str, texts: list[str]):
    pattern = begins + row + ends
    told = re.sub(r"(?<![\\])\.(?![^\[]*\])", "[^\\\\n\\\\r\\\\u2028\\\\u2029]", pattern).replace("$", r"\Z")
    oracle = re.compile(told.replace("[&&[]", r"[\&\[]"), re.ASCII)
    try:
        grammars().compiled(json.dumps({"json_schema": {"type": "string", "pattern": pattern}}))
    except InvalidGrammar as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "\\b" in refused or "Regex is empty" in refused
        return
    for text in texts:
        assert matched(pattern, text) == bool(oracle.search(text)), text
