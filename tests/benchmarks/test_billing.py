"""The benchmark of a hot tenant runs on a fresh database, and finds the books in order."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_hot_tenant_runs_and_the_books_are_in_order(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    arguments = ["hot-tenant", "--seconds", "0.3", "--clients", "4", "--workers", "1", "--database", "sqlite"]
    command = [sys.executable, "-m", "benchmarks.billing", *arguments, "--json", str(out)]
    folder = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=120, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(out.read_text())["findings"] == 0
