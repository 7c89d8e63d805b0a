"""Checks of the machine: files and who may read them, disks, limits of processes, versions of what is installed."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from storage.disk_space import RESERVE_BYTES, DiskWatch
from turnpike.doctor.findings import Finding, ok, warning, wrong
from turnpike.settings.data_folder import OWNER_ONLY
from turnpike.settings.settings import Settings

_GIGABYTE = 1 << 30
_PARTS_FREE = 20
"""A disk with less than this part free is soon full."""
_SLOW_SYNC_S = 0.05
_SYNCS = 5
_VOLATILE = frozenset({"tmpfs", "ramfs", "overlay"})
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"})
_EXACT = ("litestar", "msgspec", "sqlalchemy", "asyncpg", "uvloop", "cryptography", "redis")
"""Packages whose versions are looked at: those on whose behaviour correctness depends most."""
_FILES_BESIDE = 500
"""Open files of a gateway that are no connections of clients."""


def check_machine(settings: Settings) -> Iterator[Finding]:
    """All checks that ask nobody else."""
    yield from check_folder(settings)
    yield from check_secrets(settings)
    yield from check_disks(settings)
    yield check_open_files(settings)
    yield from check_versions()


def check_folder(settings: Settings) -> Iterator[Finding]:
    """The data folder: there, ours to write, closed to others."""
    folder = settings.data.absolute()
    if not folder.is_dir():
        yield wrong(
            "data folder", f"{folder} does not exist", "name the folder with --data-dir, or run `turnpike serve`"
        )
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        yield wrong("data folder", f"{folder} cannot be written by this user", f"chown -R {os.geteuid()} {folder}")
        return
    mode = folder.stat().st_mode & 0o777
    if mode & OWNER_ONLY:
        yield warning("data folder", f"{folder} is open to others (mode {mode:04o})", f"chmod 700 {folder}")
    else:
        yield ok("data folder", f"{folder} is ours alone")
    foreign = [path for path in folder.iterdir() if path.lstat().st_uid != folder.stat().st_uid]
    if foreign:
        names = ", ".join(sorted(path.name for path in foreign)[:5])
        yield wrong("data folder", f"other users own {names} in it", f"chown -R {folder.stat().st_uid} {folder}")


def check_secrets(settings: Settings) -> Iterator[Finding]:
    """Files with secrets: there, and readable by their owner alone."""
    from turnpike.settings.secrets import SecretsError, load  # few checks ask

    path = settings.secrets
    if not path.exists():
        yield wrong("secrets", f"{path} does not exist", "restore it from a backup: no key or cache opens without it")
    else:
        try:
            load(path)
        except (SecretsError, OSError) as error:
            yield wrong("secrets", str(error), "restore the file from a backup")
        else:
            yield ok("secrets", f"{path} is readable, and by its owner alone")
    for what, file in (
        ("operator's key", settings.operator_key_file),
        ("collector's headers", settings.otlp_headers_file),
        ("mail password", settings.smtp_password_file),
    ):
        if file:
            yield _secret_file(what, Path(file))


def _secret_file(what: str, path: Path) -> Finding:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        path.open("rb").close()
    except OSError as error:
        return wrong(what, f"{path}: {error.strerror}", "name a file that this user can read")
    if mode & OWNER_ONLY:
        return warning(what, f"{path} is open to others (mode {mode:04o})", f"chmod 600 {path}")
    return ok(what, f"{path} is ours alone")


def check_disks(settings: Settings) -> Iterator[Finding]:
    """Disks of what must not be lost: room, kind of file system, time of a sync."""
    wanted = {"spool and journals": settings.data, "exports": settings.exports, "files": settings.files}
    if settings.disk_memory:
        wanted["KV on disk"] = settings.kv_folder
    devices: dict[int, str] = {}
    for what, folder in wanted.items():
        there = next((path for path in (folder, *folder.absolute().parents) if path.is_dir()), Path("/"))
        device = there.stat().st_dev
        if device not in devices:
            devices[device] = what
            yield _room(what, there)
    if not settings.data.is_dir():
        return
    kind = file_system(settings.data)
    if kind in _VOLATILE:
        state = f"{settings.data} is on {kind}, which a restart of the machine or container empties"
        yield warning("spool's disk", state, "put the data folder on a volume")
    elif kind in _NETWORK:
        yield warning("spool's disk", f"{settings.data} is on {kind}", "use a local disk: each answer waits for a sync")
    yield _sync_time(settings.data)


def _room(what: str, folder: Path) -> Finding:
    usage = shutil.disk_usage(folder)
    state = f"{usage.free / _GIGABYTE:.1f} of {usage.total / _GIGABYTE:.1f} GiB are free at {folder}"
    watch = DiskWatch([folder])
    if watch.full:
        return wrong(f"disk of {what}", watch.problem or state, "free some space: requests are refused meanwhile")
    if usage.free < max(16 * RESERVE_BYTES, usage.total // _PARTS_FREE):
        return warning(f"disk of {what}", state, "free some space, or grow the disk")
    return ok(f"disk of {what}", state)


def _sync_time(folder: Path) -> Finding:
    took = []
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            for _ in range(_SYNCS):
                file.write(b"turnpike" * 512)
                file.flush()
                began = time.perf_counter()
                os.fsync(file.fileno())
                took.append(time.perf_counter() - began)
    except OSError as error:
        return wrong("spool's disk", f"a file cannot be written and synced: {error.strerror}", "look at the disk")
    median = sorted(took)[_SYNCS // 2]
    state = f"a sync takes {1000 * median:.1f} ms"
    if median > _SLOW_SYNC_S:
        return warning("spool's disk", state, "use a quicker disk: the end of each answer waits for one")
    return ok("spool's disk", state)


def file_system(folder: Path) -> str:
    """The kind of file system of a folder, as the kernel names it; empty if it is not known."""
    found, kind = "", ""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    path = str(folder.absolute())
    for line in lines:
        _, place, name, *_ = line.split()
        if (path + "/").startswith(place.rstrip("/") + "/") and len(place) >= len(found):
            found, kind = place, name
    return kind


def check_open_files(settings: Settings) -> Finding:
    """The limit of open files against that of connections. The gateway raises the soft one itself."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + _FILES_BESIDE
    if hard != resource.RLIM_INFINITY and hard < wanted:
        state = f"{hard} open files are allowed, and --max-connections {settings.max_connections} needs {wanted}"
        return warning("limits", state, f"ulimit -Hn {wanted} (systemd: LimitNOFILE={wanted}), or fewer connections")
    return ok("limits", "open files are enough for all connections")


def check_versions() -> Iterator[Finding]:
    """Python and the packages on which most depends."""
    if platform.python_implementation() != "CPython":
        yield warning("Python", platform.python_implementation(), "run it on CPython: nothing else is tested")
    else:
        yield ok("Python", platform.python_version())
    missing = []
    for name in _EXACT:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        yield wrong("packages", f"{', '.join(missing)} are not installed", "install requirements/base.txt anew")
    else:
        yield ok("packages", ", ".join(f"{name} {metadata.version(name)}" for name in _EXACT))
