"""openai-agents: agents by their default, the Responses API."""

import agents_task

agents_task.run()
