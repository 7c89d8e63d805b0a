"""The tables that the tool model's conversations are made from: each kind of tool fits its parameters and questions."""

from __future__ import annotations

import random
import re
from typing import Any

import jsonschema

from scripts.tool_model.conversations import conversation
from scripts.tool_model.questions import ask
from scripts.tool_model.tools import ALIKE, concepts, idle_questions, offer
from scripts.tool_model.values import SOURCES, TEXTS, WORDS, filled

_MARK = re.compile(r"\{(\w+)(?::(\w+)=)?")


def _marks(text: str) -> dict[str, str]:
    return {match.group(1): match.group(2) for match in _MARK.finditer(text)}


def test_each_kind_of_tool_is_complete() -> None:
    known = {*SOURCES, *TEXTS, *WORDS, "enum", "bool"}
    for concept in concepts():
        parameters = {one.key: one for one in concept.parameters}
        assert {one.source for one in concept.parameters} <= known, concept.names
        required = {key for key, one in parameters.items() if one.required}
        for question in concept.asks:
            assert set(_marks(question)) <= set(parameters), question
            assert required <= set(_marks(re.sub(r"\[[^\]]*\]", "", question))), question
            for key, value in _marks(question).items():
                assert not value or not parameters[key].choices or value in parameters[key].choices, question


def test_groups_that_are_alike_are_in_the_table() -> None:
    named = set().union(*ALIKE)
    assert named <= set().union(*(concept.tags for concept in concepts()))


def test_texts_fill_their_marks() -> None:
    rng = random.Random(1)
    for texts in (*TEXTS.values(), *idle_questions().values()):
        assert all(text and "{" not in filled(text, rng) for text in texts)


def test_a_call_keeps_to_the_definition() -> None:
    rng = random.Random(2)
    for concept in concepts():
        offered = offer(concept, rng)
        assert jsonschema.Draft202012Validator(offered.definition["parameters"]).is_valid(ask(offered, rng).arguments)


def test_the_same_seed_makes_the_same_conversations() -> None:
    def made() -> list[Any]:
        rng = random.Random(3)
        return [conversation(rng, 2) for _ in range(20)]

    assert made() == made()
