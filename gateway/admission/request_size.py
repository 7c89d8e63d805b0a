"""How much work a request makes before it runs, in characters, and how much memory.

Large work is done in a thread, not on the event loop.

Every text that a client may send counts, whichever field it stands in, for all of them are rendered and tokenized.
"""

from __future__ import annotations

import sys

from gateway.generation_request import GenerationRequest, Text, ToolCall

_PER_TEXT = 64
"""Each text counts as so many characters more, for the cost of calling the tokenizer."""
_PER_TOKEN_ID = 36
"""Bytes of a token id in a tuple."""
_PER_TOOL_CHARACTER = 4
"""A character of a tool's definition, which is marked string by string, counts as so many."""


def conversation_size(generation: GenerationRequest) -> int:
    """What rendering and tokenizing the turns and the tools costs."""
    size = tools_size(generation)
    for turn in generation.turns:
        size += _PER_TEXT + len(turn.call) + len(turn.call_name)
        size += sum(map(_text_size, turn.texts))
    return size


def request_memory(generation: GenerationRequest) -> int:
    """About how many bytes a request takes until it is a prompt: its texts, and as much again for their rendered form.
    One character beyond Latin-1 makes a text two or four times as large."""
    prompt = generation.prompt
    if prompt is not None:
        return 2 * (sys.getsizeof(prompt) if isinstance(prompt, str) else _PER_TOKEN_ID * len(prompt))
    tools = (text for tool in generation.tools for text in (tool.name, tool.description or "", tool.schema))
    texts = (text.text for turn in generation.turns for text in turn.texts)
    predicted = sys.getsizeof(generation.prediction)
    return 2 * (predicted + sum(map(sys.getsizeof, tools)) + sum(map(sys.getsizeof, texts)))


def tools_size(generation: GenerationRequest) -> int:
    """What reading the definitions of the tools, and the choice of them, costs."""
    size = sum(_PER_TEXT + len(tool.name) + len(tool.description or "") + len(tool.schema) for tool in generation.tools)
    return _PER_TOOL_CHARACTER * size + sum(map(len, generation.tool_choice.names or ()))


def _text_size(text: Text) -> int:
    size = _PER_TEXT + len(text.text)
    return size + len(text.id) + len(text.name) if isinstance(text, ToolCall) else size
