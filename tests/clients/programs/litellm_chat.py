"""litellm: completions through its providers of OpenAI and Anthropic."""

import json

import litellm
import task
from task import CHAT_TOOLS

for model, words in ((f"openai/{task.MODEL}", task.OPENAI_SAYS), (f"anthropic/{task.CLAUDE}", task.ANTHROPIC_SAYS)):
    greeting = [{"role": "user", "content": task.GREETING}]
    answer = litellm.completion(model=model, messages=greeting).choices[0].message.content
    chunks = litellm.completion(model=model, messages=greeting, stream=True)
    task.check_answer(answer, [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content])
    messages = [{"role": "user", "content": task.QUESTION}]
    message = litellm.completion(model=model, messages=messages, tools=CHAT_TOOLS).choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    for call in message.tool_calls:
        said = task.run_tool(call.function.name, json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
    task.check_tools(litellm.completion(model=model, messages=messages, tools=CHAT_TOOLS).choices[0].message.content)
    extract = [{"role": "user", "content": task.EXTRACT}]
    held = litellm.completion(model=model, messages=extract, response_format=task.Person).choices[0].message.content
    task.check_person(task.Person.model_validate_json(held))
    long = [{"role": "user", "content": task.TOO_LONG}]
    task.check_refused(
        lambda: litellm.completion(model=model, messages=long), litellm.ContextWindowExceededError, words
    )
