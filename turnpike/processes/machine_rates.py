"""Measures what fetching and computing KV cost on this machine: memory, the data folder's disk, sealing, a model."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_cache.placement.fetch_or_recompute import ComputeRate, TierRate

if TYPE_CHECKING:
    from engine.core.engine import Engine
    from engine.options import Attention, Device
    from engine.speculation.verify_costs import VerifyCosts

PIECE_BYTES = 1 << 20
DEPTHS = (1, 8, 32)
"""How many reads of the disk are under way at once."""
_MEMORY_BYTES = 64 << 20
_FILE_BYTES = 256 << 20
_FREE_PARTS = 20
"""At most this part of the free disk is used."""
_READ_S = 1.0
_ROUNDS = 5
_ALIGNMENT = 4096
_SPREAD = 7919
"""A prime: steps of it go all over a file or a vocabulary."""
_PROMPTS = (256, 2048)
"""Lengths of the prompts by which a model is measured, where its context has room for them."""


@dataclass(frozen=True)
class DiskRates:
    """Bytes/s by number of reads at once; `direct`: whether past the page cache."""

    by_depth: dict[int, float]
    direct: bool

    @property
    def tier(self) -> TierRate:
        """As a tier: what one read alone takes longer than its part of many is its fixed time."""
        rate = max(self.by_depth.values())
        alone = self.by_depth[min(self.by_depth)]
        return TierRate(max(0.0, PIECE_BYTES / alone - PIECE_BYTES / rate), rate)


@dataclass(frozen=True)
class ModelRates:
    """A model's prefill, the bytes of its KV for a block of tokens, and its context."""

    name: str
    compute: ComputeRate
    block_tokens: int
    block_bytes: int
    context_tokens: int
    verification: VerifyCosts | None = None
    """What steps with drafts take; None where there are none."""
    no_drafts: str = ""
    """Why there are none."""
    attention: tuple[str, ...] = ()
    """The libraries that compute it; none where it is exact."""


def copy_memory() -> TierRate:
    """A copy between two places in memory, by one thread."""
    source, target = mmap(-1, _MEMORY_BYTES), mmap(-1, _MEMORY_BYTES)
    from_view, to_view = memoryview(source), memoryview(target)

    def copy() -> None:
        to_view[:] = from_view

    copy()  # the pages exist from now on
    seconds = _fastest(copy)
    piece = _fastest(lambda: to_view.__setitem__(slice(0, _ALIGNMENT), from_view[:_ALIGNMENT]))
    return TierRate(piece, _MEMORY_BYTES / seconds)


def seal() -> float:
    """Bytes/s of sealing on one core: AES-256-GCM, a piece at a time."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    cipher, piece = AESGCM(os.urandom(32)), os.urandom(PIECE_BYTES)
    return PIECE_BYTES / _fastest(lambda: cipher.encrypt(bytes(12), piece, b"header"))


def read_disk(folder: Path) -> DiskRates:
    """Random reads of a file made for it in this folder, at each depth. Raises OSError.

    The file is at most a small part of what is free, and has no name once it is made.
    """
    size = min(_FILE_BYTES, shutil.disk_usage(folder).free // _FREE_PARTS) // PIECE_BYTES * PIECE_BYTES
    if size < 8 * PIECE_BYTES:
        raise OSError(f"{folder} has too little room to measure its disk")
    with _filled_file(folder, size) as (descriptor, direct):
        return DiskRates({depth: _read_at_depth(descriptor, size, depth) for depth in DEPTHS}, direct)


def compute(model: Path, device: Device, attention: Attention = "exact") -> ModelRates:
    """Prefill of two lengths, which tell what a token costs and what the tokens before it add."""
    from engine.speculation.speculator import OFF
    from engine.startup.assembly import assemble
    from engine.startup.options import ReplicaOptions

    with tempfile.TemporaryDirectory() as data:
        options = ReplicaOptions(model, "unix:unused", Path(data), "calibrate", b"", device=device, attention=attention)
        assembled = assemble(options)
    lengths = [length for length in _PROMPTS if length < assembled.capacity.context_tokens]
    if not lengths:
        lengths = [assembled.capacity.context_tokens // 2]
    took = {length: min(_prefill(assembled.engine, length, number) for number in range(3)) for length in lengths}
    group_bytes = sum(group.block_bytes for group in assembled.layout.groups)
    context, block_tokens = assembled.capacity.context_tokens, assembled.layout.block_tokens
    speculator = assembled.engine.speculator
    return ModelRates(
        assembled.model.name,
        _compute_rate(took),
        block_tokens,
        group_bytes,
        context,
        speculator.planner.costs,
        OFF[speculator.off] if speculator.off else "",
        assembled.engine.executor.attention,
    )


def _compute_rate(took: dict[int, float]) -> ComputeRate:
    """Of seconds by length: each is `length * (token_s + context_s * length / 2)`."""
    short, long = min(took), max(took)
    if short == long:
        return ComputeRate(took[short] / short)
    context_s = max(0.0, 2 * (took[long] / long - took[short] / short) / (long - short))
    return ComputeRate(max(1e-9, took[long] / long - context_s * long / 2), context_s)


def _prefill(engine: Engine, length: int, number: int) -> float:
    from protocol.replicas import Scope
    from protocol.requests import Done, Generate, Sampling, Segment

    vocabulary = engine.executor.vocabulary
    tokens = [(number + index * _SPREAD) % vocabulary for index in range(length)]
    request = Generate(
        f"{length}/{number}", 1, (Segment(length, "calibrate"),), tokens, Sampling(1), 1, read=False, store="none"
    )
    began = time.perf_counter()
    engine.add(request, {"calibrate": Scope("calibrate", bytes(32), b"")})
    while not any(isinstance(event, Done) for event in engine.step().events):
        pass
    return time.perf_counter() - began


def _fastest(work: Callable[[], object]) -> float:
    took = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return max(1e-9, min(took))


@contextmanager
def _filled_file(folder: Path, size: int) -> Iterator[tuple[int, bool]]:
    """A descriptor of an unnamed file of random bytes, and whether it is read past the page cache."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix="calibrate-") as file:
        piece = os.urandom(PIECE_BYTES)
        for _ in range(size // PIECE_BYTES):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            descriptor, direct = os.open(file.name, os.O_RDONLY | os.O_DIRECT), True
        except OSError:  # a file system without it, as tmpfs was
            descriptor, direct = os.open(file.name, os.O_RDONLY), False
    try:
        yield descriptor, direct
    finally:
        os.close(descriptor)


def _read_at_depth(descriptor: int, size: int, depth: int) -> float:
    """Bytes/s of `depth` threads that read random pieces for a while."""
    until = time.perf_counter() + _READ_S

    def read(number: int) -> int:
        buffer, place, count = mmap(-1, PIECE_BYTES), number, 0  # memory maps are aligned
        while time.perf_counter() < until:
            place = (place + _SPREAD) % (size // PIECE_BYTES)
            count += os.preadv(descriptor, [buffer], place * PIECE_BYTES)
        return count

    began = time.perf_counter()
    with ThreadPoolExecutor(depth) as threads:
        read_bytes = sum(threads.map(read, range(depth)))
    return max(1.0, read_bytes / (time.perf_counter() - began))
