"""OpenAI's own client, as its users call the Responses API: tools, a stream, structured output, state, background."""

import json
import sys
import time

from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel


class Weather(BaseModel):
    """The weather of a city."""

    city: str


class Answer(BaseModel):
    city: str
    sunny: bool


client = OpenAI(max_retries=0)
tool = pydantic_function_tool(Weather, name="weather")["function"]
tools = [{"type": "function", **tool}]

first = client.responses.create(model="tiny", input="Weather?", tools=tools)
call = next(item for item in first.output if item.type == "function_call")
second = client.responses.create(
    model="tiny",
    input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sun"}],
    previous_response_id=first.id,
    tools=tools,
)
with client.responses.stream(model="tiny", input="Weather?", tools=tools) as stream:
    deltas = sum(event.type == "response.function_call_arguments.delta" for event in stream)
    streamed = stream.get_final_response()
parsed = client.responses.parse(model="tiny", input="As JSON.", text_format=Answer)
background = client.responses.create(model="tiny", input="Later.", background=True)
while background.status in ("queued", "in_progress"):
    time.sleep(0.05)
    background = client.responses.retrieve(background.id)
resumed = [event.sequence_number for event in client.responses.retrieve(background.id, stream=True, starting_after=1)]
items = [item.type for item in client.responses.input_items.list(background.id)]
client.responses.delete(background.id)

sys.stdout.write(
    json.dumps(
        {
            "called": [call.name, json.loads(call.arguments)],
            "answer": second.output_text,
            "streamed": [item.type for item in streamed.output],
            "deltas": deltas,
            "parsed": parsed.output_parsed.model_dump(),
            "background": background.status,
            "resumed": resumed,
            "items": items,
        }
    )
)
