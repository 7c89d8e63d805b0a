"""Markers become positions in the rendered tokens, whatever a template does to the texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.admission.cache_plans import cache_plan
from gateway.conversation.prompt import Prompt, make_prompt
from gateway.dialects.anthropic import messages_request
from gateway.dialects.openai import chat_request, completions_request
from gateway.errors import InvalidField
from gateway.generation_request import GenerationRequest
from gateway.served_models.served_model import ServedModel, load_served_model
from prompt_cache.promise.directives import CachePlan
from tests.fast import examples
from tests.gateway.tiny_model import TEMPLATE, make_model_folder

BREAKPOINT: dict[str, Any] = {"prompt_cache_breakpoint": {"mode": "explicit"}}
CONTROL: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
EXPLICIT: dict[str, Any] = {"prompt_cache_options": {"mode": "explicit"}}
LONG = "Remove any common leading whitespace from every line in text. "


def chat(*messages: tuple[str, list[tuple[str, dict[str, Any]]]], **fields: Any) -> GenerationRequest:
    said = [
        {"role": role, "content": [{"type": "text", "text": text, **marker} for text, marker in parts]}
        for role, parts in messages
    ]
    return chat_request.parse(json.dumps({"model": "tiny", "messages": said, **fields}).encode()).generation


def planned(model: ServedModel, generation: GenerationRequest) -> tuple[Prompt, CachePlan]:
    prompt = model.prompt(generation.turns, generation.tools)
    return prompt, cache_plan(generation, prompt, model)


def points(plan: CachePlan) -> list[int]:
    return [point.tokens for point in plan.breakpoints]


def test_a_marker_ends_where_its_text_does(model: ServedModel) -> None:
    generation = chat(("system", [(LONG, {}), (LONG, BREAKPOINT), (LONG, {})]), ("user", [("Why?", {})]), **EXPLICIT)
    prompt, plan = planned(model, generation)
    assert points(plan) == [prompt.spans[1].end]
    assert plan.lookups == tuple(sorted({prompt.spans[n].end for n in (1, 2, 3)}, reverse=True))


def test_the_prefix_is_the_same_whatever_follows_it(model: ServedModel) -> None:
    marked = ("system", [(LONG, BREAKPOINT)])
    first, one = planned(model, chat(marked, ("user", [("Why?", {})]), **EXPLICIT))
    second, other = planned(
        model, chat(marked, ("user", [(LONG, {}), ("x", {})]), ("assistant", [("y", {})]), **EXPLICIT)
    )
    (end,) = points(one)
    assert points(other) == [end]
    assert first.tokens[:end] == second.tokens[:end]


def test_a_text_that_leaves_nothing_behind_ends_where_the_one_before_it_does(model: ServedModel) -> None:
    generation = chat(("system", [(LONG, {}), ("", BREAKPOINT)]), ("user", [("Why?", {})]), **EXPLICIT)
    prompt, plan = planned(model, generation)
    assert points(plan) == [prompt.spans[0].end]


def test_a_marker_before_everything_promises_nothing(model: ServedModel) -> None:
    generation = chat(("system", [("", BREAKPOINT), (LONG, {})]), ("user", [("Why?", {})]), **EXPLICIT)
    assert points(planned(model, generation)[1]) == []


TRIMMING = TEMPLATE.replace("message['content']", "message['content'] | trim")
CUTTING = TEMPLATE.replace("message['content']", "message['content'][:60]")


@pytest.mark.parametrize(("name", "template", "known"), [("trim", TRIMMING, True), ("cut", CUTTING, False)])
def test_a_template_that_changes_texts(tmp_path: Path, name: str, template: str, known: bool) -> None:
    model = load_served_model(make_model_folder(tmp_path / name, template=template))
    marked = f"  {LONG}\n"
    prompt, plan = planned(model, chat(("system", [(marked, BREAKPOINT)]), ("user", [("Why?", {})]), **EXPLICIT))
    assert bool(prompt.spans) is known
    assert points(plan) == ([prompt.spans[0].end] if known else [])
    _, automatic = planned(model, chat(("user", [(marked, {})]), prompt_cache_options={}))
    assert len(automatic.breakpoints) == known


def test_what_the_rules_refuse_is_named_where_a_template_hides_the_place(tmp_path: Path) -> None:
    model = load_served_model(make_model_folder(tmp_path / "cut", template=CUTTING))
    blocks = [{"type": "text", "text": LONG, **CONTROL} for _ in range(5)]
    body = {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": blocks}]}
    with pytest.raises(InvalidField) as caught:
        planned(model, messages_request.parse(json.dumps(body).encode()).generation)
    assert caught.value.path == "$.messages[0].content[4].cache_control"


def test_a_prompt_without_messages_is_one_block(model: ServedModel) -> None:
    body = {"model": "tiny", "prompt": LONG, "prompt_cache_options": {"ttl": "12h"}}
    (generation,) = completions_request.parse(json.dumps(body).encode()).generations
    prompt = model.continued(LONG, "$.prompt")
    plan = cache_plan(generation, prompt, model)
    assert [(point.tokens, point.lease) for point in plan.breakpoints] == [(len(prompt.tokens), "12h")]
    assert plan.lookups == (len(prompt.tokens),)


def test_an_unmarked_request_gets_the_same_plan_object_each_time(model: ServedModel) -> None:
    plans = [planned(model, chat(("user", [(text, {})])))[1] for text in ("one", "two")]
    assert plans[0] is plans[1]
    assert plans[0].lookups == ()


TURN = st.lists(st.sampled_from(["a", "Why?", "def f(x)", "東京"]), min_size=1, max_size=3)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(TURN, min_size=2, max_size=16), st.booleans(), st.integers(1, 6))
def test_a_conversation_that_grows_finds_what_it_wrote(
    model: ServedModel, turns: list[list[str]], anthropic: bool, step: int
) -> None:
    """Whichever dialect it is written in, and whichever dialect reads it."""
    roles = ("user", "assistant")
    said = [
        {"role": roles[at % 2], "content": [{"type": "text", "text": f"{LONG[:24]}{text}"} for text in turn]}
        for at, turn in enumerate(turns)
    ]
    lengths = list(range(1, len(said) + 1, step))
    written: tuple[list[int], list[int]] | None = None
    for number, length in enumerate(lengths):
        here = anthropic ^ bool(number % 2)
        body: dict[str, Any] = {"model": "tiny", "messages": said[:length]}
        if here:
            parsed = messages_request.parse(json.dumps({**body, "max_tokens": 1, **CONTROL}).encode()).generation
        else:
            parsed = chat_request.parse(json.dumps({**body, "prompt_cache_options": {}}).encode()).generation
        prompt = make_prompt(parsed.turns, model.template, model.tokenizer, 1 << 20)
        plan = cache_plan(parsed, prompt, model)
        if written is not None:
            before, tokens = written
            assert set(before) & set(plan.lookups)
            assert prompt.tokens[: before[-1]] == tokens[: before[-1]]
        written = points(plan), prompt.tokens
        assert points(plan) == [prompt.spans[-1].end]
