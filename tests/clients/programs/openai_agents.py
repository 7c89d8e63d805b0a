"""openai-agents: agents by chat completions."""

import agents_task
from agents import set_default_openai_api

set_default_openai_api("chat_completions")
agents_task.run()
