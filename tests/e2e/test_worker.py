"""`turnpike worker` as a process: a database that goes away and comes back, and what its health check says."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.processes import Process, command, process
from tests.servers import postgres_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def lines(worker: Process, text: str) -> list[dict[str, str]]:
    said = [json.loads(line) for line in worker.errors.splitlines() if line.startswith("{")]
    return [line for line in said if text in line["event"]]


def wait_for(worker: Process, text: str) -> None:
    end = time.monotonic() + 60
    while not lines(worker, text):
        assert time.monotonic() < end, worker.errors
        assert worker.popen.poll() is None, worker.errors
        time.sleep(0.1)


def test_a_database_that_is_away_is_said_once(tmp_path: Path) -> None:
    with postgres_server() as postgres:
        env = {
            "TURNPIKE_DATA_DIR": str(tmp_path / "data"),
            "TURNPIKE_DATABASE_URL": postgres.url,
            "TURNPIKE_SECRETS_FILE": str(tmp_path / "secrets.json"),
            "TURNPIKE_LOG_FORMAT": "json",
        }
        assert command("secrets", "create", str(tmp_path / "secrets.json")).returncode == 0
        assert command("migrate", env=env).returncode == 0
        assert command("worker", "--health", env=env).returncode != 0, "there is none"
        with process(tmp_path / "logs", "worker", env=env) as worker:
            wait_for(worker, "worker runs")
            end = time.monotonic() + 30
            while command("worker", "--health", env=env).returncode:
                assert time.monotonic() < end
                time.sleep(0.2)
            postgres.stop(signal.SIGQUIT)
            wait_for(worker, "the database is away")
            time.sleep(8)
            sick = command("worker", "--health", env=env)
            assert sick.returncode != 0
            assert "the database is away" in sick.stderr
            postgres.start()
            wait_for(worker, "the database is back")
            assert len(lines(worker, "the database is away")) == 1
            assert "Traceback" not in worker.errors
            assert "exception" not in worker.errors
            assert worker.stop() == 0
