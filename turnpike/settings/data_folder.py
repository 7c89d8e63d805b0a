"""The data folder: made, protected, locked for one gateway, and the secrets in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import uuid
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile

import msgspec
import structlog

from storage.disk_space import is_disk_full
from storage.reported_error import ReportedError
from turnpike.settings import secrets
from turnpike.settings.secrets import Secrets
from turnpike.settings.settings import Settings

OWNER_ONLY = 0o077
"""The umask of all our processes: files are made with mode 0600 and folders with 0700."""
_OUR_PATTERNS = (
    "*.db",
    "*.db-wal",
    "*.db-shm",
    "secrets.json",
    "calibration.json",
    "kernel-trials.json",
    "api-key",
    "sign-in-link",
    "sign-in-links",
    "address",
    "served.json",
    "serve.lock",
    "run",
    "metrics/*",
    "metrics/*/*",
)
_OUR_FOLDERS = ("spool", "journal", "exports", "files")

logger = structlog.get_logger(__name__)


class DataFolderError(ReportedError):
    """The data folder cannot be made, written, or used by this process alone. The message names it."""


class DataFolderFull(DataFolderError):
    """The data folder's disk is full."""

    temporary = True


class NoData(ReportedError):
    """There is no database in the data folder of a command."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(
            f"data_dir: there is no data in {settings.data.absolute()}: name the folder with --data-dir, or a database "
            "with --database-url; `turnpike serve` or `turnpike migrate` makes a new one"
        )


def prepare_data_folder(settings: Settings) -> None:
    """Make the data folder (mode 0700). Raises DataFolderError."""
    try:
        settings.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        with TemporaryFile(dir=settings.data):  # without a name that another process could meet
            pass
    except OSError as error:
        failure = DataFolderFull if is_disk_full(error) else DataFolderError
        raise failure(f"data_dir: cannot write to {settings.data}: {error.strerror}") from error
    for name in (*_OUR_FOLDERS, "metrics"):
        path = settings.data / name
        if os.path.lexists(path) and not path.is_dir():
            raise DataFolderError(f"data_dir: {path} is no folder; move it away, and a folder is made in its place")


def record_address(settings: Settings, url: str) -> None:
    """Write where the gateway listens, for links that commands make. Raises OSError."""
    (settings.data / "address").write_text(f"{url}\n")


def last_address(settings: Settings) -> str | None:
    """Where the gateway of this folder listens, or listened last; None if none has."""
    try:
        return (settings.data / "address").read_text().strip() or None
    except OSError:
        return None


class Served(msgspec.Struct, frozen=True):
    """What the last `serve` of a data folder served: its model folders, and the addresses of its replicas."""

    models: list[str]
    replicas: list[str]


def record_served(settings: Settings) -> None:
    """Write what this `serve` serves, for commands that ask its replicas. Raises DataFolderError."""
    served = Served([str(folder.absolute()) for folder in settings.model_folders], settings.own_replica_addresses)
    new = settings.data / "served.json.new"
    try:
        new.write_bytes(msgspec.json.encode(served))
        new.replace(settings.data / "served.json")
    except OSError as error:
        failure = DataFolderFull if is_disk_full(error) else DataFolderError
        raise failure(f"data_dir: cannot write to {settings.data}: {error.strerror}") from error


def with_served(settings: Settings) -> Settings:
    """The settings of a command: models and replicas that were not set are those of the folder's last `serve`."""
    try:
        served = msgspec.json.decode((settings.data / "served.json").read_bytes(), type=Served)
    except (OSError, msgspec.DecodeError):
        return settings
    return msgspec.structs.replace(
        settings,
        model=settings.model or ",".join(served.models),
        replicas=settings.replicas or ",".join(served.replicas),
    )


def check_data(settings: Settings) -> None:
    """Raise NoData if the embedded database does not exist. Nothing is made."""
    if settings.embedded_database is not None and not settings.embedded_database.exists():
        raise NoData(settings)


def protect_data_folder(settings: Settings) -> None:
    """Close our files to everybody but their owner, and log a warning if the folder is open to others.

    The folder's own mode is not changed: it may hold files that are not ours.
    """
    for path in _our_files(settings):
        try:
            status = path.lstat()
            if status.st_uid == os.geteuid() and status.st_mode & OWNER_ONLY and not path.is_symlink():
                path.chmod(status.st_mode & 0o700)
        except OSError as error:
            if error.errno != errno.ENOENT:  # another of our processes has removed it
                logger.warning("a file of the data folder stays open to others", path=str(path), cause=error.strerror)
    mode = settings.data.stat().st_mode & 0o777
    if mode & OWNER_ONLY:
        logger.warning(
            "the data folder is open to others; the files in it are not",
            folder=str(settings.data.absolute()),
            mode=f"{mode:04o}",
            run=f"chmod 700 {settings.data.absolute()}",
        )


def _our_files(settings: Settings) -> Iterator[Path]:
    for pattern in _OUR_PATTERNS:
        yield from settings.data.glob(pattern)
    for name in _OUR_FOLDERS:
        folder = settings.data / name
        if folder.is_dir():
            yield from folder.rglob("*")
            yield folder
    if (database := settings.embedded_database) is not None:
        yield from (database.with_name(database.name + end) for end in ("", "-wal", "-shm"))


def read_secrets(settings: Settings) -> Secrets:
    """The secrets. For an embedded database they are made if they do not exist. Raises SecretsError."""
    if settings.secrets_file or settings.database_url.startswith("postgresql"):
        return secrets.load(settings.secrets)
    return secrets.load_or_make(settings.secrets)


@contextlib.contextmanager
def gateway_folder(settings: Settings) -> Iterator[Settings]:
    """Lock a data folder for one gateway; yields the settings with its folder and its name. Raises DataFolderError."""
    if settings.shared_data_dir:
        settings, lock = _first_free(settings)
    elif (locked := _locked(settings)) is not None:
        lock = locked
    else:
        raise DataFolderError(
            f"data_dir: another gateway uses {settings.data}: give each its own --data-dir, or start all of them "
            "with --shared-data-dir"
        )
    try:
        if not settings.gateway_name:
            name = f"{socket.gethostname()}-{folder_identity(settings.data)[:8]}"
            settings = msgspec.structs.replace(settings, gateway_name=name)
        yield settings
    finally:
        os.close(lock)


def _first_free(shared: Settings) -> tuple[Settings, int]:
    """The settings with the first folder in the shared one that no gateway uses, and the descriptor of its lock."""
    for slot in count():
        own = str(shared.data / f"gateway-{slot}")
        settings = msgspec.structs.replace(shared, data_dir=own, shared_data_dir=False)
        if (lock := _locked(settings)) is not None:
            return settings, lock
    raise AssertionError("unreachable")


def _locked(settings: Settings) -> int | None:
    """The descriptor of the folder's lock, which a gateway holds while it lives; None if another gateway has it."""
    prepare_data_folder(settings)
    lock = os.open(settings.data / "gateway.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def folder_identity(folder: Path) -> str:
    """The random identity of a data folder, made at the first call. Raises DataFolderError."""
    path = folder / "identity"
    try:
        if not path.exists():
            new = folder / f"identity.{uuid.uuid4().hex}"
            new.write_text(f"{uuid.uuid4().hex}\n")
            with contextlib.suppress(FileExistsError):  # another process was faster
                os.link(new, path)
            new.unlink()
        return path.read_text().strip()
    except OSError as error:
        raise DataFolderError(f"data_dir: cannot write to {folder}: {error.strerror}") from error
