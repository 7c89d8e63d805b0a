"""A replica begins with what `turnpike calibrate` measured of its disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from prompt_cache.placement.fetch_or_recompute import Missing
from prompt_cache.tiers.disk_calibration import VERSION, DiskCalibration, write_calibration

BLOCKS, BLOCK_BYTES = 100, 1 << 20


def fetch_seconds(model: Path, data: Path) -> float:
    """What a replica that starts on this data folder expects of reading 100 MiB from its disk."""
    options = ReplicaOptions(
        *(model, "unix:x", data, "r", b""),
        device="cpu",
        kv_memory=1 << 21,
        disk_folder=data / "kv",
        disk_bytes=1 << 20,
        calibration=data / "calibration.json",
    )
    engine = assemble(options).engine
    chooser = engine.scheduler.tiers.restores.chooser
    engine.close(5.0)
    missing = Missing(0, (("nvme", BLOCKS),), 64, BLOCK_BYTES)
    return chooser.fetch_seconds(missing, BLOCKS, 0.0)


def test_the_disk_begins_as_it_was_measured(tiny_model: Path, tmp_path: Path):
    """So slow that the copies from host memory, whose rate each start measures on a busy machine, take no longer."""
    rate = 1e6
    slow = BLOCKS * BLOCK_BYTES / rate
    default = fetch_seconds(tiny_model, tmp_path)
    write_calibration(tmp_path / "calibration.json", DiskCalibration(VERSION, str(tmp_path), 0.0, 0.0, rate))
    assert fetch_seconds(tiny_model, tmp_path) == pytest.approx(slow, rel=0.01)
    assert default < slow / 2, "a disk nobody measured is believed to be of 1 GB/s"
