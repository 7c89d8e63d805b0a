"""strands: agents by chat completions and messages."""

import os

import task
from strands import Agent, tool
from strands.models.anthropic import AnthropicModel
from strands.models.openai import OpenAIModel
from strands.types.exceptions import ContextWindowOverflowException

for model in (
    OpenAIModel(client_args={"base_url": os.environ["OPENAI_BASE_URL"]}, model_id=task.MODEL),
    AnthropicModel(model_id=task.CLAUDE, max_tokens=500),
):

    def agent(**more):
        return Agent(model=model, callback_handler=None, **more)

    pieces = []
    streaming = Agent(model=model, callback_handler=lambda **event: pieces.append(event.get("data", "")))
    answer = str(agent()(task.GREETING)).rstrip("\n")
    streaming(task.GREETING)
    task.check_answer(answer, [piece for piece in pieces if piece])
    task.check_tools(str(agent(tools=[tool(task.get_weather), tool(task.multiply)])(task.QUESTION)))
    task.check_person(agent()(task.EXTRACT, structured_output_model=task.Person).structured_output)
    task.check_refused(lambda: agent()(task.TOO_LONG), ContextWindowOverflowException, "")
