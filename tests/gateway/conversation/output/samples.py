"""What each family writes, and what it says: text, reasoning, and calls with their arguments."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

SCHEMAS: dict[str, dict[str, Any]] = {
    "add": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    "search": {
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}, "tags": {"type": "array"}},
    },
    "now": {"type": "object", "properties": {}},
}


class Sample(Struct, frozen=True):
    """An output of a family, with its markers written in it. `reasons`: the template opened the reasoning."""

    format: str
    output: str
    calls: list[tuple[str, Any]] = []
    text: str = ""
    reasoning: str = ""
    reasons: bool = False
    open: int = 0
    """How many calls the output's limit cut off."""


ADD, SEARCH, NOW = ("add", {"a": 1, "b": 2}), ("search", {"query": 'a "b" }{', "limit": 3}), ("now", {})
_ADD, _SEARCH = '{"a": 1, "b": 2}', '{"query": "a \\"b\\" }{", "limit": 3}'

SAMPLES: list[Sample] = [
    # Hermes, Qwen 2.5 and 3
    Sample("hermes", "Hello, world.", text="Hello, world."),
    Sample("hermes", f'<tool_call>\n{{"name": "add", "arguments": {_ADD}}}\n</tool_call>', [ADD]),
    Sample(
        "hermes",
        f'I look.\n<tool_call>\n{{"name": "search", "arguments": {_SEARCH}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        [SEARCH, NOW],
        text="I look.",
    ),
    Sample("hermes", '<tool_call>{"arguments": {"a": 1, "b": 2}, "name": "add"}</tool_call>', [ADD]),
    Sample("hermes", '<tool_call>{"name": "now"}</tool_call>', [NOW]),
    Sample("hermes", '<tool_call>{"name": "now", "arguments": null}</tool_call>', [NOW]),
    Sample("hermes", '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}</tool_call>', [ADD]),
    Sample("hermes", "<think>two\nsteps</think>\n\nYes.", text="Yes.", reasoning="two\nsteps"),
    Sample("hermes", "deep</think>Yes.", text="Yes.", reasoning="deep", reasons=True),
    Sample(
        "hermes",
        f'<think>call?</think>\n<tool_call>\n{{"name": "add", "arguments": {_ADD}}}\n</tool_call>',
        [ADD],
        reasoning="call?",
    ),
    Sample("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1, "b', [("add", '{"a": 1, "b')], open=1),
    Sample("hermes", "a < b and <tool or <think", text="a < b and <tool or <think"),
    Sample("hermes", '<tool_call>{"no": "call"}</tool_call>', text='{"no": "call"}'),
    # Qwen3-Coder
    Sample(
        "qwen",
        "<tool_call>\n<function=search>\n<parameter=query>\na <b> c\n</parameter>\n<parameter=limit>\n3\n</parameter>\n"
        '<parameter=tags>\n["x", "y"]\n</parameter>\n</function>\n</tool_call>',
        [("search", {"query": "a <b> c", "limit": 3, "tags": ["x", "y"]})],
    ),
    Sample("qwen", "<tool_call>\n<function=now>\n</function>\n</tool_call>", [NOW]),
    Sample(
        "qwen",
        "So.\n<tool_call><function=now></function></tool_call>\n<tool_call><function=add><parameter=a>1</parameter>"
        "<parameter=b>2</parameter></function></tool_call>",
        [NOW, ADD],
        text="So.",
    ),
    # Llama 3
    Sample("llama3_json", f'{{"name": "add", "parameters": {_ADD}}}', [ADD]),
    Sample("llama3_json", f'<|python_tag|>{{"name": "add", "parameters": {_ADD}}}', [ADD]),
    Sample(
        "llama3_json", f'{{"name": "add", "parameters": {_ADD}}}; {{"name": "now", "parameters": {{}}}}', [ADD, NOW]
    ),
    Sample("llama3_json", f'{{"type": "function", "name": "search", "parameters": {_SEARCH}}}', [SEARCH]),
    Sample("llama3_json", "The sum is {3}.", text="The sum is {3}."),
    Sample("llama3_json", '{"sum"', text='{"sum"'),
    # Llama 3.2 and 4
    Sample("pythonic", "[add(a=1, b=2)]", [ADD]),
    Sample("pythonic", "[add(a=1, b=2), now()]", [ADD, NOW]),
    Sample("pythonic", "<|python_start|>[search(query='a \"b\" }{', limit=3)]<|python_end|>", [SEARCH]),
    Sample(
        "pythonic",
        "[f.g(x=[1, (2.5, None)], y={'k': True, 'l': -1e3}, z=\"it's\\n\")]",
        [("f.g", {"x": [1, [2.5, None]], "y": {"k": True, "l": -1000.0}, "z": "it's\n"})],
    ),
    Sample("pythonic", "No call: [1]", text="No call: [1]"),
    Sample("pythonic", "[1, 2, 3]", text="[1, 2, 3]"),
    # Mistral
    Sample("mistral", f'[TOOL_CALLS][{{"name": "add", "arguments": {_ADD}, "id": "abcDEF123"}}]', [ADD]),
    Sample(
        "mistral",
        f'[TOOL_CALLS] [{{"name": "add", "arguments": {_ADD}}}, {{"name": "now", "arguments": {{}}}}]',
        [ADD, NOW],
    ),
    Sample("mistral", f"[TOOL_CALLS]add[CALL_ID]abcDEF123[ARGS]{_ADD}[TOOL_CALLS]now[CALL_ID]x[ARGS]{{}}", [ADD, NOW]),
    Sample("mistral", f"So.[TOOL_CALLS]search[ARGS]{_SEARCH}[TOOL_CALLS]add{_ADD}", [SEARCH, ADD], text="So."),
    Sample("mistral", "[THINK]hm[/THINK]Yes", text="Yes", reasoning="hm"),
    # DeepSeek
    Sample(
        "deepseek",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{_ADD}\n```<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [ADD, NOW],
    ),
    Sample(
        "deepseek",
        f"Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>search<｜tool▁sep｜>{_SEARCH}<｜tool▁call▁end｜>"
        f"<｜tool▁call▁begin｜>add<｜tool▁sep｜>{_ADD}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [SEARCH, ADD],
        text="Well.",
    ),
    Sample("deepseek", "so</think>Yes", text="Yes", reasoning="so", reasons=True),
    # gpt-oss
    Sample(
        "harmony",
        "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        text="Yes.",
        reasoning="think",
    ),
    Sample(
        "harmony",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.add "
        f"<|constrain|>json<|message|>{_ADD}<|call|>",
        [ADD],
        reasoning="hm",
    ),
    Sample(
        "harmony", f"<|start|>assistant to=functions.search<|channel|>commentary<|message|>{_SEARCH}<|call|>", [SEARCH]
    ),
    Sample("harmony", "<|channel|>commentary to=functions.now<|message|>{}<|call|>", [NOW]),
    Sample(  # an analysis ends by its own marker alone, as the replica has it
        "harmony",
        "<|channel|>analysis<|message|>a<|channel|>final<|message|>b<|end|><|start|>assistant<|channel|>final<|message|>c",
        text="c",
        reasoning="afinalb",
    ),
    # Phi-4-mini
    Sample("phi4_mini", f'functools[{{"name": "add", "arguments": {_ADD}}}]', [ADD]),
    Sample(
        "phi4_mini",
        f'functools[{{"name": "search", "arguments": {_SEARCH}}}, {{"name": "now", "arguments": {{}}}}]',
        [SEARCH, NOW],
    ),
    Sample("phi4_mini", "functions are fun", text="functions are fun"),
    Sample("text", 'I look.\nTool call: {"name": "add", "arguments": {"a": 1, "b": 2}}', [ADD], text="I look."),
    Sample("none", "<think>a</think>b", text="b", reasoning="a"),
    Sample("none", "a</think>\n\nb\n", text="b\n", reasoning="a", reasons=True),
    Sample(
        "text",
        'Tool call: x</think>Tool call: {"name": "now", "arguments": {}}',
        [NOW],
        reasoning="Tool call: x",
        reasons=True,
    ),
    Sample(
        "hermes", '<think>a<tool_call>b</think><tool_call>{"name": "now"}</tool_call>', [NOW], reasoning="a<tool_call>b"
    ),
]
