"""The data folder, and the secrets in it: what every role needs, and nothing that is slow to import."""

from __future__ import annotations

from tempfile import TemporaryFile

from turnpike import secrets
from turnpike.secrets import Secrets
from turnpike.settings import Settings


class DataFolderError(Exception):
    """The data folder cannot be made or written; the message names it."""


def prepare_data_folder(settings: Settings) -> None:
    """Make the data folder (mode 0700). Raises DataFolderError."""
    try:
        settings.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        with TemporaryFile(dir=settings.data):  # has no name, for another process to trip over
            pass
    except OSError as error:
        raise DataFolderError(f"data_dir: cannot write to {settings.data}: {error.strerror}") from error


def read_secrets(settings: Settings) -> Secrets:
    """The secrets; made at the first use when they belong to an embedded database, else they must be there."""
    if settings.secrets_file or settings.database_url.startswith("postgresql"):
        return secrets.load(settings.secrets)
    return secrets.load_or_make(settings.secrets)
