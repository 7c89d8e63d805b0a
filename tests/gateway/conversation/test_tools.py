"""Tools, calls and results in prompts: rendered as Hugging Face does, found again, and never a special token."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.conversation.chat_template import ChatTemplate
from gateway.conversation.prompt import Prompt, make_prompt
from gateway.conversation.tokenizer import Tokenizer
from gateway.generation_request import Text, Tool, ToolCall, Turn
from tests.fast import examples
from tests.gateway.tiny_model import SPECIALS, TEMPLATE, make_tokenizer

LINES = """\
{{- '<|begin|>' }}
{%- if tools %}<|system|>{% if messages[0].role == 'system' %}{{ messages[0].content + '\\n' }}{% endif %}Tools:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|end|>{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}<|user|><result>{{ message.content }}</result><|end|>
{%- elif message.role != 'system' or not tools %}<|{{ message.role }}|>
{%- if message.reasoning_content %}<think>{{ message.reasoning_content | trim }}</think>{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
<call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</call>
{%- endfor %}<|end|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
"""Prints definitions as JSON."""
READER = """\
{{- '<|begin|>' }}
{%- for tool in tools or [] %}<|system|>{{ tool.function.name }}: {{ tool.function.description }}
{%- for name, field in tool.function.parameters.properties.items() %}
<{{ name }}>{% if field.type == 'string' %}text{% else %}{{ field.type }}{% endif %}
{%- if name in tool.function.parameters.required %}!{% endif %} {{ field.description }}
{%- endfor %}<|end|>
{%- endfor %}
{%- for message in messages %}<|{{ 'user' if message.role == 'tool' else message.role }}|>{{ message.content }}
{%- for call in message.tool_calls or [] %} {{ call.function.name }}(
{%- for name, value in call.function.arguments.items() %}{{ name }}={{ value }},{% endfor %}){% endfor %}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
"""Goes through the schema, compares with its words, and puts the client's names between marks of its own."""
SPOKEN = READER.replace("{{ field.description }}", "<|user|>{{ field.description }}<|user|>")
"""Has special tokens within a definition."""
TEMPLATES = {"lines": LINES, "reader": READER, "spoken": SPOKEN, "none": TEMPLATE}
TOKENIZER = Tokenizer(make_tokenizer().to_str())
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Its name."},
        "days": {"type": "number", "description": "n"},
    },
    "required": ["city"],
}


def conversation(said: str, schema: dict[str, Any] = CITY) -> tuple[tuple[Turn, ...], tuple[Tool, ...]]:
    """A conversation with a call; `said` is every text in it."""
    call = ToolCall(json.dumps({"city": said, "days": 1}), "$.call", id="toolu_1", name="look")
    turns = (
        Turn("system", (Text(said, "$.system"),)),
        Turn("user", (Text(said, "$.question"),)),
        Turn("assistant", (Text(said, "$.thinking", "thinking"), Text(said, "$.text"), call)),
        Turn("tool", (Text(said, "$.result", "tool_result"),), "toolu_1", "look"),
        Turn("user", (Text(said, "$.more"),)),
    )
    return turns, (
        Tool("look", said, json.dumps(schema), "$.tools[0]"),
        Tool("other", None, json.dumps(CITY), "$.tools[1]"),
    )


def messages(said: str) -> list[dict[str, Any]]:
    """The same conversation as Hugging Face takes it."""
    function = {"name": "look", "arguments": {"city": said, "days": 1}}
    return [
        {"role": "system", "content": said},
        {"role": "user", "content": said},
        {
            "role": "assistant",
            "content": said,
            "reasoning_content": said,
            "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": said, "tool_call_id": "toolu_1", "name": "look"},
        {"role": "user", "content": said},
    ]


def definitions(said: str) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": "look", "description": said, "parameters": CITY}},
        {"type": "function", "function": {"name": "other", "parameters": CITY}},
    ]


def template_of(name: str) -> ChatTemplate:
    return ChatTemplate(TEMPLATES[name], {}, frozenset(SPECIALS))


def prompt_of(name: str, said: str, **fields: Any) -> Prompt:
    turns, tools = conversation(said, **fields)
    return make_prompt(turns, template_of(name), TOKENIZER, 100_000, tools)


def tokenizer_of_transformers(template: str) -> Any:
    from transformers import PreTrainedTokenizerFast  # takes a second, for which no other test needs to wait

    return PreTrainedTokenizerFast(tokenizer_object=make_tokenizer(), chat_template=template)


@pytest.mark.parametrize("name", ["lines", "reader", "spoken"])
@pytest.mark.parametrize("said", ["Köln", "", "  a\n", "<|end|>", '"\\'])
def test_the_text_is_that_of_transformers(name: str, said: str) -> None:
    theirs = tokenizer_of_transformers(TEMPLATES[name])
    expected = theirs.apply_chat_template(
        messages(said), tools=definitions(said), tokenize=False, add_generation_prompt=True
    )
    turns, tools = conversation(said)
    rendered = template_of(name).render(turns, tools)
    assert "".join(segment.text for segment in rendered.segments) == expected


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_piece_is_found_again(name: str) -> None:
    prompt = prompt_of(name, "It is Köln")
    found = {span.path: TOKENIZER.decode(prompt.tokens[span.start : span.end]) for span in prompt.spans}
    assert len(found) == len(prompt.spans), "each piece has one span"
    expected = {"$.system", "$.question", "$.text", "$.result", "$.more", "$.tools[0]", "$.tools[1]"}
    assert expected <= found.keys()
    for path in expected - {"$.tools[1]"}:
        assert "It is Köln" in found[path], path
    assert "look" in found["$.tools[0]"]
    assert "other" in found["$.tools[1]"]
    if name in ("lines", "none"):
        assert "number" in found["$.tools[0]"], "up to the last text of the definition"
        assert "look" in found["$.call"]
        assert "Köln" in found["$.call"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_prefix_keeps_its_tokens_whatever_follows(name: str) -> None:
    turns, tools = conversation("a")
    template = template_of(name)
    before = make_prompt(turns, template, TOKENIZER, 100_000, tools)
    after = make_prompt((*turns[:-1], Turn("user", (Text("else", "$.more"),))), template, TOKENIZER, 100_000, tools)
    for span in before.spans:
        if span.path != "$.more":
            assert before.tokens[: span.end] == after.tokens[: span.end]


dangerous = st.lists(
    st.sampled_from([*SPECIALS, "<|", "|>", "end", "user", "<", "|", "a", " ", '"', "\\", "\U000f0000", "ü"]),
    max_size=5,
).map("".join)


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(list(TEMPLATES)), dangerous, dangerous, dangerous)
def test_no_text_of_the_client_is_a_special_token(name: str, said: str, key: str, value: str) -> None:
    def specials(said: str, key: str, value: str) -> list[int]:
        fields = {key: {"type": "string", "description": value, "enum": [value]}}
        prompt = prompt_of(name, said, schema={"type": "object", "properties": fields, "required": [key]})
        return [token for token in prompt.tokens if token in TOKENIZER.special]

    # what a template leaves out where a text is empty is left out in both
    assert specials(said, key, value) == specials(said and "x", "x", value and "x")


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("said", ["It is", " It is", "<|end|>"])
def test_an_answer_goes_on_where_the_last_turn_ends(name: str, said: str) -> None:
    turns = (Turn("user", (Text("a", "$.a"),)), Turn("assistant", (Text("So.", "$.b"), Text(said, "$.c"))))
    prompt = make_prompt(turns, template_of(name), TOKENIZER, 100_000, continued=True)
    assert prompt.spans[-1].path == "$.c"
    assert prompt.spans[-1].end == len(prompt.tokens)
    theirs = tokenizer_of_transformers(TEMPLATES[name])
    said_there = [{"role": "user", "content": "a"}, {"role": "assistant", "content": f"So.\n{said}"}]
    expected = theirs.apply_chat_template(said_there, tokenize=False, continue_final_message=True)
    rendered = template_of(name).render(turns, continued=True)
    assert "".join(segment.text for segment in rendered.segments) == expected


def test_without_spans_an_answer_goes_on_too() -> None:
    template = ChatTemplate(
        TEMPLATE.replace("message['content']", "message['content'] | upper"), {}, frozenset(SPECIALS)
    )
    turns = (Turn("user", (Text("a", "$.a"),)), Turn("assistant", (Text("IT IS", "$.c"),)))
    rendered = template.render(turns, continued=True)
    assert "".join(segment.text for segment in rendered.segments).endswith("<|assistant|>IT IS")


def test_what_a_template_without_tools_is_told() -> None:
    turns, tools = conversation("a")
    segments = template_of("none").render(turns, tools).segments
    assert "".join(segment.text for segment in segments) == (
        "<|begin|><|system|>You can use these tools:\n"
        f'{{"name": "look", "description": "a", "parameters": {json.dumps(CITY)}}}\n'
        f'{{"name": "other", "parameters": {json.dumps(CITY)}}}\n\n'
        "a<|end|><|user|>a<|end|><|assistant|>a\n"
        'Tool call: {"name": "look", "arguments": {"city": "a", "days": 1}}<|end|>'
        "<|user|>Tool result: a\na<|end|><|assistant|>"
    )
