"""smolagents: its model, and an agent that must call a tool in each step."""

import os

import task
from openai import BadRequestError
from smolagents import OpenAIServerModel, tool
from smolagents.models import ChatMessage, MessageRole

model = OpenAIServerModel(task.MODEL, api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
greeting = [ChatMessage(MessageRole.USER, task.GREETING)]
pieces = [delta.content for delta in model.generate_stream(greeting) if delta.content]
task.check_answer(model.generate(greeting).content, pieces)
messages = [ChatMessage(MessageRole.USER, task.QUESTION)]
# as its agents ask: a call is required, and `stop` ends what they would write themselves
asked = {"tools_to_call_from": [tool(task.get_weather), tool(task.multiply)]}
message = model.generate(messages, stop_sequences=["Observation:", "Calling tools:"], **asked)
for call in model.parse_tool_calls(message).tool_calls:
    task.run_tool(call.function.name, call.function.arguments)
task.check_tools("21 degrees 68")
long = [ChatMessage(MessageRole.USER, task.TOO_LONG)]
task.check_refused(lambda: model.generate(long), BadRequestError, task.OPENAI_SAYS)
