"""Efforts and budgets: what the families' templates are told, and what the replica is told, by every dialect."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from engine.grammar.llguidance_grammar import LlguidanceGrammars
from engine.grammar.reasoning_guide import ReasoningGuide
from gateway.admission.tool_choice import apply_tool_choice
from gateway.conversation.output.events import whole_output
from gateway.conversation.reasoning import EFFORT_BUDGETS
from gateway.dialects.anthropic import messages_request
from gateway.dialects.openai import chat_request
from gateway.dialects.openai.responses import request as responses_request
from gateway.generation.transcript import Transcript
from gateway.generation_request import GenerationRequest
from gateway.served_models.served_model import ServedModel, load_served_model
from protocol.requests import Reasoning
from tests.gateway.conversation.family_models import family_folder

THINKS = ["deepseek-r1", "deepseek-v3.1", "gpt-oss", "qwen-3", "qwen-3-thinking"]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Köln", "Ulm"]},
        "days": {"type": "array", "items": {"type": "integer"}, "minItems": 2},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"name": "get_weather", "parameters": SCHEMA}
ASK = "Weather?"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cache(lambda family: load_served_model(family_folder(tmp_path_factory.mktemp("model") / "tiny", family)))


def chat(**fields: Any) -> GenerationRequest:
    body = {"model": "tiny", "messages": [{"role": "user", "content": ASK}], **fields}
    return chat_request.parse(json.dumps(body).encode()).generation


def message(**fields: Any) -> GenerationRequest:
    body = {"model": "tiny", "max_tokens": 3000, "messages": [{"role": "user", "content": ASK}], **fields}
    return messages_request.parse(json.dumps(body).encode()).generation


def response(**fields: Any) -> GenerationRequest:
    body = {"model": "tiny", "input": ASK, **fields}
    return responses_request.generation_of(responses_request.decode_request(json.dumps(body).encode())).generation


def text_of(model: ServedModel, tokens: list[int]) -> str:
    return "".join(model.tokenizer.spelled(token)[0] for token in tokens)


def told(model: ServedModel, generation: GenerationRequest) -> tuple[str, Reasoning | None]:
    """The end of the prompt, and what the replica is told."""
    prompt = model.prompt(generation.turns, reasoning=generation.reasoning).tokens
    return text_of(model, prompt), model.reasoning(generation, prompt)


OFF = [chat(reasoning_effort="none"), message(thinking={"type": "disabled"}), response(reasoning={"effort": "none"})]
HIGH = [
    chat(reasoning_effort="high"),
    message(thinking={"type": "adaptive"}, output_config={"effort": "high"}),
    response(reasoning={"effort": "high"}),
]


@pytest.mark.parametrize(
    ("family", "off", "high"),
    [
        ("deepseek-v3.1", "<｜Assistant｜></think>", "<｜Assistant｜><think>"),
        ("qwen-3", "<think>\n\n</think>\n\n", "<|im_start|>assistant\n"),
        ("deepseek-r1", "<think>\n", "<think>\n"),
    ],
)
def test_a_switch_of_the_template_is_set(models: Any, family: str, off: str, high: str) -> None:
    model = models(family)
    for generations, end in ((OFF, off), (HIGH, high)):
        prompts = {told(model, generation)[0] for generation in generations}
        assert len(prompts) == 1, "every dialect's prompt is the same"
        assert prompts.pop().endswith(end)


def test_an_effort_is_said_where_the_template_takes_one(models: Any) -> None:
    """Then it is no budget. What the template has no word for is the nearest."""
    model = models("gpt-oss")
    for effort, word in (("minimal", "low"), ("low", "low"), ("medium", "medium"), ("high", "high"), ("max", "high")):
        text, reasoning = told(model, chat(reasoning_effort=effort))
        assert f"Reasoning: {word}\n" in text
        assert reasoning is None
    text, reasoning = told(model, OFF[0])
    assert "Reasoning: low\n" in text
    assert reasoning is not None
    assert reasoning.budget == 0
    assert "Reasoning: medium\n" in told(model, chat())[0]


@pytest.mark.parametrize("family", [family for family in THINKS if family != "gpt-oss"])
def test_elsewhere_an_effort_is_a_budget(models: Any, family: str) -> None:
    model = models(family)
    think, close = (model.tokenizer.literal(text)[0] for text in ("<think>", "</think>"))
    for effort, budget in EFFORT_BUDGETS.items():
        both = [told(model, chat(reasoning_effort=effort)), told(model, response(reasoning={"effort": effort}))]
        if effort not in ("none", "minimal"):
            both.append(told(model, message(thinking={"type": "adaptive"}, output_config={"effort": effort})))
        prompt, reasoning = both[0]
        assert all(other == both[0] for other in both)
        begun = prompt.rstrip().endswith("<think>")
        expected = Reasoning(end=(close,), begin=(think,), begun=begun, budget=budget)
        assert reasoning == (None if budget is None else expected)
    assert told(model, chat())[1] is None


@pytest.mark.parametrize("family", THINKS)
def test_a_budget_in_tokens_is_kept_by_the_replica(models: Any, family: str) -> None:
    generation = message(thinking={"type": "enabled", "budget_tokens": 2048}, output_config={"effort": "low"})
    _, reasoning = told(models(family), generation)
    assert reasoning is not None
    assert reasoning.budget == 2048


def test_a_model_that_marks_no_reasoning_is_told_nothing(models: Any) -> None:
    model = models("llama-3.1")
    for generation in (*OFF, *HIGH, chat(response_format={"type": "json_object"})):
        assert told(model, generation)[1] is None


def answered(model: ServedModel, generation: GenerationRequest, seed: int, limit: int) -> tuple[Any, int]:
    """What an output says whose every token is drawn evenly from what is allowed, and its tokens of reasoning."""
    generation = apply_tool_choice(model, generation)
    prompt = model.prompt(generation.turns, generation.tools, reasoning=generation.reasoning).tokens
    assert generation.grammar is not None
    grammar = _grammars(model).compiled(generation.grammar.text).guide()
    reasoning = model.reasoning(generation, prompt)
    assert reasoning is not None
    guide = ReasoningGuide(reasoning, model.stop_tokens, grammar)
    said = Transcript(model.detokenizer(), (), model.stop_tokens, parser=model.output_parser(generation, prompt))
    mask, chance = torch.zeros(-(-model.tokenizer.size // 32), dtype=torch.int32), random.Random(seed)
    opened = False
    for left in range(limit, 0, -1):
        guide.fill_mask(mask)
        assert guide.failure is None
        bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")[: model.tokenizer.size]
        allowed = bits.nonzero()[0].tolist()
        written = [token for token in allowed if token not in model.tokenizer.special or token == reasoning.end[0]]
        chosen = chance.choice(written or allowed)
        begin = reasoning.begin[0]
        token = guide.choose_token(begin if bits[begin] and not opened else chosen, left)
        opened = opened or token == begin
        guide.accept_token(token)
        said.feed([token])
        if guide.ended:
            said.finish()
            return whole_output(said.events()), said.reasoning
    raise AssertionError("it did not end")


@cache
def _grammars(model: ServedModel) -> LlguidanceGrammars:
    return LlguidanceGrammars(model.folder, model.tokenizer.size, model.stop_tokens)


@pytest.mark.parametrize("family", THINKS)
def test_a_schema_is_fulfilled_by_the_answer_after_the_reasoning(models: Any, family: str) -> None:
    model = models(family)
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    for seed, effort in enumerate(("none", "minimal", None)):
        fields = {} if effort is None else {"reasoning_effort": effort}
        said, inside = answered(model, chat(response_format=wanted, **fields), seed, 700)
        jsonschema.validate(json.loads(said.text), SCHEMA)
        assert (said.reasoning != "") == (effort != "none")
        if effort == "minimal" and family != "gpt-oss":
            assert inside <= 512 + 2, "with its two markers"


@pytest.mark.parametrize("family", ["deepseek-r1", "gpt-oss", "qwen-3", "qwen-3-thinking"])
def test_a_required_call_follows_the_reasoning(models: Any, family: str) -> None:
    model = models(family)
    said, _ = answered(
        model,
        chat(tools=[{"type": "function", "function": TOOL}], tool_choice="required", parallel_tool_calls=False),
        1,
        400,
    )
    assert said.reasoning
    ((name, arguments),) = said.calls
    assert name == "get_weather"
    jsonschema.validate(json.loads(arguments), SCHEMA)
