"""A server with two models: one that was trained for tools, and one that says what a script has, in a long context."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.scripted_model import call, make_scripted_model
from tests.e2e.conftest import Running
from tests.e2e.processes import ROOT, first_key, process
from tests.gateway.conftest import stocked_sqlite_url
from tests.servers import free_port

__all__ = ["served", "stocked_sqlite_url"]

SCRIPTS = {
    "claude-code": [call("Bash", command="cat note.txt", description="Read the note"), "The note has been read."],
    "codex": [call("exec_command", cmd="cat note.txt"), call("get_goal"), "Read, and there is no goal."],
    "opencode": [call("bash", command="cat note.txt", description="Reads it"), "It was read, as asked."],
    "semantic-kernel": [
        f"{call('tools-get_weather', city='Lisbon')}\n{call('tools-multiply', a=17, b=4)}",
        "In Lisbon it is sunny at 21 degrees, and the product is 68.",
    ],
}
"""What the scripted model says, by the word in the user's message."""
_ALIASES = "gpt-4o=tool-caller,claude-sonnet-4-5=tool-caller,claude-opus-5-5=scripted"
"""Names by which clients ask by default, the last one Claude Code's."""


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("clients")
    port, data = free_port(), folder / "data"
    models = f"{ROOT / 'models' / 'tool-caller'},{make_scripted_model(folder / 'scripted', SCRIPTS)}"
    words = ("--port", str(port), "--data-dir", str(data), "--model", models, "--model-aliases", _ALIASES)
    # A few words that were said before are drafted whole and come in one piece: clients are tried with several.
    words += ("--speculation", "off")
    with process(folder, "serve", *words) as running:
        yield Running(running, f"http://127.0.0.1:{port}", first_key(running), data, 0)
        assert running.stop() == 0, running.errors
