"""Grammars: what ends by itself is valid whatever is drawn and however tight the limit; what is impossible is said."""

from __future__ import annotations

import json
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import llguidance
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.grammar.closing_search import ClosingSearch, GrammarPosition, Search
from engine.grammar.guide import InvalidGrammar
from engine.grammar.llguidance_grammar import LlguidanceGrammars
from engine.sampling.request_state import SamplingState
from gateway.conversation.tokenizer import Tokenizer
from protocol.requests import Done, Sampling
from tests.engine.conftest import Bench, generate, make_bench
from tests.fast import examples, only_fast

DEMO = Path(__file__).resolve().parents[3] / "models" / "stdlib-qa"
VOCABULARY, END = 4096, 4095
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2},
        "kind": {"enum": ["alpha", "beta"]},
        "mail": {"type": "string", "pattern": "^[a-z]+@[a-z]+\\.com$"},
    },
    "required": ["name", "age", "tags", "kind", "mail"],
    "additionalProperties": False,
}


@cache
def grammars() -> LlguidanceGrammars:
    return LlguidanceGrammars(DEMO, VOCABULARY, [END])


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.load(DEMO / "tokenizer.json")


def text_of(tokens: list[int]) -> str:
    return b"".join(tokenizer().token_bytes(token) for token in tokens).decode(errors="replace")


def drawn(grammar: dict[str, Any], limit: int, seed: int, prefers: str = "") -> tuple[str, str]:
    """An output whose every token is drawn evenly from what is allowed: no model would be as wild.

    `prefers`: texts that are drawn alone where one of them is allowed, as by a model that runs in a circle.
    """
    preferred = {token for character in prefers for token in tokenizer().content(character)}
    guide = grammars().compiled(json.dumps(grammar)).guide()
    chance = random.Random(seed)
    mask = torch.zeros(VOCABULARY // 32, dtype=torch.int32)
    tokens: list[int] = []
    for left in range(limit, 0, -1):
        guide.fill_mask(mask)
        assert guide.failure is None
        allowed = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little").nonzero()[0].tolist()
        drawn_from = [token for token in allowed if token in preferred] or allowed
        token = guide.choose_token(chance.choice(drawn_from), left)
        assert token in allowed
        guide.accept_token(token)
        if token != END:
            tokens.append(token)
        if guide.ended:
            return text_of(tokens), "stop"
    return text_of(tokens), "length"


def accepted(grammar: str, text: str) -> bool:
    """Whether the grammar lets this text through, as a whole."""
    guide = grammars().compiled(grammar).guide()
    for token in tokenizer().content(text):
        guide.accept_token(token)
        if guide.failure is not None:
            return False
    guide.accept_token(END)
    return guide.failure is None


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    leaves = st.sampled_from(
        [
            {"type": "string"},
            {"type": "string", "maxLength": 5, "minLength": 2},
            {"type": "integer"},
            {"type": "number"},
            {"type": "integer", "minimum": 10, "maximum": 5000},
            {"type": "boolean"},
            {"type": "null"},
            {"enum": ["red", "green", 7]},
            {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
            {"type": "string", "format": "date"},
        ]
    )

    def larger(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        names = st.sampled_from(["a", "id", "name", "a longer name", "größe"])
        objects = st.dictionaries(names, inner, max_size=3).flatmap(
            lambda properties: st.builds(
                lambda required: {
                    "type": "object",
                    "properties": properties,
                    "required": sorted(required),
                    "additionalProperties": False,
                },
                st.sets(st.sampled_from(sorted(properties))) if properties else st.just(set()),
            )
        )
        arrays = st.builds(
            lambda items, least: {"type": "array", "items": items, "minItems": least, "maxItems": least + 3},
            inner,
            st.integers(0, 2),
        )
        either = st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner)
        return objects | arrays | either

    return st.recursive(leaves, larger, max_leaves=6)


@pytest.mark.slow
@settings(max_examples=examples(80), deadline=None)
@given(schema=schemas(), limit=st.integers(1, 90), seed=st.integers(0, 1000))
def test_what_stops_is_valid_however_tight_the_limit(schema: dict[str, Any], limit: int, seed: int):
    text, why = drawn({"json_schema": schema}, limit, seed)
    assert why == "length" or jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)), (why, text)


@pytest.mark.parametrize("limit", only_fast(51, 70, of=[50, 51, 55, 70, 120, 200]))
def test_near_the_limit_only_what_can_still_close(limit: int):
    """49 tokens are enough, whatever was drawn before the limit came near."""
    for seed in range(4):
        text, why = drawn({"json_schema": PERSON}, limit, seed)
        assert why == "stop", text
        jsonschema.validate(json.loads(text), PERSON)


LIST = {"$ref": "#/$defs/node", "$defs": {"node": {
    "type": "object", "properties": {
        "value": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["value", "next"], "additionalProperties": False}}}  # fmt: skip


@pytest.mark.parametrize("limit", only_fast(20, of=[20, 40, 90]))
@pytest.mark.parametrize(
    "grammar",
    [
        {"regex": r"\d+\.\d{2}"},
        {"regex": "[a-z]+b"},
        {"regex": r"[a-z0-9]+@[a-z]+\.(com|org)"},
        {"regex": "https?://[a-z.]+/[a-z0-9/]*"},
        {"regex": r"(\d+,)*\d+;"},
        {"grammar": 'root ::= [0-9]+ "." [0-9]*'},
        {"json_schema": LIST},
    ],
)
def test_what_could_go_on_for_ever_is_ended_in_time(grammar: dict[str, Any], limit: int):
    """What ends it is not what most often ends something, such as a point between digits."""
    for seed in range(4):
        text, why = drawn(grammar, limit, seed)
        assert why == "stop", text


def test_a_model_that_writes_digits_for_ever_is_ended_in_time():
    """Behind the fraction of a second still comes a value of fixed length."""
    times = {"starts_at": {"type": "string", "format": "time"}, "identifier": {"type": "string", "format": "uuid"}}
    schema = {"type": "object", "properties": times, "required": list(times), "additionalProperties": False}
    for prefers in ("0", "0123456789"):
        for limit in (80, 120):
            for seed in range(2):
                text, why = drawn({"json_schema": schema}, limit, seed, prefers)
                assert why == "stop", text
                jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    "grammar",
    [
        {
            "json_schema": {
                "type": "object",
                "properties": {"id": {"type": "string", "format": "uuid"}},
                "required": ["id"],
            }
        },
        {"regex": "[0-9a-f]{40}"},
        {"regex": "[A-Za-z0-9+/]{43}="},
        {"json_schema": {"type": "array", "items": {"type": "integer"}, "minItems": 20}},
    ],
)
def test_what_has_a_fixed_length_is_ended_in_time(grammar: dict[str, Any]):
    """The end is far, and straight on."""
    for seed in range(4):
        text, why = drawn(grammar, 100, seed)
        assert why == "stop", text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grammar", "limit"),
    [({"regex": "([a-m]+[n-z]+){2,9}!!"}, 40), ({"json_schema": {"type": "object", "properties": {
        "x": {"type": "array", "items": {"type": "number"}, "minItems": 3}}, "required": ["x"]}}, 24)],
)  # fmt: skip
def test_an_output_that_goes_on_elsewhere_is_the_one_that_it_would_have_been(grammar: dict[str, Any], limit: int):
    """A replica that takes up what another one has put out knows that alone, not what that one had in mind."""
    compiled = grammars().compiled(json.dumps(grammar))
    mask = torch.zeros(VOCABULARY // 32, dtype=torch.int32)

    def go_on(seed: int, emitted: list[int]) -> list[int]:
        guide = compiled.guide()
        row = SamplingState(Sampling(limit), [1], emitted, guide)
        tokens = list(emitted)
        while row.drawn < limit and not guide.ended:
            guide.fill_mask(mask)
            allowed = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little").nonzero()[0].tolist()
            drawn = random.Random(1000 * seed + len(tokens)).choice(allowed)
            tokens.append(guide.choose_token(drawn, row.limit - row.drawn))
            row.accept_token(tokens[-1])
        return tokens

    for seed in range(6):
        whole = go_on(seed, [])
        for told in range(1, len(whole), 3):
            assert go_on(seed, whole[:told]) == whole


def test_an_end_that_is_not_found_is_looked_for_ever_more_seldom(monkeypatch: pytest.MonkeyPatch):
    searches = []
    search = ClosingSearch.search

    def counting(self: ClosingSearch, place: GrammarPosition, most: int, *, quick: bool = False) -> Search:
        found = yield from search(self, place, most, quick=quick)
        searches.append(found)
        return found

    monkeypatch.setattr(ClosingSearch, "search", counting)
    assert drawn({"regex": r"(\w+ ){2,}end"}, 1_200, 1)[1] == "length"
    in_vain = [found for found in searches if found is None]
    assert 3 < len(in_vain) == len(searches) < 12


def test_a_limit_that_holds_no_end_ends_by_length():
    for limit in (1, 10, 40):
        assert drawn({"json_schema": PERSON}, limit, 0)[1] == "length"


RECURSIVE = {"$ref": "#/$defs/tree", "$defs": {"tree": {
    "type": "object", "properties": {"value": {"type": "integer"}, "left": {"$ref": "#/$defs/tree"}},
    "required": ["value"], "additionalProperties": False}}}  # fmt: skip


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ({"regex": "[0-9]{3}-[a-f]+"}, r"[0-9]{3}-[a-f]+"),
        ({"choice": ["yes", 'no, "never"', "größer\n"]}, r'yes|no, "never"|größer\n'),
        ({"choice": ["a", "ab", "abc"]}, r"a|ab|abc"),
        ({"choice": ["a.b", "(", "\\d ~-#", "\t\x00"]}, r"a\.b|\(|\\d ~-#|\t\x00"),
        ({"choice": [f"{number} of many" for number in range(3000)]}, r"\d+ of many"),
        ({"grammar": 'root ::= "a" [0-9]+ ("." [0-9])?'}, r"a[0-9]+(\.[0-9])?"),
        ({"grammar": 'start: "x" /[a-z]{3}/ ("," start)?'}, r"(x[a-z]{3},)*x[a-z]{3}"),
    ],
)
def test_every_kind(grammar: dict[str, Any], pattern: str):
    outputs = [drawn(grammar, 30, seed) for seed in range(12)]
    assert {why for _, why in outputs} == {"stop"}
    assert all(re.fullmatch(pattern, text) for text, _ in outputs), outputs
    assert len(set(outputs)) > 1


def test_recursion_is_closed_and_white_space_is_bounded():
    for seed in range(6):
        text, why = drawn({"json_schema": RECURSIVE}, 80, seed)
        assert why == "stop"
        jsonschema.validate(json.loads(text), RECURSIVE)
    guide = grammars().compiled(json.dumps({"json_schema": {"type": "object"}})).guide()
    mask = torch.zeros(VOCABULARY // 32, dtype=torch.int32)
    (space,) = tokenizer().content(" ")
    spaces = 0
    for token in (tokenizer().content("{")[0], *[space] * 10):
        guide.fill_mask(mask)
        if not (mask[token >> 5].item() >> (token & 31)) & 1:
            break
        guide.accept_token(token)
        spaces += token == space
    assert spaces <= 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"json_schema": {"type": "wizard"}}', "Invalid type: wizard"),
        ('{"json_schema": {"not": {}}}', "not"),
        ('{"json_schema": {"allOf": [{"type": "string"}, {"type": "number"}]}}', "incompatible types"),
        ('{"json_schema": {"type": "string", "minLength": 5, "maxLength": 2}}', "minLength"),
        ('{"json_schema": {"$ref": "#/x"}}', "Pointer"),
        ('{"json_schema": {"enum": []}}', "empty"),
        ('{"json_schema": false}', "object"),
        ('{"regex": "("}', "unclosed group"),
        ('{"regex": "(?=a)b"}', "look-around"),
        ('{"regex": "[^\\\\s\\\\S]"}', "no text fulfils it"),
        ('{"choice": []}', "nothing to choose from"),
        ('{"grammar": "start: foo"}', "unknown name"),
        ('{"grammar": "garbage(("}', "Expected"),
        ('{"grammar": "leaf ::= \\"a\\""}', "No 'root' rule"),
        ('{"grammar": null}', "expected string"),
        ('{"regex": 5}', "not an instance of 'str'"),
        ('{"spell": "x"}', "no kind of grammar named 'spell'"),
        ("nonsense", "Expecting value"),
        ('{"a": 1, "b": 2}', "too many values"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(text: str, message: str):
    for _ in range(2):  # compiled, and remembered
        with pytest.raises(InvalidGrammar, match=re.escape(message)):
            grammars().compiled(text)


# ------------------------------------------------------------ in the engine


@pytest.fixture(scope="module")
def demo() -> Bench:
    bench = make_bench(DEMO, blocks=200)
    bench.engine.input_processor.grammars = grammars()
    return bench


def prompt() -> list[int]:
    return tokenizer().content("What does os.path.join do? Answer in JSON:")


GRAMMARS: list[dict[str, Any]] = [
    {"json_schema": PERSON},
    {"regex": "[0-9]{3}-[a-f]+"},
    {"choice": ["yes", "no"]},
    {"json_schema": {"type": "object"}},
]


@pytest.mark.slow
def test_in_any_company_the_same_and_valid(demo: Bench):
    how = [
        {"grammar": json.dumps(grammar), "temperature": heat, "seed": 5, "stop_tokens": (END,), "top_p": 0.9}
        for grammar, heat in zip(GRAMMARS, (1.5, 0.0, 1.5, 1.0), strict=True)
    ]
    alone = [demo.one(generate(f"alone{at}", prompt(), 56, **each)) for at, each in enumerate(how)]
    together = [demo.add(generate(f"with{at}", prompt(), 56, **each)) for at, each in enumerate(how)]
    demo.add(generate("plain", prompt(), 20, temperature=1.0))
    demo.add(generate("stopped", prompt(), 70, grammar=json.dumps(GRAMMARS[0]), temperature=1.0))
    demo.step()
    demo.engine.abort("stopped")
    demo.finish()
    assert [run.tokens for run in together] == [run.tokens for run in alone]
    for at, run in enumerate(alone):
        assert run.done is not None
        output = text_of([token for token in run.tokens if token != END])
        if at == 0:
            assert run.done.reason == "stop"
            jsonschema.validate(json.loads(output), PERSON)
    choices = demo.one(generate("many", prompt(), 56, choices=3, **how[0]))
    assert choices.tokens == alone[0].tokens
    assert len({tuple(tokens) for tokens in choices.choices.values()}) == 3


@pytest.mark.slow
def test_with_everything_else_that_is_asked(demo: Bench):
    """Least tokens and bias give way to what must come."""
    comma = tokenizer().content(",")[0]
    run = demo.one(
        generate(
            "a", prompt(), 90, grammar=json.dumps({"json_schema": PERSON}), temperature=1.0, min_tokens=85,
            stop_tokens=(END, comma), logit_bias={comma: 100.0}, frequency_penalty=2.0, logprobs=2, seed=3,
        )
    )  # fmt: skip
    assert run.done is not None
    assert run.done.reason == "stop"
    jsonschema.validate(json.loads(text_of([token for token in run.tokens if token != END])), PERSON)
    assert len(run.logprobs) == len(run.tokens)


def test_an_impossible_grammar_is_rejected_alone(demo: Bench):
    plain = demo.one(generate("p", prompt(), 8)).tokens
    running = demo.add(generate("r", prompt(), 8))
    demo.step()
    bad = demo.add(generate("bad", prompt(), 8, grammar='{"regex": "("}'))
    demo.finish()
    assert isinstance(bad.done, Done)
    assert (bad.done.reason, bad.done.invalid) == ("rejected", "grammar")
    assert running.tokens == plain


# Compiled in no time, and too much for the library as soon as its first letter is there.
TOO_WIDE = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(1000)}}


@pytest.mark.slow
@pytest.mark.parametrize("choices", [1, 3])
def test_a_grammar_that_fails_on_its_way_fails_alone_and_is_named(demo: Bench, choices: int):
    """In a step in which other choices of it draw their tokens too."""
    plain = demo.one(generate(f"without {choices}", prompt(), 8)).tokens
    running = demo.add(generate(f"beside {choices}", prompt(), 8))
    schema = {"type": "object", "properties": {"in it": TOO_WIDE}, "required": ["in it"]} if choices > 1 else TOO_WIDE
    wide = json.dumps({"json_schema": schema})
    run = demo.add(generate(f"wide {choices}", prompt(), 40, grammar=wide, choices=choices))
    demo.finish()
    assert run.done is not None
    assert (run.done.reason, run.done.invalid) == ("error", "grammar")
    assert re.fullmatch(
        r"grammar: (Parser Error: Current row has \d+|parser error: Too many) items[^<]*", run.done.error or ""
    )
    assert running.tokens == plain
    assert demo.engine.pool.referenced_blocks == 0


def test_nothing_is_compiled_for_whom_it_is_too_late(demo: Bench):
    """Least of all in the step loop, where the replica hands on what took longer to compile than its time."""
    run = demo.one(generate("late", prompt(), 8, grammar='{"regex": "("}', deadline=demo.now))
    assert run.done is not None
    assert run.done.reason == "deadline"
    assert run.began is None


@pytest.mark.parametrize("ends", [[END], [END, 4094], []])
def test_a_build_of_the_library_that_knows_one_end_token(monkeypatch: pytest.MonkeyPatch, ends: list[int]):
    """As those before 1.6 do: a list is no token for them."""
    make = llguidance.LLTokenizer

    def make_with_one(definition: str, *, n_vocab: int, eos_token: int | None) -> llguidance.LLTokenizer:
        if not isinstance(eos_token, int | None):
            raise TypeError("argument 'eos_token': 'list' object cannot be interpreted as an integer")
        return make(definition, n_vocab=n_vocab, eos_token=eos_token)

    monkeypatch.setattr(llguidance, "LLTokenizer", make_with_one)
    guide = LlguidanceGrammars(DEMO, VOCABULARY, ends).compiled('{"regex": "1"}').guide()
    guide.accept_token(tokenizer().content("1")[0])
    assert guide.failure is None
    mask = torch.zeros(VOCABULARY // 32, dtype=torch.int32)
    if not guide.ended:
        guide.fill_mask(mask)
        assert np.unpackbits(mask.numpy().view(np.uint8), bitorder="little").nonzero()[0].tolist() == ends[:1]


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path):
    with pytest.raises(InvalidGrammar, match="no tokenizer"):
        LlguidanceGrammars(tmp_path, 100, [1]).compiled('{"regex": "a"}')
