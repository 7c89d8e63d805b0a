"""What `make serve` starts, two models on one machine: commands ask both replicas, the documents' programs run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import PYTHON_PROGRAMS, Program
from tests.e2e.conftest import Running
from tests.e2e.processes import ROOT, command, first_key, process, wait_settled
from tests.servers import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MODELS = ("stdlib-qa", "tool-caller")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder, port = tmp_path_factory.mktemp("two-models"), free_port()
    words = ("--port", str(port), "--data-dir", str(folder / "data"))
    with process(
        folder, "serve", *words, "--model", ",".join(str(ROOT / "models" / name) for name in MODELS)
    ) as running:
        yield Running(running, f"http://127.0.0.1:{port}", first_key(running), folder / "data", 0)
        assert running.stop() == 0, running.errors
        assert warnings(running.errors) == [], "a normal start and stop warns of nothing"


def warnings(logged: str) -> list[str]:
    """The lines that warn, but those that say that the machine was slow, which other tests use meanwhile; and asyncio's
    own where a child ends just as its transport is closed, which then reaps it before the watcher does."""
    slow = (
        "Unknown child process pid",
        "no thread of the replica ran: its process or the interpreter's lock was held",
        "a step takes long",
        "the journal's disk held up what was to be delivered",
    )
    lines = re.findall(r'^.*"level":"(?:warning|error)".*$', logged, re.M)
    return [line for line in lines if not json.loads(line)["event"].startswith(slow)]


def test_commands_ask_the_replica_of_each_model_that_is_served(served: Running) -> None:
    with served.client() as client:
        for model in MODELS:
            assert client.completions.create(model=model, prompt="hi", max_tokens=2).usage
    wait_settled(served.base)
    listed = json.loads(command("models", "--format", "json", env=served.env).stdout)
    assert [(row["name"], len(row["replicas"])) for row in listed] == [(model, 1) for model in MODELS]
    journals = json.loads(command("journals", "list", "--format", "json", env=served.env).stdout)
    states = [(row["replica"], row["state"]) for row in journals]
    assert states == [("replica-0", "answers"), ("replica-1", "answers")]
    counts, reconciled = command("audit", "counts", env=served.env), command("reconcile", env=served.env)
    assert (counts.returncode, counts.stderr) == (0, "")
    assert re.findall(r"^(replica-\d) +requests +(\d+) +\2 +equal", counts.stdout, re.M) == [
        ("replica-0", "1"),
        ("replica-1", "1"),
    ]
    assert (reconciled.returncode, reconciled.stderr) == (0, "nothing lost, nothing doubled, no drift\n")


def test_a_replica_that_is_not_asked_is_no_success(served: Running) -> None:
    alone = {**served.env, "TURNPIKE_REPLICAS": f"unix:{served.data.absolute()}/run/replica-0.sock"}
    counts, reconciled = command("audit", "counts", env=alone), command("reconcile", env=alone)
    assert (counts.returncode, counts.stderr) == (1, "replica-1 has events but does not answer: not compared\n")
    assert reconciled.returncode == 1
    assert reconciled.stderr.startswith("not compared: the journals of replica-1 do not answer")
    assert "turnpike journals list" in reconciled.stderr  # the way out where its model is served no more


@pytest.mark.parametrize("program", PYTHON_PROGRAMS, ids=str)
def test_a_program_of_the_documents_runs_as_it_is_written(served: Running, tmp_path: Path, program: Program) -> None:
    admin = command("keys", "create", "--tenant", "demo", "--admin", env=served.env).stdout.strip()
    for name in ("manual.txt", "handbook.txt"):
        (tmp_path / name).write_text(f"{name}: what the module textwrap does. " * 300)
    text = program.text.replace("http://127.0.0.1:8080", served.base).replace("tp_live_…", served.key)
    keys = {
        "OPENAI_BASE_URL": f"{served.base}/v1", "OPENAI_API_KEY": served.key, "ADMIN_KEY": admin,
        "ANTHROPIC_BASE_URL": served.base, "ANTHROPIC_API_KEY": served.key,
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, env=os.environ | keys, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.strip()
