"""How much work a request makes before it runs, in characters: large work is done in a thread, not on the event loop.

Every text that a client may send counts, whichever field it stands in, for all of them are rendered and tokenized.
"""

from __future__ import annotations

from gateway.generation_request import GenerationRequest, Text, ToolCall

_PER_TEXT = 64
"""Each text counts as so many characters more, for the cost of calling the tokenizer."""
_PER_TOOL_CHARACTER = 4
"""A character of a tool's definition, which is marked string by string, counts as so many."""


def conversation_size(generation: GenerationRequest) -> int:
    """What rendering and tokenizing the turns and the tools costs."""
    size = tools_size(generation)
    for turn in generation.turns:
        size += _PER_TEXT + len(turn.call) + len(turn.call_name)
        size += sum(map(_text_size, turn.texts))
    return size


def tools_size(generation: GenerationRequest) -> int:
    """What reading the definitions of the tools, and the choice of them, costs."""
    size = sum(_PER_TEXT + len(tool.name) + len(tool.description or "") + len(tool.schema) for tool in generation.tools)
    return _PER_TOOL_CHARACTER * size + sum(map(len, generation.tool_choice.names or ()))


def _text_size(text: Text) -> int:
    size = _PER_TEXT + len(text.text)
    return size + len(text.id) + len(text.name) if isinstance(text, ToolCall) else size
