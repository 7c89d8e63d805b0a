"""What `turnpike calibrate` measured of the disk, kept for the replicas that start after it.

The file is a help, not an authority: what is damaged, of another version, beyond any disk, of a folder that is gone, or
of another file system than the one the records lie on is not believed. The log says so, and the replica begins with its
default.
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


class CalibrationRefused(ValueError):
    """A calibration says what no disk has, or was measured on another disk. `field`: where it says so."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


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
        content = _content(path)
    except FileNotFoundError:
        return None  # nobody has measured
    except (OSError, ValueError) as error:
        _warn(path, error)
        return None
    try:
        calibration = msgspec.json.decode(content, type=DiskCalibration)
        _check(calibration, records)
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        _warn(path, error)
        return None
    return TierRate(calibration.fixed_s, calibration.bytes_per_s)


def _warn(path: Path, error: Exception) -> None:
    cause = f"{error}; `turnpike calibrate` measures anew"
    logger.warning("the disk's calibration is not used", file=str(path), cause=cause)


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
    """Raise CalibrationRefused for what no disk has, and for the calibration of another disk."""
    if calibration.version != VERSION:
        raise CalibrationRefused("version", f"{calibration.version}, {VERSION} is known")
    rate, fixed = calibration.bytes_per_s, calibration.fixed_s
    if not (math.isfinite(rate) and _RATES[0] <= rate <= _RATES[1]):
        raise CalibrationRefused("bytes_per_s", f"{rate} is not from {_RATES[0]:g} to {_RATES[1]:g}")
    if not (math.isfinite(fixed) and 0 <= fixed <= _MOST_FIXED_S):
        raise CalibrationRefused("fixed_s", f"{fixed} is not from 0 to {_MOST_FIXED_S:g}")
    measured = Path(calibration.folder)
    if not measured.is_absolute():
        raise CalibrationRefused("folder", f"{measured} is no absolute path")
    try:
        measured_on = measured.stat().st_dev
    except FileNotFoundError:
        raise CalibrationRefused("folder", f"{measured}, which was measured, is gone") from None
    if measured_on != nearest_folder(records).stat().st_dev:
        raise CalibrationRefused("folder", f"{measured} is not on the disk of {records}")


def nearest_folder(path: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    path = path.absolute()
    return next((folder for folder in (path, *path.parents) if folder.is_dir()), Path("/"))
