"""Codex runs a task with two tools: the program from npm, unchanged but the address, the key and the model's name.

Its own prompt is longer than the demo model's context, so what the model says is a script.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from protocol.requests import Generate
from tests.clients.environments import FOLDER
from tests.gateway.fake_replica import Script
from tests.gateway.stack import Stack, running_stack
from tests.gateway.tiny_model import make_model_folder

CODEX = FOLDER / "codex" / "node_modules" / ".bin" / "codex"
CONTEXT = 262_144
CONFIG = """\
model = "tiny"
model_provider = "turnpike"
model_context_window = {context}
check_for_update_on_startup = false
web_search = "disabled"

[analytics]
enabled = false

[model_providers.turnpike]
name = "Turnpike"
base_url = "{base}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
"""
SECRET = "the harbour is frozen"
pytestmark = pytest.mark.slow


async def run_codex(stack: Stack, folder: Path, task: str) -> tuple[int | None, str, str]:
    """The exit status of Codex with this task, and what it printed."""
    home, work = folder / "home", folder / "work"
    for made in (home, work):
        made.mkdir(exist_ok=True)
    (home / "config.toml").write_text(CONFIG.format(base=stack.base, context=CONTEXT))
    (work / "note.txt").write_text(f"{SECRET}\n")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "CODEX_HOME": str(home),
        "OPENAI_API_KEY": stack.key,
    }
    words = ("exec", "--json", "--skip-git-repo-check", "--sandbox", "danger-full-access", task)
    process = await asyncio.create_subprocess_exec(
        str(CODEX),
        *words,
        cwd=work,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, errors = await asyncio.wait_for(process.communicate(), 90)
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, out.decode(), errors.decode()


def call(name: str, **arguments: Any) -> str:
    return f"Tool call: {json.dumps({'name': name, 'arguments': arguments})}"


async def test_codex_runs_a_task_with_two_tools(stocked_sqlite_url: str, tmp_path: Path) -> None:
    if not CODEX.exists() or shutil.which("node") is None:
        pytest.skip("codex is not installed: make test-clients does it")
    if not await starts():
        pytest.skip("npm has no binary of codex for this system")
    says = [call("exec_command", cmd="cat note.txt"), call("get_goal"), "Read, and there is no goal."]
    read: list[str] = []
    folder = make_model_folder(tmp_path / "model", context=CONTEXT)
    async with running_stack(stocked_sqlite_url, tmp_path, folder, context=CONTEXT) as stack:
        tokenizer = next(iter(stack.models)).tokenizer

        def script(generate: Generate) -> Script:
            read.append(tokenizer.decode(generate.tokens))
            return Script(tokens=stack.tokens(says[len(read) - 1]))

        stack.replica.script = script
        status, out, errors = await run_codex(stack, tmp_path, "Read note.txt, then say what the goal is.")
        events = await stack.settled(3)
    assert status == 0, errors
    assert SECRET not in read[0]
    assert SECRET in read[1], "what the command printed"
    assert "Tool result" in read[2].rpartition("get_goal")[2]
    told = [json.loads(line) for line in out.splitlines()]
    items = [event["item"] for event in told if event["type"] == "item.completed"]
    assert [item["text"] for item in items if item["type"] == "agent_message"] == [says[-1]]
    (command,) = [item for item in items if item["type"] == "command_execution"]
    assert (command["exit_code"], SECRET in command["aggregated_output"]) == (0, True)
    (usage,) = [event["usage"] for event in told if event["type"] == "turn.completed"]
    assert usage["output_tokens"] == sum(event.output for event in events)


async def starts() -> bool:
    """Whether there is a binary for this system: the package is a script that looks for one."""
    process = await asyncio.create_subprocess_exec(
        str(CODEX), "--version", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    return await process.wait() == 0
