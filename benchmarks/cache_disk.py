"""What the cache's folder costs and gives on this disk: MB/s of records, memory of a record, others' fsyncs beside it.

`python -m benchmarks.cache_disk [--folder DIR] [--json OUT]`. The fsyncs are a spool's: 512 bytes appended to one
file and synced, every 5 ms, in rounds with and without two threads that write records without end. Rounds alternate,
so that another program on the machine meets both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

from prompt_cache.tiers.identity import ScopeAccess, StoreIdentity
from prompt_cache.tiers.record_index import RecordIndex
from prompt_cache.tiers.record_store import RecordStore
from protocol.replicas import LayerGroup

ACCESS = ScopeAccess("scope", b"k" * 32, 3600.0)
SIZES = (50_000, 1 << 20, 8 << 20)
"""Bytes of a block: of a small model, of 1B and of 8B parameters."""
_TOTAL = 96 << 20
_APPENDED, _EVERY_S = 512, 0.005


def make_store(folder: Path, size: int, write_share: float) -> RecordStore:
    """An open store with one layer group of blocks of this size."""
    identity = StoreIdentity("benchmark", "none", (LayerGroup("full", (0,), 1, 1, 0, "float32", size),))
    store = RecordStore(folder, identity, limit_bytes=1 << 30, write_share=write_share)
    store.open()
    store.scan()
    return store


def throughput(folder: Path, size: int) -> dict[str, float]:
    """MB/s of writing with fsync, and of reading from the disk and from the page cache."""
    store, payload, count = make_store(folder, size, 1.0), os.urandom(size), max(8, min(200, _TOTAL // size))
    into = {0: memoryview(bytearray(size))}

    def rate(work: Any) -> float:
        began = time.perf_counter()
        for number in range(count):
            assert work(number.to_bytes(32, "big"))
        return round(count * size / (time.perf_counter() - began) / 1e6, 1)

    written = rate(lambda key: store.write(ACCESS, key, {0: payload}, position=0))
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)
    cold = rate(lambda key: store.read(ACCESS, key, (0,), into=into) == into)
    warm = rate(lambda key: store.read(ACCESS, key, (0,), into=into) == into)
    store.close()
    return {"write_mb_s": written, "read_disk_mb_s": cold, "read_page_cache_mb_s": warm}


def record_memory(count: int) -> float:
    """Bytes of memory that a record takes in the index, names and eviction order included, in prompts of 16 blocks."""
    index, parent = RecordIndex(count), b""
    tracemalloc.start()
    for number in range(count):
        place = number % 16
        name = os.urandom(15)
        index.add(name, f"scope {number % 1000}", 8192, expires=2.0, place=place, parent=parent if place else b"")
        parent = name
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return round(taken / count, 1)


def fsyncs(folder: Path, seconds: float) -> list[float]:
    """Seconds that each append and fsync of a spool took."""
    took = []
    file = os.open(folder / "spool", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        os.write(file, bytes(_APPENDED))
        os.fsync(file)
        took.append(time.perf_counter() - began)
        time.sleep(_EVERY_S)
    os.close(file)
    return took


def beside(folder: Path, *, size: int, rounds: int, seconds: float, write_share: float) -> dict[str, Any]:
    """p50 and p99 of a spool's fsyncs in ms, alone and beside a store that writes; and what the store wrote."""
    folder.mkdir()
    store, payload = make_store(folder / "cache", size, write_share), os.urandom(size)
    going, stopped, took = threading.Event(), threading.Event(), {False: [0.0][:0], True: [0.0][:0]}

    def write(first: int) -> None:
        number = first
        while not stopped.is_set():
            if going.wait(0.1):
                store.write(ACCESS, number.to_bytes(32, "big"), {0: payload}, position=0)
                number += 2

    writers = [threading.Thread(target=write, args=(first,)) for first in range(2)]
    for writer in writers:
        writer.start()
    for number in range(2 * rounds):
        writes = bool(number % 2)
        (going.set if writes else going.clear)()
        time.sleep(0.2)
        took[writes] += fsyncs(folder, seconds)
    stopped.set()
    for writer in writers:
        writer.join()
    written = store.counters.get("written_bytes", 0) / (rounds * (seconds + 0.2)) / 1e6
    store.close()
    return {
        "block_bytes": size,
        "written_mb_s": round(written, 1),
        **{
            f"{name}_{share}_ms": round(1000 * _percentile(took[writes], part), 2)
            for name, writes in (("alone", False), ("beside", True))
            for share, part in (("p50", 0.5), ("p99", 0.99))
        },
        "fsyncs": [len(took[False]), len(took[True])],
    }


def _percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def main() -> None:
    """Measure, print, and write the JSON file if one was named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="on the disk to be measured")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--write-share", type=float, default=0.5)
    parser.add_argument("--json", help="where to write the figures")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        told: dict[str, Any] = {"bytes_per_record": record_memory(200_000)}
        told["throughput"] = {str(size): throughput(folder / f"blocks-{size}", size) for size in SIZES}
        how = {"rounds": arguments.rounds, "seconds": arguments.seconds, "write_share": arguments.write_share}
        told["fsync"] = [beside(folder / str(size), size=size, **how) for size in (SIZES[0], SIZES[-1])]
    finally:
        shutil.rmtree(folder)
    print(json.dumps(told, indent=2))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(told))


if __name__ == "__main__":
    main()
