"""langchain-openai: a chat model."""

import langchain_task
import task
from langchain_openai import ChatOpenAI

langchain_task.run(ChatOpenAI(model=task.MODEL), task.OPENAI_SAYS)
