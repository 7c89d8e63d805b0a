"""PostgreSQL, Redis and Prometheus servers of the tests' own, on free ports in a temporary folder.

`python -m tests.servers --install` installs Debian's packages where they are missing and apt works; otherwise it says
in one line what to install and exits with 1. Debian's own services are neither needed nor started.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

_START_TIMEOUT = 60.0
_PR_SET_PDEATHSIG = 1


class ServerMissing(RuntimeError):
    """A server's programs are not on this machine."""


def _find_postgresql() -> Path | None:
    """The folder with `initdb` and `postgres`: what pg_config says, Debian's folders (newest first), or the PATH."""
    folders = []
    if shutil.which("pg_config"):
        said = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True, check=False).stdout.strip()
        folders.append(Path(said))
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name), reverse=True)
    folders += [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    return next((f for f in folders if os.access(f / "initdb", os.X_OK) and os.access(f / "postgres", os.X_OK)), None)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that stays free for who asks for it by its number, as servers do with SO_REUSEADDR.

    A socket of ours is bound to it and never listens, so that while a server starts, or is away, the kernel gives the
    port to nobody who wants any. It is never closed: then somebody else could have it before the server is back.
    """
    keeping = socket.socket()
    keeping.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeping.bind(("127.0.0.1", 0))
    port = int(keeping.getsockname()[1])
    keeping.detach()
    return port


def _die_with_parent(sign: signal.Signals) -> Callable[[], None]:
    libc = ctypes.CDLL(None, use_errno=True)

    def before_exec() -> None:
        os.setpgrp()  # a Ctrl-C in the terminal is for pytest, which stops its servers itself
        libc.prctl(_PR_SET_PDEATHSIG, sign)

    return before_exec


def _unprivileged() -> pwd.struct_passwd | None:
    """Whom PostgreSQL runs as if we are root, whom it refuses; None if we are somebody else already."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ServerMissing("neither a user postgres nor nobody exists, and PostgreSQL does not run as root")


class _Server(ABC):
    """A child process that serves a port; can be stopped and started again on the same port and data."""

    folder: Path
    port: int
    url: str
    _process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _command(self) -> list[str]:
        """What to run."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it serves requests by now."""

    def _user(self) -> pwd.struct_passwd | None:
        return None

    def start(self) -> None:
        """Start it and wait until it answers."""
        user = self._user()
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                user=user.pw_uid if user else None,
                group=user.pw_gid if user else None,
                extra_groups=[] if user else None,
                preexec_fn=_die_with_parent(signal.SIGQUIT),  # noqa: PLW1509
            )
        deadline = time.monotonic() + _START_TIMEOUT
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"the server did not start:\n{(self.folder / 'server.log').read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT for an orderly fast stop, SIGQUIT or SIGKILL for a crash. Its data stays."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(how)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    def close(self) -> None:
        """Stop it and delete its data."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> _Server:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class PostgresServer(_Server):
    """PostgreSQL with fsync on, empty but for the database `postgres`. `database_url(name)` addresses others.

    A `folder` is kept afterwards, with what is in it; without one it is temporary. `settings` are the server's.
    """

    has_database = False
    """Whether conftest.py has made its migrated database here."""

    def __init__(self, folder: Path | None = None, **settings: str) -> None:
        programs = _find_postgresql()
        if programs is None:
            raise ServerMissing("PostgreSQL is not installed: apt-get install postgresql")
        self._programs = programs
        self._settings = settings
        self._kept = folder is not None
        self.folder = folder.absolute() if folder else Path(tempfile.mkdtemp(prefix="turnpike-postgresql-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "data").exists():
            self._make(programs)
        self.port = free_port()
        self.url = self.database_url("postgres")

    def _make(self, programs: Path) -> None:
        user = self._user()
        if user:
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        subprocess.run(
            [str(programs / "initdb"), "-D", str(self.folder / "data"), "-U", "turnpike", "-A", "trust", "-E", "UTF8",
             "--locale=C", "--no-sync"],
            check=True, capture_output=True, cwd=self.folder,
            user=user.pw_uid if user else None, group=user.pw_gid if user else None, extra_groups=[] if user else None,
        )  # fmt: skip

    def close(self) -> None:
        """Stop it, and delete its data unless the folder was given."""
        if self._kept:
            self.stop()
        else:
            super().close()

    @property
    def process_id(self) -> int:
        """The server's process, while it runs; its backends are children of it."""
        return self._process.pid if self._process else 0

    def database_url(self, name: str) -> str:
        return f"postgresql://turnpike@127.0.0.1:{self.port}/{name}"

    def _user(self) -> pwd.struct_passwd | None:
        return _unprivileged()

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "shared_buffers": "64MB",
            "max_connections": "200",
            "fsync": "on",
            "log_min_messages": "fatal",
            **self._settings,
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(self._programs / "postgres"), "-D", str(self.folder / "data"), *options]

    def _answers(self) -> bool:
        """The start-up packet's answer tells a server that is ready from one that is still starting."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                body = b"\0\3\0\0user\0turnpike\0database\0postgres\0\0"
                connection.sendall((len(body) + 4).to_bytes(4, "big") + body)
                return connection.recv(1) == b"R"
        except OSError:
            return False


class RedisServer(_Server):
    """Redis without persistence, as we use it."""

    def __init__(self) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise ServerMissing("Redis is not installed: apt-get install redis-server")
        self._program = program
        self.folder = Path(tempfile.mkdtemp(prefix="turnpike-redis-"))
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def _command(self) -> list[str]:
        return [self._program, "--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no"]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(5) == b"+PONG"
        except OSError:
            return False

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        super().stop(signal.SIGKILL if how == signal.SIGQUIT else how)


@contextmanager
def postgres_server(folder: Path | None = None, **settings: str) -> Iterator[PostgresServer]:
    """A PostgreSQL of its own, for tests that stop and start it: `.url`, `.stop()`, `.start()`."""
    with PostgresServer(folder, **settings) as server:
        assert isinstance(server, PostgresServer)
        yield server


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    """A Redis of its own, for tests that stop and start it: `.url`, `.stop()`, `.start()`."""
    with RedisServer() as server:
        assert isinstance(server, RedisServer)
        yield server


def missing_packages() -> list[str]:
    """Debian's names of the servers that are not on this machine."""
    wanted = {"postgresql": _find_postgresql(), "redis-server": shutil.which("redis-server")}
    wanted |= {"prometheus": shutil.which("promtool") and shutil.which("prometheus")}
    return [name for name, found in wanted.items() if found is None]


def install() -> int:
    """Install what is missing, without starting any service. Returns the exit status."""
    missing = missing_packages()
    if not missing:
        return 0
    advice = f"the tests need {' and '.join(missing)}: run `apt-get install {' '.join(missing)}` as root"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(advice, file=sys.stderr)  # noqa: T201
        return 1
    policy = Path("/usr/sbin/policy-rc.d")  # while it answers 101, Debian starts no service that it installs
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", *missing]):
            subprocess.run(["apt-get", *words], env=environment, stdout=subprocess.DEVNULL, check=False)
    finally:
        if ours:
            policy.unlink()
    if missing_packages():
        print(advice, file=sys.stderr)  # noqa: T201
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.servers", description=__doc__)
    parser.add_argument("--install", action="store_true", required=True, help="install the servers that are missing")
    parser.parse_args()
    return install()


if __name__ == "__main__":
    sys.exit(main())
