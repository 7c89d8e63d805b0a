"""Real processes of ours for end-to-end tests: started, waited for, killed, and never left behind."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import psutil

from turnpike import cli, logs

ROOT = Path(__file__).resolve().parents[2]
DEMO_MODEL = ROOT / "models" / "stdlib-qa"
START_SECONDS = 100.0
_TRIALS = "kernel-trials.json"
_KEPT_TRIALS = ROOT / ".pytest_cache" / _TRIALS
"""What one replica's trials of this machine's kernels found, for all that tests start: each replica of a new folder
would spend four seconds of CPU time on the same trials."""


def run(*arguments: str, env: dict[str, str] | None = None, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """One command of ours, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "turnpike.cli", *arguments],
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def command(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """What `run` does, without a process of its own, whose imports take longer than the command."""
    out, err = io.StringIO(), io.StringIO()
    ours = mock.patch.object(logs, "configure")  # how this process logs is the tests' affair
    with mock.patch.dict(os.environ, env or {}), ours, redirect_stdout(out), redirect_stderr(err):
        status = cli.main(arguments)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


def bring_trials(data: Path) -> None:
    """Have a replica with this data folder know what replicas of earlier tests found, unless its disk is full."""
    file = data / _TRIALS
    if file.exists() or not _KEPT_TRIALS.exists():
        return
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        shutil.copy(_KEPT_TRIALS, file)
    except OSError:
        file.unlink(missing_ok=True)


def _keep_trials(data: Path) -> None:
    made = data / _TRIALS
    if made.exists() and not (_KEPT_TRIALS.exists() and _KEPT_TRIALS.read_bytes() == made.read_bytes()):
        beside = _KEPT_TRIALS.with_name(f"{_TRIALS}.{os.getpid()}")  # other workers of pytest do the same
        beside.parent.mkdir(exist_ok=True)
        shutil.copy(made, beside)
        beside.replace(_KEPT_TRIALS)


def _data_folder(arguments: Sequence[str], env: Mapping[str, str]) -> Path:
    if "--data-dir" in arguments:
        return Path(arguments[arguments.index("--data-dir") + 1])
    return Path(env.get("TURNPIKE_DATA_DIR", "nowhere"))


class Process:
    """One long-running command of ours, its output in files."""

    def __init__(self, folder: Path, *arguments: str, env: dict[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.out, self.err = folder / "stdout", folder / "stderr"
        self._data = _data_folder(arguments, os.environ | (env or {}))
        if arguments[0] in {"serve", "engine"}:
            bring_trials(self._data)
        with self.out.open("ab") as out, self.err.open("ab") as err:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "turnpike.cli", *arguments],
                env=os.environ | (env or {}),
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.out.read_text()

    @property
    def errors(self) -> str:
        return self.err.read_text()

    def children(self, *, recursive: bool = True) -> list[psutil.Process]:
        return psutil.Process(self.popen.pid).children(recursive=recursive)

    def wait_for_output(self, pattern: str, seconds: float = START_SECONDS) -> re.Match[str]:
        """Wait until stdout has the pattern."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if match := re.search(pattern, self.output, re.MULTILINE):
                return match
            assert self.popen.poll() is None, f"exited with {self.popen.returncode}:\n{self.output}\n{self.errors}"
            time.sleep(0.05)
        raise AssertionError(f"no {pattern!r} after {seconds} s:\n{self.output}\n{self.errors}")

    def kill(self) -> None:
        """kill -9, of this process alone."""
        self.popen.kill()
        self.popen.wait()

    def stop(self, seconds: float = 45) -> int:
        """SIGTERM; returns the exit status."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(seconds)

    def clean_up(self) -> None:
        _keep_trials(self._data)
        left = self.children() if self.popen.poll() is None else []
        for process in [*left, psutil.Process(self.popen.pid)] if self.popen.poll() is None else left:
            process.kill()
        self.popen.wait()


@contextmanager
def process(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> Iterator[Process]:
    running = Process(folder, *arguments, env=env)
    try:
        yield running
    finally:
        running.clean_up()


def first_key(running: Process) -> str:
    """The API key of a first start of `serve`, from the file that it names."""
    file = running.wait_for_output(r"^    (/\S+/api-key)$").group(1)
    return Path(file).read_text().strip()


def get(url: str, key: str | None = None, timeout: float = 30) -> tuple[int, bytes]:
    """Status and body of a GET; status 0 when nobody listens."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except OSError:
        return 0, b""


def wait_ready(base: str, processes: Sequence[Process] = (), seconds: float = START_SECONDS) -> None:
    """Wait until /readyz answers 200."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if get(base + "/readyz")[0] == 200:
            return
        for running in processes:
            assert running.popen.poll() is None, f"exited:\n{running.output}\n{running.errors}"
        time.sleep(0.1)
    raise AssertionError("not ready:\n" + "\n".join(p.errors[-3000:] for p in processes))


def wait_settled(base: str, seconds: float = 60) -> None:
    """Wait until what the answers so far cost is in the database; it lies in the spool for a moment before."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if re.search(rb"^turnpike_spool_waiting 0\.0$", get(base + "/metrics")[1], re.MULTILINE):
            return
        time.sleep(0.02)
    raise AssertionError(f"records wait in the spool after {seconds} s")


class Used(msgspec.Struct):
    """What a data folder's requests came to."""

    requests: int
    output: int
    cost: Decimal


def used(env: dict[str, str] | None = None) -> Used:
    """The sums of what `turnpike usage` says of this month and of the one before: a month may end during a test."""
    today = datetime.now(UTC)
    rows: list[dict[str, Any]] = []
    for day in (today, today.replace(day=1) - timedelta(days=1)):
        answer = command("usage", "--month", f"{day:%Y-%m}", "--format", "json", env=env)
        assert answer.returncode == 0, answer.stderr
        rows += json.loads(answer.stdout)["rows"]
    return Used(
        sum(int(row["requests"]) for row in rows),
        sum(int(row["output"]) for row in rows),
        sum((Decimal(str(row["cost"])) for row in rows), Decimal(0)),
    )
