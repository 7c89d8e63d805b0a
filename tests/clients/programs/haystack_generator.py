"""haystack: a generator of chats."""

import task
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from openai import BadRequestError

generator = OpenAIChatGenerator(model=task.MODEL)
greeting = [ChatMessage.from_user(task.GREETING)]
pieces = []
generator.run(greeting, streaming_callback=lambda chunk: pieces.append(chunk.content))
task.check_answer(generator.run(greeting)["replies"][0].text, [piece for piece in pieces if piece])
tools = [create_tool_from_function(task.get_weather), create_tool_from_function(task.multiply)]
messages = [ChatMessage.from_user(task.QUESTION)]
(reply,) = generator.run(messages, tools=tools)["replies"]
results = [
    ChatMessage.from_tool(task.run_tool(call.tool_name, call.arguments), origin=call) for call in reply.tool_calls
]
task.check_tools(generator.run([*messages, reply, *results], tools=tools)["replies"][0].text)
held = OpenAIChatGenerator(model=task.MODEL, generation_kwargs={"response_format": task.Person})
task.check_person(task.Person.model_validate_json(held.run([ChatMessage.from_user(task.EXTRACT)])["replies"][0].text))
long = [ChatMessage.from_user(task.TOO_LONG)]
task.check_refused(lambda: generator.run(long), BadRequestError, task.OPENAI_SAYS)
