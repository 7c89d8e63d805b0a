"""Every client runs a task with two tools against the demo model, unchanged but base URL and key."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.environments import FOLDER, NODE_CLIENTS, interpreter, is_there
from tests.e2e.conftest import Running
from tests.e2e.processes import first_key, process
from tests.servers import free_port

PROGRAMS = Path(__file__).parent / "programs"
MODEL = Path(__file__).resolve().parents[2] / "models" / "tool-caller"
RUNS = {
    "openai_chat": "openai",
    "anthropic_messages": "anthropic",
    "openai_agents": "openai-agents",
    "openai_agents_responses": "openai-agents",
    "langchain_openai_chat": "langchain-openai",
    "langchain_anthropic_chat": "langchain-anthropic",
    "litellm_chat": "litellm",
    "instructor_tools": "instructor",
    "pydantic_ai_agent": "pydantic-ai",
    "vercel": "vercel",
}
"""Program → the client whose environment it runs in."""

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


@pytest.fixture(scope="module")
def tool_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("clients")
    port, data = free_port(), folder / "data"
    words = ("--port", str(port), "--data-dir", str(data), "--model", str(MODEL))
    aliases = "gpt-4o=tool-caller,claude-sonnet-4-5=tool-caller"
    with process(folder, "serve", *words, "--model-aliases", aliases) as running:
        yield Running(running, f"http://127.0.0.1:{port}", first_key(running), data, 0)
        assert running.stop() == 0, running.errors


@pytest.mark.parametrize("program", RUNS)
def test_a_client_runs_its_task(tool_model: Running, program: str) -> None:
    client = RUNS[program]
    if not is_there(client):
        pytest.skip(f"{client} is not installed: make test-clients does it")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tool_model.data),
        "OPENAI_BASE_URL": f"{tool_model.base}/v1",
        "OPENAI_API_KEY": tool_model.key,
        "ANTHROPIC_BASE_URL": tool_model.base,
        "ANTHROPIC_API_KEY": tool_model.key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONPATH": str(PROGRAMS),
    }
    if client in NODE_CLIENTS:
        copy = FOLDER / client / f"{program}.mjs"  # its modules are found from where it lies
        shutil.copyfile(PROGRAMS / f"{program}.mjs", copy)
        command = ["node", str(copy)]
    else:
        command = [str(interpreter(client)), str(PROGRAMS / f"{program}.py")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["done"]), ran.stdout + ran.stderr
