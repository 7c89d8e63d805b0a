"""What is large is bounded before it is decoded, and worked on away from the event loop, in fair turns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.conversation.prompt import PromptTooLong
from gateway.conversation.served_model import ServedModel
from gateway.dialects import openai_chat, openai_completions
from gateway.dialects.large_bodies import MOST_PARTS
from gateway.failures import InvalidRequest
from gateway.generation import Text, Turn
from tests.gateway.stack import Stack

USER = '{"role":"user","content":"a"}'


def chat(fields: str = "", messages: str = USER) -> bytes:
    return f'{{"model":"tiny","messages":[{messages}]{fields}}}'.encode()


def repeated(text: str, times: int = 300_000) -> str:
    return ",".join([text] * times)


HOSTILE: dict[str, tuple[Any, bytes, str]] = {
    "parts": (openai_chat, chat(messages='{{"role":"user","content":[{}]}}'.format(repeated("{}"))), "$.messages"),
    "real parts": (
        openai_chat,
        chat(messages='{{"role":"user","content":[{}]}}'.format(repeated('{"type":"text","text":"a"}', 200_000))),
        "$.messages",
    ),
    "messages": (openai_chat, chat(messages=repeated(USER)), "$.messages"),
    "parts of many messages": (
        openai_chat,
        chat(messages=repeated('{{"role":"user","content":[{}]}}'.format(repeated("{}", 200)), 200)),
        "$.messages",
    ),
    "fields that nobody knows": (openai_chat, chat("," + ",".join(f'"k{n}":1' for n in range(600_000))), "$"),
    "one field again and again": (openai_chat, chat("," + repeated('"":1', 1_500_000)), "$"),
    "fields of completions": (openai_completions, chat("," + repeated('"suffiy":1')), "$"),
    "stops": (openai_chat, chat(f',"stop":[{repeated(chr(34) + "a" + chr(34))}]'), "$.stop"),
    "stop tokens": (openai_chat, chat(f',"stop_token_ids":[{repeated("1")}]'), "$.stop_token_ids"),
    "biases": (openai_chat, chat(f',"logit_bias":{{{repeated(chr(34) + "7" + chr(34) + ":1")}}}'), "$.logit_bias"),
    "choices": (openai_chat, chat(f',"guided_choice":[{repeated(chr(34) + "a" + chr(34))}]'), "$.guided_choice"),
    "prompts": (openai_completions, b'{"model":"tiny","prompt":[%s]}' % repeated("[1]").encode(), "$.prompt"),
    "texts": (openai_completions, b'{"model":"tiny","prompt":[%s]}' % repeated('""').encode(), "$.prompt"),
    "tokens": (openai_completions, b'{"model":"tiny","prompt":[%s]}' % repeated("1", 3_000_000).encode(), "$.prompt"),
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
    "biases, again": (openai_chat, chat(f',"logit_bias":{MANY},"logit_bias":{{}}')),
    "biases, then none": (openai_chat, chat(f',"logit_bias":{MANY},"logit_bias":null')),
    "biases by another spelling": (openai_chat, chat(f',"logit\\u005fbias":{MANY},"logit_bias":{{}}')),
    "labels, again": (openai_chat, chat(f',"metadata":{MANY},"metadata":{{}}')),
    "stops, again": (openai_chat, chat(f',"stop":[{repeated("1")}],"stop":"a"')),
    "prompts, again": (openai_completions, b'{"model":"tiny","prompt":[%s],"prompt":[1]}' % repeated("[1]").encode()),
    "tool calls, again": (
        openai_chat,
        chat(messages=f'{{"role":"assistant","tool_calls":[{repeated("1")}],"tool_calls":[],"content":"a"}}'),
    ),
    "messages, again": (
        openai_chat,
        chat(
            f',"messages":[{USER}]',
            f'{{"role":"assistant","tool_calls":[{repeated("1", 30_000)}],"content":"{"a" * 9999}"}}',
        ),
    ),
    "biases, then a field of another type": (openai_chat, chat(f',"logit_bias":{MANY},"messages":5')),
    "biases, then no JSON": (openai_chat, chat(f',"logit_bias":{MANY}') + b"x"),
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
    assert len(openai_chat.parse(body).generation.turns[0].texts) == len(parts)
    text = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": '{[,"' * 1_000_000}]}).encode()
    assert openai_chat.parse(text).generation.turns[0].texts[0].text == '{[,"' * 1_000_000
    ids = json.dumps({"model": "tiny", "prompt": list(range(100_000))}).encode()
    assert openai_completions.parse(ids).generations[0].prompt == tuple(range(100_000))
    with pytest.raises(InvalidRequest, match="messages"):
        openai_chat.parse(json.dumps({"model": "tiny", "x": ["a" * 100_000]}).encode())


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


async def test_large_requests_are_refused_with_the_field(stack: Stack) -> None:
    for content in (" " * 1_000_000, [{"type": "text", "text": "a"}] * 20_000):
        answer = await stack.post({"model": "tiny", "messages": [{"role": "user", "content": content}]})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "$.messages"
