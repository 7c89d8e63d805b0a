"""OpenAI's agents SDK, as its users run it: a task for two tools, whole, streamed, and gone on with."""

import asyncio
import json
import sys

from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)
called = []


@function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    called.append(["weather", city])
    return f"sun in {city}"


@function_tool
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    called.append(["add", a, b])
    return a + b


async def run() -> None:
    agent = Agent(name="helper", instructions="Help.", model="tiny", tools=[weather, add])
    whole = await Runner.run(agent, "What is the weather, and the sum?")
    streamed = Runner.run_streamed(agent, "What is the weather, and the sum?")
    kinds = [event.data.type async for event in streamed.stream_events() if event.type == "raw_response_event"]
    chained = await Runner.run(agent, "Again.", previous_response_id=whole.last_response_id)
    usage = whole.context_wrapper.usage
    sys.stdout.write(
        json.dumps(
            {
                "answers": [whole.final_output, streamed.final_output, chained.final_output],
                "called": called,
                "completed": kinds.count("response.completed"),
                "requests": usage.requests,
                "tokens": usage.total_tokens,
            }
        )
    )


asyncio.run(run())
