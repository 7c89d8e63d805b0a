"""autogen: an assistant with two tools."""

import asyncio

import task
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from openai import BadRequestError

client = OpenAIChatCompletionClient(model=task.MODEL)


def said(text):
    return [UserMessage(content=text, source="user")]


async def stream():
    return [piece async for piece in client.create_stream(said(task.GREETING)) if isinstance(piece, str)]


async def run():
    task.check_answer((await client.create(said(task.GREETING))).content, await stream())
    agent = AssistantAgent(
        "helper",
        client,
        tools=[task.get_weather, task.multiply],
        reflect_on_tool_use=True,
        system_message="You are a helpful assistant.",
    )
    task.check_tools((await agent.run(task=task.QUESTION)).messages[-1].content)
    held = await client.create(said(task.EXTRACT), json_output=task.Person)
    task.check_person(task.Person.model_validate_json(held.content))
    with task.refused(BadRequestError, task.OPENAI_SAYS):
        await client.create(said(task.TOO_LONG))


asyncio.run(run())
