"""semantic-kernel: a chat service, and a kernel that calls functions by itself."""

import asyncio

import task
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory
from semantic_kernel.exceptions import ServiceResponseException
from semantic_kernel.functions import kernel_function


def said(text):
    history = ChatHistory()
    history.add_user_message(text)
    return history


async def run():
    service, plain = OpenAIChatCompletion(ai_model_id=task.MODEL), OpenAIChatPromptExecutionSettings()
    chunks = [chunk async for chunk in service.get_streaming_chat_message_content(said(task.GREETING), plain)]
    answer = await service.get_chat_message_content(said(task.GREETING), plain)
    task.check_answer(str(answer), [str(chunk) for chunk in chunks if chunk is not None and str(chunk)])
    kernel = Kernel()
    kernel.add_function("tools", kernel_function(task.get_weather))
    kernel.add_function("tools", kernel_function(task.multiply))
    calling = OpenAIChatPromptExecutionSettings(function_choice_behavior=FunctionChoiceBehavior.Auto())
    scripted = OpenAIChatCompletion(ai_model_id="scripted")  # the demo model was not taught such names of tools
    asked = said("script:semantic-kernel " + task.QUESTION)
    task.check_tools(str(await scripted.get_chat_message_content(asked, calling, kernel=kernel)))
    held = OpenAIChatPromptExecutionSettings(response_format=task.Person)
    answer = await service.get_chat_message_content(said(task.EXTRACT), held)
    task.check_person(task.Person.model_validate_json(str(answer)))
    with task.refused(ServiceResponseException, task.OPENAI_SAYS):
        await service.get_chat_message_content(said(task.TOO_LONG), plain)


asyncio.run(run())
