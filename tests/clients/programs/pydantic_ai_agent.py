"""pydantic-ai: agents by chat completions, responses and messages."""

import asyncio

import task
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel


async def stream(agent):
    async with agent.run_stream(task.GREETING) as run:
        return [piece async for piece in run.stream_text(delta=True, debounce_by=None)]


for model, words in (
    (OpenAIChatModel(task.MODEL), task.OPENAI_SAYS),
    (OpenAIResponsesModel(task.MODEL), task.OPENAI_SAYS),
    (AnthropicModel(task.CLAUDE), task.ANTHROPIC_SAYS),
):
    agent = Agent(model)
    task.check_answer(agent.run_sync(task.GREETING).output, asyncio.run(stream(agent)))
    task.check_tools(Agent(model, tools=[task.get_weather, task.multiply]).run_sync(task.QUESTION).output)
    task.check_person(Agent(model, output_type=task.Person).run_sync(task.EXTRACT).output)
    task.check_refused(lambda: agent.run_sync(task.TOO_LONG), ModelHTTPError, words)
