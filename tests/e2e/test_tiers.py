"""A prompt survives a restart of everything: its KV comes from disk, sealed, and the answer is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.processes import first_key, process, wait_ready
from tests.servers import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SYSTEM = "You answer questions about Python. " * 60


def ask(base: str, key: str) -> tuple[str, int]:
    """The answer, and how many tokens of the prompt were read."""
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "What does textwrap.dedent do?"},
    ]
    with OpenAI(base_url=f"{base}/v1", api_key=key) as client:
        answer = client.chat.completions.create(model="stdlib-qa", messages=messages, max_tokens=16, temperature=0)
    assert answer.usage is not None
    details = answer.usage.prompt_tokens_details
    return answer.choices[0].message.content or "", (details and details.cached_tokens) or 0


def test_a_prompt_survives_a_restart_of_everything(tmp_path: Path) -> None:
    port, data = free_port(), tmp_path / "data"
    base = f"http://127.0.0.1:{port}"
    arguments = ("serve", "--port", str(port), "--data-dir", str(data))
    with process(tmp_path / "first", *arguments) as first:
        first.wait_for_output(r"curl ")
        key = first_key(first)
        text, read = ask(base, key)
        assert read == 0
        assert ask(base, key)[0] == text
        assert first.stop() == 0, first.errors
    records = [path for path in (data / "kv").rglob("*") if path.is_file() and len(path.name) == 28]
    assert records
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in records)
    # A read of the disk that is late is computed instead, as on a machine that stands still for a moment.
    for start in range(3):
        with process(tmp_path / f"again-{start}", *arguments) as second:
            wait_ready(base, [second])
            again, read = ask(base, key)
            assert again == text
            assert second.stop() == 0, second.errors
        logged = [json.loads(line) for line in second.errors.splitlines() if line.startswith("{")]
        assert not any(line.get("level") == "error" for line in logged)
        if read:
            break
    assert read > 0
