"""Every client does what its users do with it, against a demo model, unchanged but base URL and key.

It answers, streams the same answer, runs a task for two tools, keeps to a structure, and knows what is too long.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.environments import FOLDER, NODE, interpreter, is_there
from tests.e2e.conftest import Running

PROGRAMS = Path(__file__).parent / "programs"
ALL = ["answer", "stream", "tools", "structure", "error"]
RUNS: dict[str, tuple[str, list[str]]] = {
    "openai_chat": ("current", ALL),
    "anthropic_messages": ("current", ALL),
    "anthropic_tool_runner": ("current", ["tools"]),
    "openai_agents": ("current", ALL),
    "openai_agents_responses": ("current", ALL),
    "langchain_openai_chat": ("current", ALL),
    "langchain_anthropic_chat": ("current", ALL),
    "litellm_chat": ("current", ALL * 2),
    "pydantic_ai_agent": ("current", ALL * 3),
    "smolagents_agent": ("current", ["answer", "stream", "tools", "error"]),
    "dspy_program": ("current", ["answer", "structure", "error"]),
    "haystack_generator": ("current", ALL),
    "autogen_agent": ("current", ALL),
    "instructor_tools": ("instructor", ["structure", "structure", "structure", "stream", "structure", "error"]),
    "llama_index_llm": ("llama-index", ALL),
    "strands_agent": ("strands", ALL * 2),
    "semantic_kernel_chat": ("semantic-kernel", ALL),
    "openai_node": (NODE, ALL),
    "anthropic_node": (NODE, ALL),
    "anthropic_tool_runner_node": (NODE, ["tools"]),
    "vercel": (NODE, ALL * 3),
    "openai_agents_node": (NODE, ALL),
    "langchain_node": (NODE, ALL),
}
"""Program → the environment that it runs in, and what it says that went well: again for each of its dialects."""

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


@pytest.mark.parametrize("program", RUNS)
def test_a_client_does_what_its_users_do(served: Running, program: str) -> None:
    environment, abilities = RUNS[program]
    if not is_there(environment):
        pytest.skip(f"{environment} is not installed: make test-clients does it")
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(served.data),
        "OPENAI_BASE_URL": f"{served.base}/v1",
        "OPENAI_API_KEY": served.key,
        "ANTHROPIC_BASE_URL": served.base,
        "ANTHROPIC_API_KEY": served.key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONPATH": str(PROGRAMS),
    }
    if environment == NODE:
        for source in PROGRAMS.glob("*.mjs"):  # their packages are found from where they lie
            shutil.copy(source, FOLDER / NODE)
        source = FOLDER / NODE / f"{program}.mjs"
    else:
        source = PROGRAMS / f"{program}.py"
    command = [str(interpreter(environment)), str(source)]
    ran = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=240, check=False)
    said = [line for line in ran.stdout.splitlines() if line in ALL]
    assert (ran.returncode, said) == (0, abilities), ran.stdout[-4000:] + ran.stderr[-4000:]
