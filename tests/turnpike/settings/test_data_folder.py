"""The data folder: made for its owner alone, found unwritable in one line, by any number of commands at a time; closed
to others where it was open, and never made by a command that only asks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import structlog

from tests.e2e.processes import command
from turnpike.settings.data_folder import DataFolderError, prepare_data_folder, protect_data_folder
from turnpike.settings.settings import Settings


@pytest.mark.slow
def test_many_at_a_time_find_it_writable(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path / "data"))
    with ThreadPoolExecutor(8) as crowd:
        for done in [crowd.submit(prepare_data_folder, settings) for _ in range(2000)]:
            done.result()
    assert settings.data.stat().st_mode & 0o777 == 0o700
    assert list(settings.data.iterdir()) == []


def test_what_cannot_be_written_is_named() -> None:
    with pytest.raises(DataFolderError, match="data_dir: cannot write to /proc/turnpike"):
        prepare_data_folder(Settings(data_dir="/proc/turnpike"))


@pytest.mark.parametrize("name", ["spool", "journal", "exports", "metrics"])
def test_what_stands_in_place_of_a_folder_is_named(tmp_path: Path, name: str) -> None:
    for made in (tmp_path / "file", tmp_path / "link"):
        made.mkdir()
    (tmp_path / "file" / name).touch()
    (tmp_path / "link" / name).symlink_to(tmp_path / "gone")
    for data in (tmp_path / "file", tmp_path / "link"):
        with pytest.raises(DataFolderError, match=f"data_dir: {data / name} is no folder; move it away"):
            prepare_data_folder(Settings(data_dir=str(data)))


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_what_earlier_versions_left_open_is_closed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    database = tmp_path / "elsewhere" / "books.sqlite"
    for name in ("turnpike.db", "turnpike.db-wal", "spool/a.spool", "journal/journal", "exports/b/usage.csv"):
        path = data / name
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.touch(0o644)
    database.parent.mkdir()
    database.touch(0o644)
    (data / "notes.txt").touch(0o644)
    data.chmod(0o755)
    with structlog.testing.capture_logs() as logs:
        protect_data_folder(Settings(data_dir=str(data), database_url=f"sqlite:///{database}"))
    for path in (data / "turnpike.db", data / "turnpike.db-wal", data / "journal" / "journal", database):
        assert mode(path) == 0o600, path
    assert {mode(path) for path in (data / "spool").rglob("*")} == {0o600}
    assert mode(data / "exports" / "b" / "usage.csv") == 0o600
    assert mode(data / "exports" / "b") == 0o700
    assert mode(data / "notes.txt") == 0o644, "what is not ours stays as it is"
    assert mode(data) == 0o755
    (warning,) = logs
    assert warning["log_level"] == "warning"
    assert warning["run"] == f"chmod 700 {data}"


def test_what_commands_make_is_for_the_owner_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    env = {"TURNPIKE_DATA_DIR": str(data)}
    for arguments in (["migrate"], ["tenants", "create", "acme"], ["export", "usage", "-o", str(data / "exports")]):
        (data / "exports").mkdir(exist_ok=True)
        ran = command(*arguments, env=env)
        assert ran.returncode == 0, ran.stderr
    found = {path: mode(path) for path in data.rglob("*") if path.is_file()}
    assert {"turnpike.db", "secrets.json"} <= {path.name for path in found}
    assert any(path.parent.name == "exports" for path in found)
    assert set(found.values()) == {0o600}, found


@pytest.mark.parametrize("arguments", [["tenants", "list"], ["usage"], ["audit", "money"], ["keys", "list"]])
def test_a_command_without_data_says_so_and_makes_nothing(tmp_path: Path, arguments: list[str]) -> None:
    data = tmp_path / "data"
    ran = command(*arguments, env={"TURNPIKE_DATA_DIR": str(data)})
    assert ran.returncode != 0
    assert ran.stderr.startswith(f"turnpike: data_dir: there is no data in {data}: ")
    assert "--data-dir" in ran.stderr
    assert "turnpike serve" in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
