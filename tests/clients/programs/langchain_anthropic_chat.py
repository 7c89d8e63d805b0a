"""langchain-anthropic: a chat model with two bound tools."""

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_anthropic import ChatAnthropic
from task import CLAUDE, QUESTION, check, get_weather, multiply, run_tool

model = ChatAnthropic(model=CLAUDE, max_tokens=500).bind_tools([tool(get_weather), tool(multiply)])
messages = [HumanMessage(QUESTION)]
messages.append(model.invoke(messages))
for call in messages[-1].tool_calls:
    messages.append(ToolMessage(run_tool(call["name"], call["args"]), tool_call_id=call["id"]))
check(model.invoke(messages).content)
