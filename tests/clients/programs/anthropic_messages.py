"""anthropic: messages, by hand and by its tool runner."""

import task
from anthropic import Anthropic, BadRequestError
from task import CLAUDE, CLAUDE_TOOLS

client = Anthropic()
greeting = {"model": CLAUDE, "max_tokens": 100, "messages": [{"role": "user", "content": task.GREETING}]}
answer = client.messages.create(**greeting).content[0].text
with client.messages.stream(**greeting) as stream:
    task.check_answer(answer, list(stream.text_stream))

messages = [{"role": "user", "content": task.QUESTION}]
with client.messages.stream(model=CLAUDE, max_tokens=500, messages=messages, tools=CLAUDE_TOOLS) as stream:
    for _ in stream:
        pass
    first = stream.get_final_message()
assert first.stop_reason == "tool_use", first.stop_reason
messages.append({"role": "assistant", "content": first.content})
results = [
    {"type": "tool_result", "tool_use_id": block.id, "content": task.run_tool(block.name, block.input)}
    for block in first.content
    if block.type == "tool_use"
]
messages.append({"role": "user", "content": results})
last = client.messages.create(model=CLAUDE, max_tokens=500, messages=messages, tools=CLAUDE_TOOLS)
task.check_tools(last.content[0].text)

parsed = client.messages.parse(
    model=CLAUDE, max_tokens=200, messages=[{"role": "user", "content": task.EXTRACT}], output_format=task.Person
)
task.check_person(parsed.parsed_output)
long = [{"role": "user", "content": task.TOO_LONG}]
task.check_refused(
    lambda: client.messages.create(model=CLAUDE, max_tokens=9, messages=long), BadRequestError, task.ANTHROPIC_SAYS
)
