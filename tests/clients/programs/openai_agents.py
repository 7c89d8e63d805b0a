"""openai-agents: an agent with two tools, by chat completions."""

import task
from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

set_tracing_disabled(True)
set_default_openai_api("chat_completions")
tools = [function_tool(task.get_weather), function_tool(task.multiply)]
agent = Agent(name="assistant", instructions="You are a helpful assistant.", model=task.MODEL, tools=tools)
task.check(Runner.run_sync(agent, task.QUESTION).final_output)
