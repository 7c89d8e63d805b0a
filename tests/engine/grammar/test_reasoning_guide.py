"""Reasoning before the answer: it ends at its budget, a grammar begins behind it, and what is due is plain output."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.grammar.reasoning_guide import ReasoningGuide
from protocol.requests import MOST_MARKER_TOKENS, Reasoning
from tests.engine.conftest import Bench, generate
from tests.engine.grammar.test_grammar import END, VOCABULARY, grammars, text_of
from tests.fast import examples

BEGIN, CLOSE, BEHIND = 4092, 4093, 4094  # special: no text is made of them
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "kinds": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2},
    },
    "required": ["city", "kinds"],
    "additionalProperties": False,
}


def drawn(
    reasoning: Reasoning, limit: int, seed: int, *, grammar: bool = True, prefer: dict[int, float] | None = None
) -> tuple[list[int], bool]:
    """The tokens of an output whose every token is drawn evenly from what is allowed, and whether it ended by itself.
    `prefer`: the chance with which a token is taken where it is allowed."""
    answer = grammars().compiled(json.dumps({"json_schema": SCHEMA})).guide() if grammar else None
    guide = ReasoningGuide(reasoning, [END], answer)
    chance, mask, tokens = random.Random(seed), torch.zeros(VOCABULARY // 32, dtype=torch.int32), list[int]()
    for left in range(limit, 0, -1):
        guide.fill_mask(mask)
        assert guide.failure is None
        allowed = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little").nonzero()[0].tolist()
        if guide.idle:
            assert len(allowed) == VOCABULARY
        wanted = [token for token, often in (prefer or {}).items() if token in allowed and chance.random() < often]
        token = guide.choose_token(wanted[0] if wanted else chance.choice(allowed), left)
        tokens.append(token)
        guide.accept_token(token)
        if guide.ended:
            return tokens, True
    return tokens, False


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from([60, 90, 400]), st.sampled_from([None, 0, 1, 7, 200]), st.booleans(),
    st.sampled_from([0.0, 0.05, 0.9]),
)  # fmt: skip
def test_an_answer_fulfils_its_grammar_after_reasoning_of_whatever_length(
    seed: int, limit: int, budget: int | None, begun: bool, closes: float
) -> None:
    reasoning = Reasoning(end=(CLOSE, BEHIND), begin=(BEGIN,), begun=begun, budget=budget, answer=(BEHIND, BEHIND))
    tokens, ended = drawn(reasoning, limit, seed, prefer={BEGIN: 0.9, CLOSE: closes})
    assert ended, "room is left for the answer"
    inside = tokens
    if begun or tokens[0] == BEGIN:
        at = tokens.index(CLOSE)
        inside = tokens[at + 1 :]
        assert inside[:3] == [BEHIND] * 3
        inside = inside[3:]
        thought = tokens[0 if begun else 1 : at]
        assert END not in thought
        assert budget is None or len(thought) <= budget
    jsonschema.validate(json.loads(text_of([token for token in inside if token != END])), SCHEMA)
    assert not {BEGIN, CLOSE} & set(inside)


@pytest.mark.parametrize("begun", [False, True])
def test_a_budget_without_a_grammar_closes_the_section_once(begun: bool) -> None:
    reasoning = Reasoning(end=(CLOSE, BEHIND), begin=(BEGIN,), begun=begun, budget=5)
    for seed in range(20):
        tokens, _ = drawn(reasoning, 80, seed, grammar=False, prefer={BEGIN: 0.5})
        if END in tokens[: 12 + (0 if begun else tokens.index(BEGIN) if BEGIN in tokens else 0)]:
            continue  # it ended before
        opened = -1 if begun else tokens.index(BEGIN)
        thought = tokens[opened + 1 :][: 5 + 2]
        if CLOSE not in thought[:5]:
            assert thought[5:] == [CLOSE, BEHIND]
        spent = [at for at in range(len(tokens)) if tokens[at] == CLOSE]
        assert spent


def test_no_section_is_opened_where_nothing_may_be_thought() -> None:
    """Neither by one token nor by several; each of them alone is a token like others."""
    one = Reasoning(end=(CLOSE,), begin=(BEGIN,), budget=0)
    two = Reasoning(end=(CLOSE,), begin=(BEGIN, BEHIND), budget=0)
    for seed in range(10):
        tokens, _ = drawn(one, 60, seed, grammar=False, prefer={BEGIN: 0.9})
        assert BEGIN not in tokens
        tokens, _ = drawn(two, 60, seed, grammar=False, prefer={BEGIN: 0.5, BEHIND: 0.5})
        assert (BEGIN, BEHIND) not in set(pairwise(tokens))
        assert {BEGIN, BEHIND} <= set(tokens) or END in tokens


def test_what_opens_the_output_is_put_out_first() -> None:
    header = (BEGIN, BEHIND)
    tokens, ended = drawn(
        Reasoning(end=(CLOSE,), begin=(BEGIN,), opening=header, answer=(BEHIND,), budget=3), 200, 1, prefer={CLOSE: 0.0}
    )
    assert ended
    assert tokens[:2] == [*header]
    assert tokens[4:6] == [CLOSE, BEHIND], "the header's second token is one of the three"


def test_the_engine_ends_the_reasoning_at_its_budget(bench: Bench) -> None:
    """The forced tokens are counted, and what follows is drawn as ever."""
    run = bench.one(generate("x", range(20), 30, reasoning=Reasoning(end=(5, 6), begun=True, budget=8)))
    assert run.done is not None
    assert run.tokens[8:10] == [5, 6] or 5 in run.tokens[:8]
    assert (run.done.counts.output, len(run.tokens)) == (30, 30)
    free = bench.one(generate("free", range(20), 30))
    assert run.tokens[: run.tokens.index(5)] == free.tokens[: run.tokens.index(5)]


def test_a_section_that_ends_by_itself_is_not_ended_again(bench: Bench) -> None:
    run = bench.one(
        generate("x", range(20), 12, logit_bias={5: 100.0}, reasoning=Reasoning(end=(5, 6), begun=True, budget=8))
    )
    assert run.tokens == [5] * 12


def test_an_end_token_within_the_reasoning_ends_an_output_without_a_grammar(bench: Bench) -> None:
    run = bench.one(
        generate(
            "x",
            range(20),
            12,
            logit_bias={9: 100.0},
            stop_tokens=(9,),
            reasoning=Reasoning(end=(5,), begun=True, budget=8),
        )
    )
    assert run.done is not None
    assert (run.tokens, run.done.reason) == ([9], "stop")


@pytest.mark.parametrize("draws", [5, 7])
def test_a_stop_token_that_ends_the_reasoning_ends_the_output(bench: Bench, draws: int) -> None:
    """Whether it is drawn or put out at the budget: as without a budget."""
    reasoning = Reasoning(end=(5, 6), begun=True, budget=3)
    run = bench.one(generate("x", range(20), 12, logit_bias={draws: 100.0}, stop_tokens=(5,), reasoning=reasoning))
    assert run.done is not None
    assert (run.tokens, run.done.reason) == ([5] if draws == 5 else [7, 7, 7, 5], "stop")


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"end": ()}, "reasoning.end"),
        ({"end": (1 << 20,)}, "reasoning.end"),
        ({"end": (5,), "begin": (-1,)}, "reasoning.begin"),
        ({"end": (5,), "answer": (5,) * (MOST_MARKER_TOKENS + 1)}, "reasoning.answer"),
        ({"end": (5,), "budget": -1}, "reasoning.budget"),
    ],
)
def test_what_is_wrong_is_named(bench: Bench, fields: dict[str, Any], names: str) -> None:
    done = bench.one(generate("x", [1], reasoning=Reasoning(**fields))).done
    assert done is not None
    assert done.reason == "rejected"
    assert done.error is not None
    assert done.error.startswith(names)
