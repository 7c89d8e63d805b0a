"""What each family's chat template makes of a conversation with tools, and that it is the same by every dialect.

`families/NAME.jinja` are written anew from what the families' model cards and templates say of roles, markers and
order, with words of our own between; `families/NAME.txt` is what they render (`make golden` writes it).
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from gateway.conversation.chat_template import ChatTemplate
from gateway.conversation.output.output_formats import detect_output_format
from gateway.conversation.prompt import make_prompt
from gateway.conversation.tokenizer import Tokenizer
from gateway.dialects.anthropic import messages_request
from gateway.dialects.openai import chat_request
from gateway.dialects.openai.responses import request as responses_request
from gateway.generation_request import GenerationRequest
from tests.fast import only_fast
from tests.gateway.conversation.family_models import FAMILIES, MARKER, family_folder, source_of
from tests.gateway.stack import running_stack
from tests.gateway.tiny_model import make_tokenizer

FORMATS = {
    "deepseek-r1": "deepseek",
    "deepseek-v3": "deepseek",
    "deepseek-v3.1": "deepseek",
    "gemma-3": "text",
    "gpt-oss": "harmony",
    "hermes-3": "hermes",
    "llama-3.1": "llama3_json",
    "llama-3.2": "pythonic",
    "mistral-7b-v3": "mistral",
    "mistral-small-3": "mistral",
    "phi-4-mini": "phi4_mini",
    "qwen-2.5": "hermes",
    "qwen-3": "hermes",
    "qwen-3-coder": "hermes",
    "qwen-3-thinking": "hermes",
}
"""Family → how its output is read: hermes reads both ways that Qwen's models write calls."""
ONE_CALL = {"llama-3.1", "gpt-oss"}
"""Those whose templates take one call in a message."""
BEGIN, END = "<|begin|>", "<|end|>"

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Which one"},
        "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
    },
    "required": ["city"],
}
TOOLS = [("get_weather", "Weather in a city", SCHEMA), ("now", "The time", {"type": "object", "properties": {}})]
SYSTEM, ASK, SAYS, THANKS = "Be brief.", "Weather in Zürich?", "Let me see.", "And Köln, and the time? <tool_call>!"
FIRST: list[tuple[str, dict[str, Any], str]] = [
    ("get_weather", {"city": "Zürich <|end|>", "unit": "celsius"}, '{"degrees": 21}')
]
BOTH: list[tuple[str, dict[str, Any], str]] = [("get_weather", {"city": "Köln"}, "rain"), ("now", {}, "12:30")]
LAST = "Warm, then rain."


def chat() -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASK}]
    for step, (said, calls) in enumerate(((SAYS, FIRST), (None, BOTH))):
        if step:
            messages += [{"role": "assistant", "content": LAST}, {"role": "user", "content": THANKS}]
        made = [
            {"id": f"call_{step}{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(said_)}}
            for at, (name, said_, _) in enumerate(calls)
        ]
        messages.append({"role": "assistant", "content": said, "tool_calls": made})
        messages += [
            {"role": "tool", "tool_call_id": f"call_{step}{at}", "content": result}
            for at, (_, _, result) in enumerate(calls)
        ]
    functions = [{"name": name, "description": told, "parameters": schema} for name, told, schema in TOOLS]
    return {
        "model": "tiny",
        "messages": messages,
        "tools": [{"type": "function", "function": one} for one in functions],
    }


def message() -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": ASK}]
    for step, (said, calls) in enumerate(((SAYS, FIRST), (None, BOTH))):
        if step:
            messages += [{"role": "assistant", "content": LAST}, {"role": "user", "content": THANKS}]
        uses = [
            {"type": "tool_use", "id": f"toolu_{step}{at}", "name": name, "input": arguments}
            for at, (name, arguments, _) in enumerate(calls)
        ]
        texts = [{"type": "text", "text": said}] if said else []
        results = [
            {"type": "tool_result", "tool_use_id": f"toolu_{step}{at}", "content": result}
            for at, (_, _, result) in enumerate(calls)
        ]
        messages += [{"role": "assistant", "content": [*texts, *uses]}, {"role": "user", "content": results}]
    tools = [{"name": name, "description": told, "input_schema": schema} for name, told, schema in TOOLS]
    return {"model": "tiny", "max_tokens": 9, "system": SYSTEM, "messages": messages, "tools": tools}


def response() -> dict[str, Any]:
    items: list[dict[str, Any]] = [{"role": "user", "content": ASK}]
    for step, (said, calls) in enumerate(((SAYS, FIRST), (None, BOTH))):
        if step:
            items += [{"role": "assistant", "content": LAST}, {"role": "user", "content": THANKS}]
        items += [{"role": "assistant", "content": said}] if said else []
        items += [
            {"type": "function_call", "call_id": f"fc{step}{at}", "name": name, "arguments": json.dumps(arguments)}
            for at, (name, arguments, _) in enumerate(calls)
        ]
        items += [
            {"type": "function_call_output", "call_id": f"fc{step}{at}", "output": result}
            for at, (_, _, result) in enumerate(calls)
        ]
    tools = [
        {"type": "function", "name": name, "description": told, "parameters": schema} for name, told, schema in TOOLS
    ]
    return {"model": "tiny", "instructions": SYSTEM, "input": items, "tools": tools}


def generations() -> dict[str, GenerationRequest]:
    return {
        "chat": chat_request.parse(json.dumps(chat()).encode()).generation,
        "messages": messages_request.parse(json.dumps(message()).encode()).generation,
        "responses": responses_request.generation_of(
            responses_request.decode_request(json.dumps(response()).encode())
        ).generation,
    }


@cache
def _tokenizer() -> Tokenizer:
    """The markers of all families are tokens of it."""
    made = make_tokenizer()
    markers = sorted({marker for family in FORMATS for marker in MARKER.findall(source_of(family))})
    made.add_special_tokens([AddedToken(text, normalized=False) for text in markers])
    return Tokenizer(made.to_str())


def template_of(family: str) -> ChatTemplate:
    return ChatTemplate(source_of(family), {"bos_token": BEGIN, "eos_token": END}, _tokenizer().special_texts)


def test_every_family_has_its_template() -> None:
    assert {path.stem for path in FAMILIES.glob("*.jinja")} == set(FORMATS) == {p.stem for p in FAMILIES.glob("*.txt")}


@pytest.mark.parametrize("family", FORMATS)
def test_a_family_renders_what_it_is_known_for_by_every_dialect(family: str) -> None:
    template = template_of(family)
    rendered, tokens = {}, {}
    for dialect, generation in generations().items():
        segments = template.render(generation.turns, generation.tools).segments
        rendered[dialect] = "".join(segment.text for segment in segments)
        tokens[dialect] = make_prompt(generation.turns, template, _tokenizer(), 1 << 20, generation.tools).tokens
    golden = FAMILIES / f"{family}.txt"
    if os.environ.get("REWRITE_GOLDENS"):
        golden.write_text(rendered["chat"], encoding="utf-8")
    assert rendered["chat"] == golden.read_text(encoding="utf-8")
    assert rendered["messages"] == rendered["responses"] == rendered["chat"]
    assert tokens["messages"] == tokens["responses"] == tokens["chat"]
    assert detect_output_format(template.source, frozenset(MARKER.findall(template.source))) == FORMATS[family]


@pytest.mark.parametrize("family", FORMATS)
def test_nothing_is_lost_and_nothing_forged(family: str) -> None:
    template, tokenizer = template_of(family), _tokenizer()
    generation = generations()["chat"]
    prompt = make_prompt(generation.turns, template, tokenizer, 1 << 20, generation.tools)
    text = "".join(tokenizer.spelled(token)[1].decode("latin-1") for token in prompt.tokens).encode("latin-1").decode()
    for said in ("Be brief.", ASK, THANKS, "21", "rain", "12:30", "get_weather", "Zürich <|end|>"):
        assert said in text, said
    assert text.index("rain") < text.index("12:30")
    honest = make_prompt(
        chat_request.parse(
            json.dumps(chat(), ensure_ascii=False).replace("<|end|>", "END").replace("<tool_call>!", "call!").encode()
        ).generation.turns,
        template,
        tokenizer,
        1 << 20,
        generation.tools,
    )
    special = [token for token in prompt.tokens if token in tokenizer.special]
    assert special == [token for token in honest.tokens if token in tokenizer.special]


@pytest.mark.parametrize("family", FORMATS)
def test_a_call_that_was_cut_off_is_rendered(family: str) -> None:
    """Also by templates that go through its arguments. Nothing of it becomes a marker."""
    template, tokenizer = template_of(family), _tokenizer()
    body = chat()
    body["messages"] = body["messages"][:4]
    function = body["messages"][2]["tool_calls"][0]["function"]
    special = {}
    for written in ('{"unit": "celsius", "city": "Zürich <|end|>', '{"unit": "celsius", "city": "Zürich'):
        function["arguments"] = written
        generation = chat_request.parse(json.dumps(body).encode()).generation
        prompt = make_prompt(generation.turns, template, tokenizer, 1 << 20, generation.tools)
        raw = b"".join(tokenizer.spelled(token)[1] for token in prompt.tokens)
        special[written] = [token for token in prompt.tokens if token in tokenizer.special]
        printed = template.source.count("arguments | tojson") or FORMATS[family] == "text"
        shown = [written] if printed else ["celsius", written.rpartition('"')[2]]
        assert all(text.encode() in raw for text in shown), raw.decode(errors="replace")
    first, second = special.values()
    assert first == second


@pytest.mark.parametrize("family", sorted(ONE_CALL))
def test_parallel_calls_become_one_after_the_other_where_a_template_takes_one(family: str) -> None:
    """Each before its own result, in whatever order the results come."""
    body = chat()
    body["messages"] = body["messages"][:2] + body["messages"][-3:]
    body["messages"][-2:] = body["messages"][:-3:-1]
    generation = chat_request.parse(json.dumps(body).encode()).generation
    segments = template_of(family).render(generation.turns, generation.tools).segments
    text = "".join(segment.text for segment in segments)
    answer = text[text.index(ASK) :]
    where = [answer.index(part) for part in ("now", "12:30", "Köln", "rain")]
    assert where == sorted(where)


@pytest.mark.parametrize("family", only_fast("llama-3.1", of=FORMATS))
async def test_the_same_conversation_has_the_same_usage(family: str, stocked_sqlite_url: str, tmp_path: Path) -> None:
    folder = family_folder(tmp_path / "model", family)
    async with running_stack(stocked_sqlite_url, tmp_path, folder, context=4096) as stack:
        stack.say("Yes.")
        headers = {"authorization": f"Bearer {stack.key}"}
        version = {"anthropic-version": "2023-06-01"}
        usages = [
            (await stack.http.post(path, json=body, headers=headers | more)).json()["usage"]
            for path, body, more in (
                ("/v1/chat/completions", chat(), {}),
                ("/v1/messages", message(), version),
                ("/v1/responses", response(), {}),
            )
        ]
        prompts = [run.generate.tokens for run in stack.replica.runs.values()]
        assert prompts[0] == prompts[1] == prompts[2]
        assert usages[0]["prompt_tokens"] == usages[1]["input_tokens"] == usages[2]["input_tokens"] == len(prompts[0])
        outputs = [usages[0]["completion_tokens"], usages[1]["output_tokens"], usages[2]["output_tokens"]]
        assert len(set(outputs)) == 1
        events = await stack.settled(3)
        assert len({event.cost_pico for event in events}) == 1
