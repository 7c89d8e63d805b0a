"""Measures a network on questions of tools: the right call with the right arguments, or none."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo_model.evaluate import greedy
from demo_model.network import Llama
from tokenizers import Tokenizer

from .conversations import _amiss, _kit, small_talk
from .questions import ask, polished
from .template import CALL, CALL_END, END
from .tools import concepts, offer
from .windows import compiled_template


@dataclass(frozen=True)
class Case:
    """A question with the tools offered. `name` is "" if no call is right; `arguments` lists the right ones."""

    tools: list[dict[str, Any]]
    question: str
    name: str = ""
    arguments: tuple[dict[str, Any], ...] = ()


def held_out(file: Path) -> tuple[list[Case], list[Case]]:
    """The questions that need a call, and those that need none."""
    read = json.loads(file.read_text())

    def offered(case: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"type": "function", "function": read["tools"][name]} for name in case["tools"]]

    calls = [Case(offered(case), case["question"], case["name"], tuple(case["arguments"])) for case in read["calls"]]
    return calls, [Case(offered(case), case["question"]) for case in read["no_calls"]]


def of_unseen_concepts(count: int, hold_back: int, seed: int) -> tuple[list[Case], list[Case]]:
    """Questions for those concepts of the table that training left out."""
    rng = random.Random(f"unseen-{seed}")
    unseen = tuple(one for at, one in enumerate(concepts()) if not at % hold_back)
    calls, silent = [], []
    for _ in range(count):
        kit = _kit(rng, 4, unseen)
        chosen = rng.choice(kit)
        asked = ask(chosen, rng)
        definitions = [{"type": "function", "function": one.definition} for one in kit]
        name = chosen.definition["name"]
        calls.append(Case(definitions, polished(asked, rng), name, (asked.arguments,)))
        question = small_talk(kit, rng)[0] if rng.random() < 0.4 else _amiss(kit, rng, unseen)
        if question is not None:
            silent.append(Case(definitions, question))
    return calls, silent


def calls_in(text: str) -> list[tuple[str, Any]] | None:
    """The calls of an answer; None if one cannot be read."""
    found = []
    for part in text.split(CALL)[1:]:
        try:
            call = json.loads(part.split(CALL_END)[0])
            found.append((call["name"], call["arguments"]))
        except (ValueError, KeyError, TypeError):
            return None
    return found


def is_right(case: Case, answer: str) -> bool:
    """Whether the answer is the one right call, or none where none is right."""
    found = calls_in(answer)
    if not case.name:
        return found == []
    return found is not None and len(found) == 1 and found[0][0] == case.name and found[0][1] in case.arguments


def score(model: Llama, tokenizer: Tokenizer, cases: list[Case]) -> tuple[int, list[tuple[Case, str]]]:
    """How many are right, and the wrong ones."""
    template, end = compiled_template(), tokenizer.token_to_id(END)
    right, wrong = 0, []
    for start in range(0, len(cases), 100):
        some = cases[start : start + 100]
        prompts = [
            tokenizer.encode(
                template.render(
                    messages=[{"role": "user", "content": case.question}], tools=case.tools, add_generation_prompt=True
                ),
                add_special_tokens=False,
            ).ids
            for case in some
        ]
        for case, ids in zip(some, greedy(model, prompts, end), strict=True):
            answer = tokenizer.decode(ids, skip_special_tokens=False)
            if is_right(case, answer):
                right += 1
            else:
                wrong.append((case, answer))
    return right, wrong


__all__ = ["Case", "held_out", "is_right", "of_unseen_concepts", "offer", "score"]
