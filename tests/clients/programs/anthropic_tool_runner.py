"""anthropic: the tool runner, which asks for threads of the server's and does without them."""

import task
from anthropic import Anthropic, beta_tool

client = Anthropic()
tools = [beta_tool(task.get_weather), beta_tool(task.multiply)]
messages = [{"role": "user", "content": task.QUESTION}]
runner = client.beta.messages.tool_runner(model=task.CLAUDE, max_tokens=500, messages=messages, tools=tools)
task.check_tools(runner.until_done().content[0].text)
