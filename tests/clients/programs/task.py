"""The task that every client runs: a question that needs two tools."""

MODEL = "gpt-4o"
CLAUDE = "claude-sonnet-4-5"
QUESTION = "What is the weather in Lisbon, and what is 17 times 4?"
called = []


def get_weather(city: str) -> str:
    """Get the weather in a city."""
    called.append(("get_weather", city))
    return f"It is sunny in {city}, 21 degrees."


def multiply(a: int, b: int) -> str:
    """Multiply two numbers."""
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


def check(answer):
    """Both tools were called rightly, once, and the answer has what both said."""
    assert sorted(called) == [("get_weather", "Lisbon"), ("multiply", 17, 4)], called
    text = answer if isinstance(answer, str) else str(answer)
    assert "21 degrees" in text, text
    assert "68" in text, text
    print("done")
