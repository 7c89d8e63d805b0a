"""pydantic-ai: an agent with two tools, by chat completions and by messages."""

import task
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel

for model in (OpenAIChatModel(task.MODEL), AnthropicModel(task.CLAUDE)):
    task.called.clear()
    agent = Agent(model, tools=[task.get_weather, task.multiply])
    task.check(agent.run_sync(task.QUESTION).output)
