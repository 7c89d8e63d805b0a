"""litellm: completion with two tools, through its OpenAI provider."""

import json

import litellm
from task import CHAT_TOOLS, MODEL, QUESTION, check, run_tool

messages = [{"role": "user", "content": QUESTION}]
message = litellm.completion(model=f"openai/{MODEL}", messages=messages, tools=CHAT_TOOLS).choices[0].message
messages.append(message.model_dump(exclude_none=True))
for call in message.tool_calls:
    said = run_tool(call.function.name, json.loads(call.function.arguments))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
check(litellm.completion(model=f"openai/{MODEL}", messages=messages, tools=CHAT_TOOLS).choices[0].message.content)
