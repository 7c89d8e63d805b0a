"""openai: chat completions."""

import json

import task
from openai import BadRequestError, OpenAI
from task import CHAT_TOOLS, MODEL

client = OpenAI()
greeting = [{"role": "user", "content": task.GREETING}]
answer = client.chat.completions.create(model=MODEL, messages=greeting).choices[0].message.content
chunks = client.chat.completions.create(model=MODEL, messages=greeting, stream=True)
task.check_answer(answer, [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content])

messages = [{"role": "user", "content": task.QUESTION}]
with client.chat.completions.stream(model=MODEL, messages=messages, tools=CHAT_TOOLS) as stream:
    for _ in stream:
        pass
    message = stream.get_final_completion().choices[0].message
messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
for call in message.tool_calls:
    said = task.run_tool(call.function.name, json.loads(call.function.arguments))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
task.check_tools(
    client.chat.completions.create(model=MODEL, messages=messages, tools=CHAT_TOOLS).choices[0].message.content
)

extract = [{"role": "user", "content": task.EXTRACT}]
parsed = client.chat.completions.parse(model=MODEL, messages=extract, response_format=task.Person)
task.check_person(parsed.choices[0].message.parsed)


def too_long():
    try:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": task.TOO_LONG}])
    except BadRequestError as error:
        assert error.code == "context_length_exceeded", error.code
        raise


task.check_refused(too_long, BadRequestError, task.OPENAI_SAYS)
