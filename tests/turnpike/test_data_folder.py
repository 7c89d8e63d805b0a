"""The data folder: made for its owner alone, found unwritable in one line, by any number of commands at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from turnpike.data_folder import DataFolderError, prepare_data_folder
from turnpike.settings import Settings


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
