"""When a disk counts as full, and how often that is said."""

from __future__ import annotations

import errno
from pathlib import Path

import structlog

from storage.disk_space import DiskWatch, is_disk_full
from tests.small_disk import small_disk


def test_a_disk_that_fills_up_and_has_room_again_is_said_twice(tmp_path: Path) -> None:
    now = 0.0
    with small_disk(tmp_path / "disk", lambda: (), megabytes=4) as disk:
        if not disk.mounted:  # the bounds of a real disk cannot be reached without one
            return
        watch = DiskWatch([tmp_path, disk.folder], clock=lambda: now)
        with structlog.testing.capture_logs() as logs:
            assert watch.problem is None
            assert 3 << 20 < watch.free_bytes <= 4 << 20
            disk.fill()
            for _ in range(3):
                now += 1
                assert watch.full
                assert watch.problem == f"the disk of {disk.folder} is full"
                assert watch.free_bytes == 0
            disk.empty()
            for _ in range(3):
                now += 1
                assert not watch.full
        assert [line["log_level"] for line in logs] == ["error", "info"]


def test_a_folder_that_is_gone_is_a_problem(tmp_path: Path) -> None:
    now = 0.0
    folder = tmp_path / "data"
    folder.mkdir()
    watch = DiskWatch([folder], clock=lambda: now)
    assert not watch.full
    folder.rmdir()
    now += 1
    assert str(folder) in (watch.problem or "")


def test_what_says_that_there_is_no_room() -> None:
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        assert is_disk_full(OSError(number, "no room"))
    assert not is_disk_full(OSError(errno.EIO, "broken"))
    outer = ValueError("a record could not be written")
    outer.__cause__ = OSError(errno.ENOSPC, "no room")
    assert is_disk_full(outer)
    assert not is_disk_full(None)
