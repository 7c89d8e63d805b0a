"""What LangChain's chat models do, whoever's they are."""

import task
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool


def run(model, words):
    pieces = [chunk.text for chunk in model.stream(task.GREETING)]
    task.check_answer(model.invoke(task.GREETING).text, [piece for piece in pieces if piece])
    bound = model.bind_tools([tool(task.get_weather), tool(task.multiply)])
    messages = [HumanMessage(task.QUESTION)]
    messages.append(bound.invoke(messages))
    for call in messages[-1].tool_calls:
        messages.append(ToolMessage(task.run_tool(call["name"], call["args"]), tool_call_id=call["id"]))
    task.check_tools(bound.invoke(messages).text)
    task.check_person(model.with_structured_output(task.Person, method="json_schema").invoke(task.EXTRACT))
    task.check_refused(lambda: model.invoke(task.TOO_LONG), ContextOverflowError, words)
