"""Large bodies are limited before they are decoded, and decoded outside the event loop in fair turns."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from gateway.admission import admission
from gateway.conversation.prompt import PromptTooLong
from gateway.dialects.large_bodies import MOST_PARTS
from gateway.dialects.openai import chat_request, completions_request
from gateway.errors import InvalidRequest
from gateway.generation_request import Text, Turn
from gateway.served_models.served_model import ServedModel
from tests.gateway.stack import Stack

USER = '{"role":"user","content":"a"}'
CUSTOM = '{"type":"custom"}'


def chat(fields: str = "", messages: str = USER) -> bytes:
    return f'{{"model":"tiny","messages":[{messages}]{fields}}}'.encode()


def repeated(text: str, times: int = 300_000) -> str:
    return ",".join([text] * times)


HOSTILE: dict[str, tuple[Any, bytes, str]] = {
    "parts": (chat_request, chat(messages='{{"role":"user","content":[{}]}}'.format(repeated("{}"))), "$.messages"),
    "real parts": (
        chat_request,
        chat(messages='{{"role":"user","content":[{}]}}'.format(repeated('{"type":"text","text":"a"}', 200_000))),
        "$.messages",
    ),
    "messages": (chat_request, chat(messages=repeated(USER)), "$.messages"),
    "parts of many messages": (
        chat_request,
        chat(messages=repeated('{{"role":"user","content":[{}]}}'.format(repeated("{}", 200)), 200)),
        "$.messages",
    ),
    "fields that nobody knows": (chat_request, chat("," + ",".join(f'"k{n}":1' for n in range(600_000))), "$"),
    "one field again and again": (chat_request, chat("," + repeated('"":1', 1_500_000)), "$"),
    "fields of completions": (completions_request, chat("," + repeated('"suffiy":1')), "$"),
    "stops": (chat_request, chat(f',"stop":[{repeated(chr(34) + "a" + chr(34))}]'), "$.stop"),
    "stop tokens": (chat_request, chat(f',"stop_token_ids":[{repeated("1")}]'), "$.stop_token_ids"),
    "biases": (chat_request, chat(f',"logit_bias":{{{repeated(chr(34) + "7" + chr(34) + ":1")}}}'), "$.logit_bias"),
    "choices": (chat_request, chat(f',"guided_choice":[{repeated(chr(34) + "a" + chr(34))}]'), "$.guided_choice"),
    "prompts": (completions_request, b'{"model":"tiny","prompt":[%s]}' % repeated("[1]").encode(), "$.prompt"),
    "tools": (chat_request, chat(f',"tools":[{repeated(CUSTOM)}]'), "$.messages"),
    "allowed tools": (
        chat_request,
        chat(f',"tool_choice":{{"type":"allowed_tools","allowed_tools":{{"tools":[{repeated(CUSTOM)}]}}}}'),
        "$.tool_choice",
    ),
    "texts": (completions_request, b'{"model":"tiny","prompt":[%s]}' % repeated('""').encode(), "$.prompt"),
    "tokens": (completions_request, b'{"model":"tiny","prompt":[%s]}' % repeated("1", 3_000_000).encode(), "$.prompt"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_has_too_many_parts_is_not_decoded(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dialect, body, path = HOSTILE[case]
    monkeypatch.setattr(dialect, "decode", lambda *_, **__: pytest.fail("it was decoded"))
    with pytest.raises(InvalidRequest) as refused:
        dialect.parse(body)
    assert refused.value.path == path


MANY = f"{{{repeated(chr(34) + '7' + chr(34) + ':1')}}}"
HIDDEN: dict[str, tuple[Any, bytes]] = {
    "biases, again": (chat_request, chat(f',"logit_bias":{MANY},"logit_bias":{{}}')),
    "biases, then none": (chat_request, chat(f',"logit_bias":{MANY},"logit_bias":null')),
    "biases by another spelling": (chat_request, chat(f',"logit\\u005fbias":{MANY},"logit_bias":{{}}')),
    "labels, again": (chat_request, chat(f',"metadata":{MANY},"metadata":{{}}')),
    "stops, again": (chat_request, chat(f',"stop":[{repeated("1")}],"stop":"a"')),
    "prompts, again": (completions_request, b'{"model":"tiny","prompt":[%s],"prompt":[1]}' % repeated("[1]").encode()),
    "tool calls, again": (
        chat_request,
        chat(messages=f'{{"role":"assistant","tool_calls":[{repeated("1")}],"tool_calls":[],"content":"a"}}'),
    ),
    "messages, again": (
        chat_request,
        chat(
            f',"messages":[{USER}]',
            f'{{"role":"assistant","tool_calls":[{repeated("1", 30_000)}],"content":"{"a" * 9999}"}}',
        ),
    ),
    "biases, then a field of another type": (chat_request, chat(f',"logit_bias":{MANY},"messages":5')),
    "biases, then no JSON": (chat_request, chat(f',"logit_bias":{MANY}') + b"x"),
}


@pytest.mark.parametrize("case", HIDDEN)
def test_what_hides_its_parts_is_not_decoded(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dialect, body = HIDDEN[case]
    monkeypatch.setattr(dialect, "decode", lambda *_, **__: pytest.fail("it was decoded"))
    with pytest.raises(InvalidRequest):
        dialect.parse(body)


def test_what_is_large_and_good_is_decoded() -> None:
    parts = [{"type": "text", "text": "a" * 100}] * (MOST_PARTS - 1)
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": parts}]}).encode()
    assert len(chat_request.parse(body).generation.turns[0].texts) == len(parts)
    text = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": '{[,"' * 1_000_000}]}).encode()
    assert chat_request.parse(text).generation.turns[0].texts[0].text == '{[,"' * 1_000_000
    ids = json.dumps({"model": "tiny", "prompt": list(range(100_000))}).encode()
    assert completions_request.parse(ids).generations[0].prompt == tuple(range(100_000))
    with pytest.raises(InvalidRequest, match="messages"):
        chat_request.parse(json.dumps({"model": "tiny", "x": ["a" * 100_000]}).encode())


def test_a_text_that_cannot_fit_is_not_tokenized(model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = model.tokenizer
    long = " " * (4 * tokenizer._longest * model.context_tokens)
    exact = len(tokenizer.content(long[: 64 * tokenizer._longest]))
    assert tokenizer.least_tokens(64 * tokenizer._longest) <= exact
    monkeypatch.setattr(tokenizer, "_encode", lambda *_: pytest.fail("it was tokenized"))
    with pytest.raises(PromptTooLong):
        model.prompt((Turn("user", (Text(long, "$.messages[0].content"),)),))
    with pytest.raises(PromptTooLong):
        model.continued(long, "$.prompt")


TOOL_TEXTS: dict[str, dict[str, Any]] = {
    "a description": {"tools": [{"name": "f", "description": "<" * 40_000}]},
    "a schema": {"tools": [{"name": "f", "parameters": {"description": "<" * 40_000}}]},
    "schemas to choose from": {
        "tools": [{"name": "f", "parameters": {"type": "object", "description": "<" * 40_000}}],
        "tool_choice": "required",
    },
}


@pytest.mark.parametrize("case", TOOL_TEXTS)
async def test_large_tools_are_read_outside_the_event_loop(
    case: str, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = TOOL_TEXTS[case]
    threads = []

    def note(work: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            threads.append(threading.current_thread())
            return work(*args, **kwargs)

        return noted

    monkeypatch.setattr(ServedModel, "prompt", note(ServedModel.prompt))
    monkeypatch.setattr(admission, "apply_tool_choice", note(admission.apply_tool_choice))
    tools = [{"type": "function", "function": function} for function in said["tools"]]
    user = {"role": "user", "content": "hi"}
    await stack.post({"model": "tiny", "messages": [user], **said, "tools": tools})
    assert threads
    assert threading.main_thread() not in threads


async def test_large_requests_are_refused_with_the_field(stack: Stack) -> None:
    for content in (" " * 1_000_000, [{"type": "text", "text": "a"}] * 20_000):
        answer = await stack.post({"model": "tiny", "messages": [{"role": "user", "content": content}]})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "messages"
