"""A test is run again if the machine stood still while it failed, and only then."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

TESTS = """
import os, subprocess
import pytest

made, runs = [], []

def stand_still():
    subprocess.run(["sh", "-c", f"kill -STOP {os.getpid()}; sleep 0.6; kill -CONT {os.getpid()}"])

@pytest.fixture(scope="module")
def replica():
    made.append(1)
    if len(made) == 1:
        stand_still()
        raise RuntimeError("the link is lost")

def test_of_a_fixture(replica):
    assert made == [1, 1]

def test_late_twice():
    runs.append(1)
    if len(runs) < 3:
        stand_still()
        raise AssertionError("the lease has ended")

def test_always_late():
    stand_still()
    raise AssertionError("never right")

def test_wrong():
    runs.append(1)
    assert len(runs) == 5, "wrong without a pause"
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "1"])
def test_only_what_failed_in_a_pause_is_run_again(tmp_path: Path, workers: str) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_all.py").write_text(TESTS)
    plugins = ["-p", "tests.pauses", "-p", "xdist.plugin"]
    command = [sys.executable, "-m", "pytest", *plugins, "-n", workers, "-c", tmp_path / "pytest.ini", tmp_path]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, env=alone, capture_output=True, text=True, check=False)
    assert "2 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    said = re.findall(r"::(test_\w+): [0-9.]+ s, (.*)", done.stdout)
    assert Counter(said) == {
        ("test_of_a_fixture", "RuntimeError: the link is lost"): 1,
        ("test_late_twice", "AssertionError: the lease has ended"): 2,
        ("test_always_late", "AssertionError: never right"): 2,
    }
