"""Efforts and budgets: what the families' templates are told, and what the replica is told, by every dialect."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest
import torch

from engine.grammar.llguidance_grammar import LlguidanceGrammars
from engine.grammar.reasoning_guide import ReasoningGuide
from gateway.admission.tool_choice import apply_tool_choice
from gateway.conversation.output.events import WholeOutput, whole_output
from gateway.conversation.output.output_formats import OUTPUT_FORMATS
from gateway.conversation.reasoning import EFFORT_BUDGETS
from gateway.dialects.anthropic import messages_request
from gateway.dialects.openai import chat_request
from gateway.dialects.openai.responses import request as responses_request
from gateway.generation.transcript import Transcript
from gateway.generation_request import GenerationRequest
from gateway.served_models.served_model import ServedModel, load_served_model
from protocol.requests import Reasoning
from tests.gateway.conversation.family_models import family_folder, source_of
from tests.gateway.tiny_model import TEMPLATE, make_model_folder

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
    @cache
    def load(family: str) -> ServedModel:
        """A family's model; with a `+`, its markers are no special tokens."""
        folder = tmp_path_factory.mktemp("model") / "tiny"
        return load_served_model(family_folder(folder, family.rstrip("+"), plain=family.endswith("+")))

    return load


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


@pytest.mark.parametrize("family", ["deepseek-r1", "deepseek-r1+", "gpt-oss", "qwen-3", "qwen-3+", "qwen-3-thinking+"])
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


@pytest.mark.parametrize("family", ["qwen-3+", "deepseek-v3+"])
def test_a_marker_of_calls_that_is_no_special_token_arms_the_grammar(models: Any, family: str) -> None:
    model, strict = models(family), {"type": "function", "function": {**TOOL, "strict": True}}
    armed = apply_tool_choice(model, chat(tools=[strict], tool_choice="auto"))
    assert armed.grammar is not None
    grammar = _grammars(model).compiled(armed.grammar.text).guide()
    (trigger,) = model.tokenizer.ids_of([OUTPUT_FORMATS[model.output_format].trigger])
    mask, chance = torch.zeros(-(-model.tokenizer.size // 32), dtype=torch.int32), random.Random(1)
    said = model.output_parser(armed, [])
    assert said is not None
    tokens, events = [], []
    for left in range(400, 0, -1):
        grammar.fill_mask(mask)
        bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little")[: model.tokenizer.size]
        wanted = trigger if bits[trigger] and not tokens else chance.choice(bits.nonzero()[0].tolist())
        tokens.append(grammar.choose_token(wanted, left))
        grammar.accept_token(tokens[-1])
        if grammar.ended:
            break
    text = model.detokenizer()
    for token in tokens:
        events += said.feed(token, "" if token in model.stop_tokens else text.feed(token))
    ((name, arguments), *_) = whole_output([*events, *said.finish()]).calls
    assert name == "get_weather"
    jsonschema.validate(json.loads(arguments), SCHEMA)


@pytest.mark.parametrize(
    ("prefill", "begun"),
    [("<think>", True), ("So. <think>", True), ("<think>Let me", True), ("<think>a</think> b", False), ("So", False)],
)
def test_an_answer_that_is_gone_on_with_may_stand_within_reasoning(models: Any, prefill: str, begun: bool) -> None:
    """Where the client's text is the marker. Where the marker is special, a client cannot write it."""
    turns = [{"role": "user", "content": f"{ASK} <think>"}, {"role": "assistant", "content": prefill}]
    generation = message(messages=turns, thinking={"type": "enabled", "budget_tokens": 1024})
    for family, opens in (("qwen-3+", begun), ("qwen-3", False)):
        model = models(family)
        prompt = model.prompt(generation.turns, continued=True, reasoning=generation.reasoning).tokens
        reasoning, parser = model.reasoning(generation, prompt), model.output_parser(generation, prompt)
        assert reasoning is not None
        assert parser is not None
        assert reasoning.begun == parser.reasoning == opens


def test_what_a_user_says_of_markers_opens_nothing(models: Any) -> None:
    model = models("qwen-3+")
    generation = chat(messages=[{"role": "user", "content": "What is <think>"}], reasoning_effort="low")
    reasoning = model.reasoning(generation, model.prompt(generation.turns).tokens)
    assert reasoning is not None
    assert not reasoning.begun


def made_of_text(folder: Any, template: str) -> ServedModel:
    """A model whose vocabulary has no markers."""
    return load_served_model(make_model_folder(folder, template=template, context=4096))


def test_without_an_end_marker_of_one_token_no_budget_is_promised(tmp_path: Any) -> None:
    """An answer under a grammar begins at once then, and all of it is the answer."""
    model = made_of_text(tmp_path / "tiny", source_of("qwen-3-thinking"))
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    held, free = chat(response_format=schema, reasoning_effort="low"), chat(reasoning_effort="low")
    assert not model.keeps_budgets
    prompt = model.prompt(free.turns).tokens
    for generation in (held, free):
        assert model.reasoning(generation, prompt) is None
    said = model.output_parser(held, prompt)
    assert said is not None
    assert whole_output([*said.feed(1, '{"a": "<think>b'), *said.finish()]) == WholeOutput('{"a": "<think>b', "", ())
    said = model.output_parser(free, prompt)
    assert said is not None
    assert whole_output([*said.feed(1, "hm</think>\n\nYes"), *said.finish()]) == WholeOutput("Yes", "hm", ())


def test_reasoning_ends_in_every_format_of_calls(models: Any, tmp_path: Any) -> None:
    """Also where the template knows no tools, or has calls of another family."""
    opens = TEMPLATE.replace("'<|assistant|>' -", "'<|assistant|><think>' -")
    model = made_of_text(tmp_path / "tiny", opens)
    generation = chat(tools=[{"type": "function", "function": TOOL}])
    for format_ in ("text", "llama3_json", "pythonic", "phi4_mini", "gemma", "hermes"):
        served = msgspec.structs.replace(model, output_format=format_)
        said = served.output_parser(generation, model.prompt(generation.turns).tokens)
        assert said is not None
        output = whole_output([*said.feed(1, "a [ { functools[ <tool_call></think>\nYes"), *said.finish()])
        assert output.text == "Yes"
        assert output.reasoning == "a [ { functools[ <tool_call>"


def test_a_model_that_marks_no_reasoning_may_quote_the_markers(models: Any) -> None:
    said = models("llama-3.1").output_parser(chat(tools=[{"type": "function", "function": TOOL}]), [])
    assert whole_output([*said.feed(1, "It is <think>so</think>."), *said.finish()]).text == "It is <think>so</think>."


def test_reasoning_of_earlier_answers_is_the_same_prompt_in_three_dialects(models: Any) -> None:
    ask, more = {"role": "user", "content": ASK}, {"role": "user", "content": "And?"}
    thought, said = {"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "Sun."}
    item = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    answer = {"role": "assistant", "content": "Sun.", "reasoning_content": "hm"}
    generations = (
        chat(messages=[ask, answer, more]),
        message(messages=[ask, {"role": "assistant", "content": [thought, said]}, more]),
        response(input=[ask, item, {"role": "assistant", "content": "Sun."}, more]),
    )
    model = models("qwen-3+")
    prompts = {tuple(model.prompt(generation.turns).tokens) for generation in generations}
    assert len(prompts) == 1
    assert "<think>\nhm\n</think>" in text_of(model, list(prompts.pop()))
