"""openai-agents: an agent with two tools, by its default, the Responses API."""

import task
from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)
tools = [function_tool(task.get_weather), function_tool(task.multiply)]
agent = Agent(name="assistant", instructions="You are a helpful assistant.", model=task.MODEL, tools=tools)
task.check(Runner.run_sync(agent, task.QUESTION).final_output)
