"""The data folder of a demonstration, and the mark that keeps it apart from every other.

The mark is written before anything else, into a folder that is empty. A demonstration is never made in another folder,
so none of its documents enters a series of numbers that somebody relies on. Its own series begin with DEMO.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from storage.reported_error import ReportedError
from turnpike.settings.data_folder import prepare_data_folder
from turnpike.settings.settings import Settings

DEFAULT_FOLDER = "turnpike-demo"
MARK = "demonstration.json"
"""The file that says that a folder is a demonstration's."""
_FORM = 1


class NotADemonstration(ReportedError):
    """The folder, or the database, is not for a demonstration. The message says what to do."""


class Mark(msgspec.Struct, frozen=True):
    """What the mark says. `state` is `making` until the demonstration is whole. `seed`, `days`: of what it was made;
    `until`: up to when, in microseconds since the Unix epoch."""

    form: int
    state: Literal["making", "made"]
    seed: int
    days: int
    until: int


def read_mark(folder: Path) -> Mark | None:
    """The folder's mark; None if it has none. Raises NotADemonstration where it cannot be read."""
    path = folder / MARK
    try:
        return msgspec.json.decode(path.read_bytes(), type=Mark)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise NotADemonstration(f"data_dir: {path} cannot be read as a demonstration's mark: {error}") from error


def claim(settings: Settings, mark: Mark) -> Mark | None:
    """Mark the folder for a demonstration that is about to be made; or return the mark of the one that is there.

    Raises NotADemonstration for a folder with anything else in it, for half a demonstration, and where the settings
    name a database, secrets or a folder of their own outside of it; DataFolderError.
    """
    for name in ("database_url", "redis_url", "secrets_file", "export_dir", "disk_folder"):
        if getattr(settings, name):
            raise NotADemonstration(f"{name}: a demonstration keeps everything in its own folder; leave this out")
    folder = settings.data.absolute()
    found = read_mark(folder)
    if found is not None and found.state == "made":
        return found
    if found is not None:
        raise NotADemonstration(
            f"data_dir: making the demonstration in {folder} was interrupted: delete the folder, and begin again"
        )
    if folder.exists() and any(folder.iterdir()):
        raise NotADemonstration(
            f"data_dir: {folder} is not empty and no demonstration's folder; a demonstration is only made in a folder "
            "of its own: name another with --data-dir"
        )
    prepare_data_folder(settings)
    _write(folder, mark, os.O_EXCL)
    return None


def finish(settings: Settings, mark: Mark) -> None:
    """Say that the demonstration is whole. Raises OSError."""
    _write(settings.data.absolute(), msgspec.structs.replace(mark, state="made"), os.O_TRUNC)


def new_mark(seed: int, days: int, until: int) -> Mark:
    """The mark of a demonstration that is being made."""
    return Mark(_FORM, "making", seed, days, until)


def _write(folder: Path, mark: Mark, how: int) -> None:
    descriptor = os.open(folder / MARK, os.O_WRONLY | os.O_CREAT | how, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(mark)) + b"\n")
