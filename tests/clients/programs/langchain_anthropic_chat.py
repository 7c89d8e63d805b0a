"""langchain-anthropic: a chat model."""

import langchain_task
import task
from langchain_anthropic import ChatAnthropic

langchain_task.run(ChatAnthropic(model=task.CLAUDE, max_tokens=500), task.ANTHROPIC_SAYS)
