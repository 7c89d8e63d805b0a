"""A change of one value is named by a path that leads to it, whatever a template makes of the request."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.dialects.anthropic import messages_request
from gateway.dialects.openai import chat_request
from gateway.generation.request_history import piece_notes
from gateway.served_models.served_model import ServedModel, load_served_model
from prompt_cache.history.diagnosis import Earlier, path_at
from prompt_cache.history.prefix_hashes import LEAST_PIECE
from prompt_cache.history.records import RequestRecord, SpanNote
from tests.gateway.conversation.test_tools import LINES, READER
from tests.gateway.tiny_model import TEMPLATE, make_model_folder
from tests.prompt_cache.history.mutations import sentence
from tests.prompt_cache.history.test_store import noted

SEEDS = 40
TEMPLATES = {"lines": LINES, "reader": READER, "none": TEMPLATE}
Step = str | int


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ServedModel]:
    folder = tmp_path_factory.mktemp("models")
    made = {name: make_model_folder(folder / name, template=template) for name, template in TEMPLATES.items()}
    return {name: load_served_model(path) for name, path in made.items()} | {
        "demo": load_served_model(Path(__file__).parents[3] / "models" / "tool-caller")
    }


def schema(dice: random.Random) -> dict[str, Any]:
    fields: list[dict[str, Any]] = [
        {"type": "string", "description": sentence(dice, 3)},
        {"type": "integer", "description": sentence(dice, 2), "minimum": dice.randrange(9), "maximum": 90},
        {"type": "string", "description": "x", "enum": [sentence(dice, 1), sentence(dice, 2)]},
        {"type": "array", "description": "y", "items": {"type": "string", "maxLength": 5}, "minItems": 1},
    ]
    dice.shuffle(fields)
    names = ("city", "days", "unit", "places")
    return {
        "type": "object",
        "properties": dict(zip(names, fields, strict=True)),
        "required": ["city", "days"],
        "additionalProperties": False,
    }


def text(dice: random.Random) -> Any:
    """A text, or parts."""
    if dice.random() < 0.5:
        return sentence(dice, 6)
    return [{"type": "text", "text": sentence(dice, dice.choice((1, 4, 9)))} for _ in range(dice.randrange(1, 4))]


def request(dice: random.Random, dialect: str) -> dict[str, Any]:
    tools: list[dict[str, Any]] = [
        {"name": f"look{at}", "description": sentence(dice, 5), "schema": schema(dice)} for at in range(3)
    ]
    arguments = {"city": sentence(dice, 2), "days": dice.randrange(9), "far": True}
    if dialect == "chat":
        call = {"id": "c1", "type": "function", "function": {"name": "look0", "arguments": json.dumps(arguments)}}
        return {
            "model": "m",
            "tools": [{"type": "function", "function": {"parameters": tool.pop("schema"), **tool}} for tool in tools],
            "messages": [
                {"role": "system", "content": text(dice)},
                {"role": "user", "content": text(dice)},
                {"role": "assistant", "content": sentence(dice, 3), "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": text(dice)},
                {"role": "assistant", "content": text(dice)},
                {"role": "user", "content": text(dice)},
            ],
        }
    call = {"type": "tool_use", "id": "c1", "name": "look0", "input": arguments}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": text(dice)}
    return {
        "model": "m",
        "max_tokens": 9,
        "system": text(dice),
        "tools": [{"input_schema": tool.pop("schema"), **tool} for tool in tools],
        "messages": [
            {"role": "user", "content": text(dice)},
            {"role": "assistant", "content": [{"type": "text", "text": sentence(dice, 3)}, call]},
            {"role": "user", "content": [result, {"type": "text", "text": sentence(dice, 4)}]},
            {"role": "assistant", "content": text(dice)},
            {"role": "user", "content": text(dice)},
        ],
    }


FIXED = {"role", "type", "id", "tool_call_id", "tool_use_id", "model", "max_tokens"}
"""Values that are no content: without them it is another request, or none."""


def leaves(value: Any, path: tuple[Step, ...] = ()) -> Iterator[tuple[Step, ...]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in FIXED:
                yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from leaves(inner, (*path, at))
    else:
        yield path


def changed(value: Any, dice: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + dice.choice((1, 7, 100))
    if value.startswith("{"):  # arguments
        return json.dumps(
            {**json.loads(value), dice.choice(("city", "days", "far", "new")): dice.choice(("Z", 4, None))}
        )
    words = value.split(" ")
    at = dice.randrange(len(words))
    return dice.choice(
        [" ".join([*words[:at], "Zebra", *words[at + 1 :]]), f"{value} Zebra", f"{value}.", " ".join(words[: at + 1])]
    )


def path_of(steps: tuple[Step, ...]) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


def recorded(model: ServedModel, body: dict[str, Any]) -> tuple[list[int], RequestRecord]:
    parse = messages_request.parse if "max_tokens" in body else chat_request.parse
    generation = parse(json.dumps(body).encode()).generation
    prompt = model.prompt(generation.turns, generation.tools)
    spans = tuple(SpanNote(span.path, span.start, span.end) for span in prompt.spans)
    pieces = piece_notes(generation, b"secret", spans)
    return prompt.tokens, noted(prompt.tokens, 1, spans=spans, pieces=pieces, root_path=generation.turns_path).record


@pytest.mark.parametrize("dialect", ["chat", "messages"])
@pytest.mark.parametrize("name", [*TEMPLATES, "demo"])
def test_a_changed_value_is_named_by_a_path_to_it(models: dict[str, ServedModel], name: str, dialect: str) -> None:
    wrong, seen = [], 0
    for seed in range(SEEDS):
        dice = random.Random(f"{dialect} {seed}")
        before = request(dice, dialect)
        place = dice.choice(list(leaves(before)))
        after = copy.deepcopy(before)
        holder: Any = after
        for step in place[:-1]:
            holder = holder[step]
        holder[place[-1]] = changed(holder[place[-1]], dice)
        if place[-1] == "name":
            continue  # of a tool: calls name it too
        (old, earlier), (new, record) = (recorded(models[name], body) for body in (before, after))
        common = next((at for at, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), None)
        if common is None or common < LEAST_PIECE:
            continue  # the template does not show it, or nobody may know
        seen += 1
        told = path_at(record, common, Earlier(earlier, common))
        if not (path_of(place) + ".").replace("[", ".[").startswith(told.replace("[", ".[") + "."):
            wrong.append(f"{path_of(place)}: told {told}")
    assert seen > SEEDS / 3
    assert not wrong, f"{len(wrong)} of {seen}:\n" + "\n".join(wrong)
