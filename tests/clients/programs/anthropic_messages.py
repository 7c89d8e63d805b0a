"""anthropic: messages with two tools, streamed by its helper."""

from anthropic import Anthropic
from task import CLAUDE, CLAUDE_TOOLS, QUESTION, check, run_tool

client = Anthropic()
messages = [{"role": "user", "content": QUESTION}]
with client.messages.stream(model=CLAUDE, max_tokens=500, messages=messages, tools=CLAUDE_TOOLS) as stream:
    for _ in stream:
        pass
    first = stream.get_final_message()
assert first.stop_reason == "tool_use", first.stop_reason
messages.append({"role": "assistant", "content": first.content})
results = [
    {"type": "tool_result", "tool_use_id": block.id, "content": run_tool(block.name, block.input)}
    for block in first.content
    if block.type == "tool_use"
]
messages.append({"role": "user", "content": results})
last = client.messages.create(model=CLAUDE, max_tokens=500, messages=messages, tools=CLAUDE_TOOLS)
check(last.content[0].text)
