"""instructor: structures by a tool that must be called, and by a schema, of both vendors."""

import instructor
import task
from anthropic import Anthropic
from openai import OpenAI

question = [{"role": "user", "content": task.EXTRACT}]
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS_STRICT):
    client = instructor.from_openai(OpenAI(), mode=mode)
    person = client.chat.completions.create(model=task.MODEL, response_model=task.Person, messages=question)
    if mode is not instructor.Mode.JSON_SCHEMA:  # the demo model was taught tools alone
        assert (person.name, person.age) == ("Jason", 25), person
    task.check_person(person)
parts = client.chat.completions.create_partial(model=task.MODEL, response_model=task.Person, messages=question)
assert list(parts)[-1].age == 25
task.did("stream")
client = instructor.from_anthropic(Anthropic(), mode=instructor.Mode.ANTHROPIC_TOOLS)
task.check_person(client.create(model=task.CLAUDE, max_tokens=200, response_model=task.Person, messages=question))
long = [{"role": "user", "content": task.TOO_LONG}]
client = instructor.from_openai(OpenAI())
task.check_refused(
    lambda: client.create(model=task.MODEL, response_model=task.Person, messages=long, max_retries=0),
    Exception,
    task.OPENAI_SAYS,
)
