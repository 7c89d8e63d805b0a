"""The Responses API under the clients of today, each a program of its own in an environment of its own."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from protocol.requests import Generate
from tests.clients.environments import interpreter, is_there
from tests.gateway.fake_replica import Script
from tests.gateway.stack import Stack, running_stack
from tests.gateway.tiny_model import make_model_folder

PROGRAMS = Path(__file__).parent / "programs"
pytestmark = pytest.mark.slow
CONTEXT = 4096


@pytest.fixture
async def roomy_stack(stocked_sqlite_url: str, tmp_path: Path) -> AsyncIterator[Stack]:
    folder = make_model_folder(tmp_path / "model", context=CONTEXT)
    async with running_stack(stocked_sqlite_url, tmp_path, folder, context=CONTEXT) as running:
        yield running


def say_in_turn(stack: Stack, texts: Sequence[str]) -> None:
    """Let the model say these texts, one for each request."""
    left = list(texts)

    def script(generate: Generate) -> Script:
        return Script(tokens=stack.tokens(left.pop(0)))

    stack.replica.script = script


async def run(stack: Stack, environment: str, program: str) -> dict[str, Any]:
    """What a program of this client prints."""
    if not is_there(environment):
        pytest.skip(f"{environment} is not installed: make test-clients does it")
    env = {"PATH": os.environ["PATH"], "OPENAI_BASE_URL": f"{stack.base}/v1", "OPENAI_API_KEY": stack.key}
    process = await asyncio.create_subprocess_exec(
        str(interpreter(environment)),
        str(PROGRAMS / program),
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, errors.decode()[-4000:]
    printed: dict[str, Any] = json.loads(out.splitlines()[-1])
    return printed


def call(name: str, **arguments: Any) -> str:
    return f"Tool call: {json.dumps({'name': name, 'arguments': arguments})}"


async def test_the_agents_sdk_runs_a_task_for_two_tools(roomy_stack: Stack) -> None:
    calls = f"{call('weather', city='Rome')}\n{call('add', a=1, b=2)}"
    say_in_turn(roomy_stack, [calls, "Sun, and 3.", call("add", a=3, b=4), "Seven.", "Still."])
    told = await run(roomy_stack, "current", "agents_sdk.py")
    assert told["answers"] == ["Sun, and 3.", "Seven.", "Still."]
    assert sorted(told["called"]) == [["add", 1, 2], ["add", 3, 4], ["weather", "Rome"]]
    assert (told["completed"], told["requests"]) == (2, 2)
    assert told["tokens"] > 0


async def test_openais_client_does_all_that_it_can(roomy_stack: Stack) -> None:
    says = [
        *(call("weather", city="Rome"), "Sun.", call("weather", city="Oslo"), '{"city": "Rome", "sunny": true}'),
        "Later, as asked.",
    ]
    say_in_turn(roomy_stack, says)
    told = await run(roomy_stack, "current", "openai_responses.py")
    assert told["called"] == ["weather", {"city": "Rome"}]
    assert told["answer"] == "Sun."
    assert told["streamed"] == ["function_call"]
    assert told["deltas"] > 0
    assert told["parsed"] == {"city": "Rome", "sunny": True}
    assert told["background"] == "completed"
    assert told["resumed"] == list(range(2, 2 + len(told["resumed"])))
    assert told["items"] == ["message"]
