"""What trials at earlier starts found, so that a replica need not run them again: half of a small model's start.

From how many rows on each kernel keeps a row's bits, and the fallback with which the self-test held, are facts of the
machine, the libraries and this program, and for the self-test of the model and its sizes. All of them are in the key:
what differs in one of them is tried anew. A verdict that nothing holds is not kept.

The file is a help, not an authority: what is damaged or of another machine is left aside.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from pathlib import Path

import msgspec
import structlog
import torch

import engine
from engine.device import all_threads
from engine.layers import matmul_kernels
from prompt_cache.tiers.store_state import write_durably

logger = structlog.get_logger("engine.startup.kept_trials")

_MOST_BYTES = 1 << 20
_MOST_SELF_TESTS = 16
_PROCESSOR = {"vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "cache size", "flags"}
"""Fields of /proc/cpuinfo; of them processors of other makes have some others."""
_VARIABLES = ("ATEN_", "DNNL_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "TORCH_")
"""The beginnings of the names of environment variables that the libraries read."""


class _Kept(msgspec.Struct):
    """The file. `self_tests`: what was tested -> which of the fallbacks held."""

    machine: str
    least_rows: dict[str, int | None] = {}
    self_tests: dict[str, int] = {}


class KeptTrials:
    """The file of a replica. `path` None keeps nothing."""

    def __init__(self, path: Path | None = None) -> None:
        """Reads the file, and has this process know what it says of the kernels."""
        self._path = path
        self._kept = _Kept("") if path is None else _read(path, _machine_id())
        self._written = msgspec.json.encode(self._kept)

    def fallback(self, tested: str) -> int | None:
        """Which fallback held when this was tested; None if it was not."""
        return self._kept.self_tests.get(tested)

    def keep(self, tested: str, fallback: int) -> None:
        """Keep that this fallback held, and what is known of the kernels. Raises nothing."""
        if self._path is None:
            return
        self._kept.self_tests.pop(tested, None)
        self._kept.self_tests[tested] = fallback
        while len(self._kept.self_tests) > _MOST_SELF_TESTS:
            del self._kept.self_tests[next(iter(self._kept.self_tests))]
        self._kept.least_rows = matmul_kernels.known_rows()
        content = msgspec.json.encode(self._kept)
        if content == self._written:
            return
        try:
            write_durably(self._path, content)
            self._written = content
        except OSError as error:
            logger.warning("trials are not kept for the next start", file=str(self._path), cause=str(error))


def _read(path: Path, machine: str) -> _Kept:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError("it is too large")
        kept = msgspec.json.decode(content, type=_Kept)
        if kept.machine == machine:
            matmul_kernels.take_known_rows(kept.least_rows)
            return kept
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        logger.warning("kept trials are not used", file=str(path), cause=str(error))
    return _Kept(machine)


@functools.cache
def _machine_id() -> str:
    """Hex SHA-256 of what decides the trials beside weights and sizes: processor, cores, libraries, this program."""
    digest = hashlib.sha256()
    variables = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(_VARIABLES))
    cores = os.cpu_count(), all_threads()
    libraries = torch.__version__, torch.backends.cpu.get_cpu_capability(), torch.__config__.show()
    for fact in (platform.machine(), *_processor(), *map(str, cores), *libraries, *variables):
        digest.update(fact.encode() + b"\0")
    for source in sorted(Path(engine.__path__[0]).rglob("*.py")):
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()


def _processor() -> list[str]:
    """What the kernel says of the first processor; all that Python knows of it where there is no such file."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        return [platform.processor(), platform.version()]
    lines = [line for line in first.splitlines() if line.partition(":")[0].strip() in _PROCESSOR]
    return lines or first.splitlines()
