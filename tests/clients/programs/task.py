"""What every client does, each in its own way: it answers, streams, runs a task for two tools, keeps to a structure,
and knows a prompt that is too long. `did` says that one of these went well."""

from contextlib import contextmanager

from pydantic import BaseModel

MODEL = "gpt-4o"
CLAUDE = "claude-sonnet-4-5"
QUESTION = "What is the weather in Lisbon, and what is 17 times 4?"
GREETING = "Hello! Who are you?"
EXTRACT = "Extract: Jason is 25 years old"
TOO_LONG = "word " * 20_000
called = []


class Person(BaseModel):
    """A person's details."""

    name: str
    age: int


def get_weather(city: str) -> str:
    """Get the weather in a city.

    Args:
        city: the city
    """
    called.append(("get_weather", city))
    return f"It is sunny in {city}, 21 degrees."


def multiply(a: int, b: int) -> str:
    """Multiply two numbers.

    Args:
        a: the first number
        b: the second number
    """
    called.append(("multiply", a, b))
    return str(a * b)


def run_tool(name, arguments):
    return {"get_weather": get_weather, "multiply": multiply}[name](**arguments)


_CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
_DEFINITIONS = [
    ("get_weather", "Get the weather in a city.", _CITY),
    ("multiply", "Multiply two numbers.", _NUMBERS),
]
CHAT_TOOLS = [
    {"type": "function", "function": {"name": name, "description": said, "parameters": schema}}
    for name, said, schema in _DEFINITIONS
]
CLAUDE_TOOLS = [{"name": name, "description": said, "input_schema": schema} for name, said, schema in _DEFINITIONS]


def did(what):
    print(what, flush=True)


def check_answer(answer, streamed=None):
    """There is an answer, and the same one streamed: in more than one piece, where the pieces come as a list."""
    assert answer.strip(), answer
    did("answer")
    if streamed is not None:
        assert len(streamed) > 1, streamed
        assert "".join(streamed) == answer, (streamed, answer)
        did("stream")


def check_tools(answer):
    """Both tools were called rightly, once, and the answer has what both said."""
    assert sorted(called) == [("get_weather", "Lisbon"), ("multiply", 17, 4)], called
    called.clear()
    text = answer if isinstance(answer, str) else str(answer)
    assert "21 degrees" in text, text
    assert "68" in text, text
    did("tools")


def check_person(person):
    person = Person.model_validate(person if isinstance(person, dict) else person.model_dump())
    assert person.name, person
    did("structure")


@contextmanager
def refused(kind, words):
    """What is done here ends with this kind of error, whose text has these words."""
    try:
        yield
    except kind as error:
        assert words in str(error), error
        did("error")
    else:
        raise AssertionError("a prompt that is too long was taken")


def check_refused(attempt, kind, words):
    with refused(kind, words):
        attempt()


OPENAI_SAYS, ANTHROPIC_SAYS = "maximum context length is 8192 tokens", "prompt is too long: "
