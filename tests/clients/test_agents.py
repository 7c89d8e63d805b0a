"""Agents for the terminal with their defaults: each runs a command, reads what it printed, and meets a full context.

Their own prompts have up to 55,000 tokens, so the model is one of 131,072 that says what a script has.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import NODE, is_there, node_modules
from tests.clients.scripted_model import CONTEXT
from tests.e2e.conftest import Running

SECRET = "the harbour is frozen"
TOO_LONG = "the quick brown fox jumps over the lazy dog " * 16_000
CODEX = """\
model = "scripted"
model_provider = "turnpike"
model_context_window = {context}

[model_providers.turnpike]
name = "Turnpike"
base_url = "{base}/v1"
env_key = "OPENAI_API_KEY"
"""
pytestmark = [pytest.mark.slow, pytest.mark.e2e]


def run(folder: Path, pattern: str, *words: str, env: Mapping[str, str], task: str = "") -> list[dict[str, Any]]:
    """What an agent with a home of its own prints, line by line as JSON."""
    binary = next(node_modules().glob(pattern), None) if is_there(NODE) else None
    if binary is None:
        pytest.skip("npm has no binary for this system, or it is not installed: make test-clients does it")
    work = folder / "work"
    work.mkdir(exist_ok=True)
    (work / "note.txt").write_text(f"{SECRET}\n")
    ran = subprocess.run(
        [str(binary), *words],
        cwd=work,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **env},
        input=task,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    printed = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert printed, ran.stdout + ran.stderr
    return printed


def claude_code(served: Running, folder: Path, task: str) -> list[dict[str, Any]]:
    env = {"ANTHROPIC_BASE_URL": served.base, "ANTHROPIC_API_KEY": served.key}
    words = ("-p", "--output-format", "stream-json", "--verbose", "--allowedTools", "Bash")
    return run(folder, "@anthropic-ai/claude-code-*/claude", *words, env=env, task=task)


def test_claude_code_runs_a_task(served: Running, tmp_path: Path) -> None:
    events = claude_code(served, tmp_path, "script:claude-code Read note.txt with Bash.")
    results = [event["message"]["content"] for event in events if event["type"] == "user"]
    assert SECRET in json.dumps(results), "what the command printed"
    last = events[-1]
    assert (last["is_error"], last["result"]) == (False, "The note has been read.")
    usage = last["usage"]
    assert usage["cache_creation_input_tokens"] > 40_000, "its own prompt"
    assert usage["cache_read_input_tokens"] > 40_000, "the second turn reads it"


def test_claude_code_knows_a_prompt_that_is_too_long(served: Running, tmp_path: Path) -> None:
    last = claude_code(served, tmp_path, TOO_LONG)[-1]
    assert (last["is_error"], last["terminal_reason"]) == (True, "prompt_too_long")
    assert f"limit {CONTEXT}" in last["result"]


def codex(served: Running, folder: Path, task: str) -> list[dict[str, Any]]:
    (folder / "config.toml").write_text(CODEX.format(base=served.base, context=CONTEXT))
    env = {"CODEX_HOME": str(folder), "OPENAI_API_KEY": served.key}
    words = ("exec", "--json", "--skip-git-repo-check", "--sandbox", "danger-full-access", "-")
    return run(folder, "@openai/codex-*/vendor/*/bin/codex", *words, env=env, task=task)


def test_codex_runs_a_task_with_two_tools(served: Running, tmp_path: Path) -> None:
    events = codex(served, tmp_path, "script:codex Read note.txt, then say what the goal is.")
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    assert [item["text"] for item in items if item["type"] == "agent_message"] == ["Read, and there is no goal."]
    (command,) = [item for item in items if item["type"] == "command_execution"]
    assert (command["exit_code"], SECRET in command["aggregated_output"]) == (0, True)
    (usage,) = [event["usage"] for event in events if event["type"] == "turn.completed"]
    assert usage["cached_input_tokens"] > usage["input_tokens"] / 2, "its turns read what the one before wrote"


def test_codex_knows_a_prompt_that_is_too_long(served: Running, tmp_path: Path) -> None:
    (failed,) = [event for event in codex(served, tmp_path, TOO_LONG) if event["type"] == "turn.failed"]
    assert "context" in failed["error"]["message"], failed


def opencode(served: Running, folder: Path, task: str) -> list[dict[str, Any]]:
    provider = {
        "npm": "@ai-sdk/anthropic",
        "options": {"baseURL": f"{served.base}/v1", "apiKey": served.key},
        "models": {"scripted": {"limit": {"context": CONTEXT, "output": 8192}}},
    }
    config = {"model": "turnpike/scripted", "autoupdate": False, "provider": {"turnpike": provider}}
    env = {"OPENCODE_CONFIG_CONTENT": json.dumps(config), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    return run(folder, "opencode-*/bin/opencode", "run", "--format", "json", env=env, task=task)


def test_opencode_runs_a_task(served: Running, tmp_path: Path) -> None:
    parts = [event["part"] for event in opencode(served, tmp_path, "script:opencode Read note.txt.") if "part" in event]
    (used,) = [part for part in parts if part["type"] == "tool"]
    assert SECRET in used["state"]["output"]
    assert [part["text"] for part in parts if part["type"] == "text"] == ["It was read, as asked."]


def test_opencode_knows_a_prompt_that_is_too_long(served: Running, tmp_path: Path) -> None:
    errors = [event["error"] for event in opencode(served, tmp_path, TOO_LONG) if event["type"] == "error"]
    assert {error["name"] for error in errors} == {"ContextOverflowError"}
