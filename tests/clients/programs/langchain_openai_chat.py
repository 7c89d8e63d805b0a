"""langchain-openai: a chat model with two bound tools."""

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from task import MODEL, QUESTION, check, get_weather, multiply, run_tool

model = ChatOpenAI(model=MODEL).bind_tools([tool(get_weather), tool(multiply)])
messages = [HumanMessage(QUESTION)]
messages.append(model.invoke(messages))
for call in messages[-1].tool_calls:
    messages.append(ToolMessage(run_tool(call["name"], call["args"]), tool_call_id=call["id"]))
check(model.invoke(messages).content)
