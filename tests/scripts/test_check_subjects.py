"""Subjects of commits: which are too long, and that a tree without history passes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import check_subjects


def _git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=ann", "-c", "user.email=ann@example.test", "-c", "commit.gpgsign=false"]
    asked = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _commit(folder: Path, subject: str) -> str:
    _git(folder, "commit", "--allow-empty", "-m", f"{subject}\n\n{'A body may be as wide as it likes. ' * 9}")
    return _git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    _git(tmp_path, "init", "--quiet")
    return tmp_path


def test_long_subjects_are_named(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = _commit(repository, "o" * 90)
    _commit(repository, "é" * 72)
    assert check_subjects.main(["--base", base], repository) == 0
    long = _commit(repository, "l" * 73)
    _commit(repository, "engine: retry")
    assert check_subjects.main(["--base", base], repository) == 1
    assert capsys.readouterr().err.startswith(f"{long[:7]}")
    assert check_subjects.main(["--base", long], repository) == 0


def test_without_history_nothing_is_checked(repository: Path, tmp_path: Path) -> None:
    _commit(repository, "l" * 73)
    assert check_subjects.main([], repository) == 0, "a base that a shallow clone does not have"
    assert check_subjects.subjects_since("HEAD", tmp_path / "no such folder") is None
