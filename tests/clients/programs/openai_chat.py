"""openai: chat completions with two tools, by hand and streamed by its helper."""

import json

from openai import OpenAI
from task import CHAT_TOOLS, MODEL, QUESTION, check, run_tool

client = OpenAI()
messages = [{"role": "user", "content": QUESTION}]
with client.chat.completions.stream(model=MODEL, messages=messages, tools=CHAT_TOOLS) as stream:
    for _ in stream:
        pass
    message = stream.get_final_completion().choices[0].message
messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
for call in message.tool_calls:
    said = run_tool(call.function.name, json.loads(call.function.arguments))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
answer = client.chat.completions.create(model=MODEL, messages=messages, tools=CHAT_TOOLS)
check(answer.choices[0].message.content)
