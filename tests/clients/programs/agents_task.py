"""What OpenAI's agents do, by either API."""

import asyncio

import task
from agents import Agent, Runner, function_tool, set_tracing_disabled
from openai import BadRequestError


async def stream(agent):
    streamed = Runner.run_streamed(agent, task.GREETING)
    raw = [event.data async for event in streamed.stream_events() if event.type == "raw_response_event"]
    return [event.delta for event in raw if event.type == "response.output_text.delta"]


async def run_all():
    plain = Agent(name="assistant", instructions="You are a helpful assistant.", model=task.MODEL)
    task.check_answer((await Runner.run(plain, task.GREETING)).final_output, await stream(plain))
    tools = [function_tool(task.get_weather), function_tool(task.multiply)]
    task.check_tools((await Runner.run(plain.clone(tools=tools), task.QUESTION)).final_output)
    task.check_person((await Runner.run(plain.clone(output_type=task.Person), task.EXTRACT)).final_output)
    with task.refused(BadRequestError, task.OPENAI_SAYS):
        await Runner.run(plain, task.TOO_LONG)


def run():
    set_tracing_disabled(True)
    asyncio.run(run_all())
