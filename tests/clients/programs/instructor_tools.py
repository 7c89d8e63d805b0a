"""instructor: a structure by a tool that must be called."""

import instructor
from openai import OpenAI
from pydantic import BaseModel
from task import MODEL


class UserInfo(BaseModel):
    """The user's details."""

    name: str
    age: int


client = instructor.from_openai(OpenAI(), mode=instructor.Mode.TOOLS)
question = [{"role": "user", "content": "Extract: Jason is 25 years old"}]
found = client.chat.completions.create(model=MODEL, response_model=UserInfo, messages=question)
assert (found.name, found.age) == ("Jason", 25), found
print("done")
