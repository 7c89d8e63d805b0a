"""The official Anthropic client, unchanged but for base_url and key, against real processes."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from tests.awake import Awake
from tests.e2e.conftest import Running

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
MODEL = "stdlib-qa"
ASK: Any = {
    "model": MODEL,
    "max_tokens": 40,
    "extra_body": {"temperature": 0},
    "messages": [{"role": "user", "content": "What does textwrap.dedent do?"}],
}
MARK: Any = {"type": "ephemeral"}
TOOL: Any = {
    "name": "look",
    "description": "Look a function up in the documentation of the standard library. " * 40,
    "input_schema": {"type": "object", "properties": {"function": {"type": "string"}}, "required": ["function"]},
}


def client_of(serve: Running) -> Anthropic:
    return Anthropic(base_url=serve.base, api_key=serve.key, max_retries=0, timeout=120)


def text_of(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_an_answer_whole_and_streamed(serve: Running) -> None:
    with client_of(serve) as client:
        whole = client.messages.create(**ASK)
        with client.messages.stream(**ASK) as stream:
            text = "".join(stream.text_stream)
            end = stream.get_final_message()
        counted = client.messages.count_tokens(model=MODEL, messages=ASK["messages"])
    assert "whitespace" in text_of(whole)
    assert text == text_of(end) == text_of(whole)
    assert whole.stop_reason == end.stop_reason
    assert whole.usage.input_tokens == end.usage.input_tokens == counted.input_tokens
    assert (whole.usage.cache_read_input_tokens, whole.usage.cache_creation_input_tokens) == (0, 0)


def test_what_was_prewarmed_is_read_and_the_answer_is_the_same(serve: Running) -> None:
    system: Any = [{"type": "text", "text": "You answer questions about the Python standard library. " * 100}]
    marked: Any = [{**system[0], "cache_control": MARK}]
    with client_of(serve) as client:
        cold = client.messages.create(**ASK, system=system)
        warmed = client.messages.create(**{**ASK, "max_tokens": 0}, system=marked)
        assert (warmed.content, warmed.stop_reason) == ([], "max_tokens")
        written = warmed.usage.cache_creation_input_tokens or 0
        assert written > 512
        with Awake() as awake, client.messages.stream(**ASK, system=marked) as stream:
            next(iter(stream.text_stream))
            assert awake.seconds < 5
            end = stream.get_final_message()
    assert (end.usage.cache_read_input_tokens, end.usage.cache_creation_input_tokens) == (written, 0)
    assert text_of(end) == text_of(cold)


def test_definitions_are_cached_and_the_model_still_answers(serve: Running) -> None:
    with client_of(serve) as client:
        tools: Any = [{**TOOL, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
        first = client.messages.create(**ASK, tools=tools, system=[{"type": "text", "text": "Be brief."}])
        said: Any = [
            *ASK["messages"],
            {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "It dedents."}]},
        ]
        second = client.messages.create(**{**ASK, "messages": said}, tools=tools)
    assert first.usage.cache_creation is not None
    written = first.usage.cache_creation.ephemeral_1h_input_tokens
    assert written > 256
    assert second.usage.cache_read_input_tokens == written


def test_an_answer_goes_on_and_fits_a_schema(serve: Running) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    with client_of(serve) as client:
        begun: Any = [*ASK["messages"], {"role": "assistant", "content": "Remove any common leading"}]
        assert text_of(client.messages.create(**{**ASK, "messages": begun})).startswith(" whitespace")
        shaped = client.messages.create(**ASK, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert '"ok"' in text_of(shaped)


def test_errors_arrive_as_the_clients_own_exceptions(serve: Running) -> None:
    with client_of(serve) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        with pytest.raises(anthropic.NotFoundError) as missing:
            client.messages.create(**{**ASK, "model": "nope"})
        assert missing.value.request_id
        with pytest.raises(anthropic.BadRequestError, match=r"\$\.tools\[0\]\.type"):
            client.messages.create(**ASK, tools=[{"type": "web_search_20250305", "name": "web_search"}])
