"""What `turnpike calibrate` kept is used if a disk can be so, and if it is this disk."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from prompt_cache.placement.fetch_or_recompute import TierRate
from prompt_cache.tiers.disk_calibration import DiskCalibration, read_disk_rate, write_calibration


def measured(folder: Path, /, **changed: object) -> DiskCalibration:
    """A calibration of the disk of this folder."""
    return msgspec.structs.replace(DiskCalibration(1, str(folder), 1.8e9, 0.0002, 2.5e9), **changed)


def test_what_is_kept_is_read(tmp_path: Path) -> None:
    file = tmp_path / "calibration.json"
    assert read_disk_rate(file, tmp_path / "kv") is None
    for rate in (2.5e9, 1e7):
        write_calibration(file, measured(tmp_path, bytes_per_s=rate))
        assert read_disk_rate(file, tmp_path / "kv" / "not there yet") == TierRate(0.0002, rate)


@pytest.mark.parametrize(
    "changed",
    [
        {"bytes_per_s": 0.0},
        {"bytes_per_s": -2.5e9},
        {"bytes_per_s": 1e30},
        {"fixed_s": -0.1},
        {"fixed_s": 1e6},
        {"version": 2},
        {"folder": "/proc"},
        {"folder": "relative"},
        {"folder": "\0"},
    ],
    ids=str,
)
def test_what_no_disk_has_and_another_disk_are_not_believed(tmp_path: Path, changed: dict[str, object]) -> None:
    write_calibration(tmp_path / "calibration.json", measured(tmp_path, **changed))
    assert read_disk_rate(tmp_path / "calibration.json", tmp_path) is None


def test_a_measured_folder_that_is_gone_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The file is there, so somebody believes that the replica knows its disk."""
    gone, file = tmp_path / "old", tmp_path / "calibration.json"
    gone.mkdir()
    write_calibration(file, measured(gone))
    assert read_disk_rate(file, tmp_path / "kv") is not None
    assert not caplog.text
    gone.rmdir()
    assert read_disk_rate(file, tmp_path / "kv") is None
    assert f"folder: {gone}, which was measured, is gone; `turnpike calibrate` measures anew" in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"null",
        b"\xff",
        b'{"bytes_per_s": NaN}',
        b'{"version":1,"folder":"/","measured_at":1,"fixed_s":0,"bytes_per_s":"quick"}',
        b" " * 5000,
        b"[" * 4000,
    ],
)
def test_a_damaged_file_is_as_none(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "calibration.json"
    file.write_bytes(content)
    assert read_disk_rate(file, tmp_path) is None


def test_what_is_no_file_is_as_none(tmp_path: Path) -> None:
    """A link leads elsewhere, and a pipe would hold up the start."""
    write_calibration(tmp_path / "other.json", measured(tmp_path))
    (tmp_path / "link").symlink_to("other.json")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe"):
        assert read_disk_rate(tmp_path / name, tmp_path) is None
    assert read_disk_rate(tmp_path / "other.json", tmp_path) is not None
