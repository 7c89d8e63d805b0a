"""Tasks for the demo models: questions whose answer is known to the letter, and questions that need a tool's call."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from engine.core.engine import Engine
from protocol.replicas import Scope
from protocol.requests import Done, Generate, Sampling, Segment, Tokens

MODELS = Path(__file__).resolve().parents[1] / "models"
QUESTIONS, CALLS = MODELS / "stdlib-qa", MODELS / "tool-caller"
SCOPES = {"project": Scope("project", b"root" * 8, b"key")}
_MOST_TOKENS = 200
_AT_ONCE = 32
_PREAMBLE_BYTES = 3_000


@dataclass(frozen=True)
class Model:
    """What it takes to ask a model."""

    tokenizer: Tokenizer
    template: jinja2.Template
    end: int

    @classmethod
    def read(cls, folder: Path) -> Model:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        template = ImmutableSandboxedEnvironment().from_string((folder / "chat_template.jinja").read_text())
        (end,) = tokenizer.encode("<|end|>", add_special_tokens=False).ids
        return cls(tokenizer, template, end)

    def prompt(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        text = self.template.render(messages=messages, add_generation_prompt=True, **variables)
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def answers(engine: Engine, model: Model, prompts: Sequence[list[int]]) -> list[str]:
    """What each prompt is answered with, greedily."""
    outputs: list[list[int]] = [[] for _ in prompts]
    waiting = deque(enumerate(prompts))
    running = 0
    while waiting or running:
        # So few at once that none is refused for the time that it would wait.
        while waiting and running < _AT_ONCE:
            index, prompt = waiting.popleft()
            sampling = Sampling(_MOST_TOKENS, temperature=0.0, stop_tokens=(model.end,))
            segments = (Segment(len(prompt), "project"),)
            engine.add(Generate(str(index), 1, segments, prompt, sampling, credit=1 << 20), SCOPES)
            running += 1
        for event in engine.step().events:
            if isinstance(event, Tokens):
                outputs[int(event.id)] += event.tokens
            elif isinstance(event, Done):
                assert event.reason in ("length", "stop"), event
                running -= 1
    return [model.tokenizer.decode(output, skip_special_tokens=False) for output in outputs]


def right_answers(engine: Engine) -> str:
    """Of the demo model's 100 questions, alone and behind a system prompt of about 1,000 tokens: first sentence right
    to the letter."""
    model = Model.read(QUESTIONS)
    cases = json.loads((QUESTIONS / "questions.json").read_text())
    preamble = (QUESTIONS / "README.md").read_text()[:_PREAMBLE_BYTES]
    before: list[list[dict[str, str]]] = [[], [{"role": "system", "content": preamble}]]
    prompts = [
        model.prompt([*messages, {"role": "user", "content": case["question"]}])
        for messages in before
        for case in cases
    ]
    right = [
        text.removesuffix("<|end|>").strip().startswith(case["expected"])
        for text, case in zip(answers(engine, model, prompts), cases * len(before), strict=True)
    ]
    return f"{sum(right)} of {len(right)}"


def right_calls(engine: Engine) -> str:
    """Of the 100 held-out questions that need a tool: its name and all of its arguments right."""
    model = Model.read(CALLS)
    held_out = json.loads((CALLS / "held_out.json").read_text())
    cases = held_out["calls"]
    prompts = [
        model.prompt(
            [{"role": "user", "content": case["question"]}],
            tools=[{"type": "function", "function": held_out["tools"][name]} for name in case["tools"]],
        )
        for case in cases
    ]
    right = [_is_right(text, case) for text, case in zip(answers(engine, model, prompts), cases, strict=True)]
    return f"{sum(right)} of {len(right)}"


def _is_right(text: str, case: Mapping[str, Any]) -> bool:
    written = text.removesuffix("<|end|>").strip()
    if not written.startswith("<tool_call>") or not written.endswith("</tool_call>"):
        return False
    try:
        call = json.loads(written.removeprefix("<tool_call>").removesuffix("</tool_call>"))
        return bool(call["name"] == case["name"] and call["arguments"] in case["arguments"])
    except (ValueError, KeyError, TypeError):
        return False
