"""What `turnpike calibrate` measured of the disk, kept for the replicas that start after it.

The file is a help, not an authority: what is damaged, of another version, beyond any disk, or of another file system
than the one the records lie on is not believed, and the replica begins with its default.
"""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path

import msgspec
import structlog

from prompt_cache.placement.fetch_or_recompute import TierRate
from prompt_cache.tiers.store_state import write_durably

logger = structlog.get_logger("prompt_cache.tiers")

VERSION = 1
_MOST_BYTES = 4096
_RATES = (1e6, 1e11)
"""Bytes/s that a disk may have: from an old card to more than memory copies."""
_MOST_FIXED_S = 1.0


class DiskCalibration(msgspec.Struct, frozen=True):
    """The disk of `folder`: a read of n bytes, opened and verified, takes `fixed_s + n / bytes_per_s`.

    `measured_at`: seconds since the Unix epoch.
    """

    version: int
    folder: str
    measured_at: float
    fixed_s: float
    bytes_per_s: float


def write_calibration(path: Path, calibration: DiskCalibration) -> None:
    """Replace the file. Raises OSError."""
    write_durably(path, msgspec.json.encode(calibration))


def read_disk_rate(path: Path, records: Path) -> TierRate | None:
    """The measured rate of the disk on which the folder `records` lies, or will lie; None if none is known.

    Raises nothing: what is wrong with a file is logged.
    """
    try:
        calibration = msgspec.json.decode(_content(path), type=DiskCalibration)
        _check(calibration, records)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        logger.warning("the disk's calibration is not used", file=str(path), cause=str(error))
        return None
    return TierRate(calibration.fixed_s, calibration.bytes_per_s)


def _content(path: Path) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError("it is no file")
        content = os.read(file, _MOST_BYTES + 1)
    finally:
        os.close(file)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    return content


def _check(calibration: DiskCalibration, records: Path) -> None:
    """Raise ValueError for what no disk has, and for the calibration of another disk."""
    if calibration.version != VERSION:
        raise ValueError(f"version: {calibration.version}, {VERSION} is known")
    rate, fixed = calibration.bytes_per_s, calibration.fixed_s
    if not (math.isfinite(rate) and _RATES[0] <= rate <= _RATES[1]):
        raise ValueError(f"bytes_per_s: {rate} is not from {_RATES[0]:g} to {_RATES[1]:g}")
    if not (math.isfinite(fixed) and 0 <= fixed <= _MOST_FIXED_S):
        raise ValueError(f"fixed_s: {fixed} is not from 0 to {_MOST_FIXED_S:g}")
    measured = Path(calibration.folder)
    if not measured.is_absolute() or measured.stat().st_dev != nearest_folder(records).stat().st_dev:
        raise ValueError(f"folder: {measured} is not on the disk of {records}")


def nearest_folder(path: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    path = path.absolute()
    return next((folder for folder in (path, *path.parents) if folder.is_dir()), Path("/"))
