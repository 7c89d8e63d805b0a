"""llama-index: its language model for servers like OpenAI's."""

import os

import task
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from openai import BadRequestError

llm = OpenAILike(
    model=task.MODEL,
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    is_chat_model=True,
    is_function_calling_model=True,
    should_use_structured_outputs=True,
    max_retries=0,
)
tools = [FunctionTool.from_defaults(task.get_weather), FunctionTool.from_defaults(task.multiply)]
greeting = [ChatMessage(task.GREETING)]
pieces = [chunk.delta for chunk in llm.stream_chat(greeting) if chunk.delta]
task.check_answer(llm.chat(greeting).message.content, pieces)
messages = [ChatMessage(task.QUESTION)]
reply = llm.chat_with_tools(tools, chat_history=messages, allow_parallel_tool_calls=True)
messages.append(reply.message)
for call in llm.get_tool_calls_from_response(reply):
    said = task.run_tool(call.tool_name, call.tool_kwargs)
    messages.append(ChatMessage(said, role="tool", additional_kwargs={"tool_call_id": call.tool_id}))
task.check_tools(llm.chat_with_tools(tools, chat_history=messages).message.content)
task.check_person(llm.as_structured_llm(task.Person).chat([ChatMessage(task.EXTRACT)]).raw)
task.check_refused(lambda: llm.chat([ChatMessage(task.TOO_LONG)]), BadRequestError, task.OPENAI_SAYS)
