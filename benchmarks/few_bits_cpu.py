"""Weights that the CPU keeps in few bits, beside fp32: `python -m benchmarks.few_bits_cpu --json OUT`.

A random Qwen2 of the shape of Qwen2-0.5B (494 million parameters, the head tied to the embedding, both in fp32) is
served by a process of its own in each format, by one thread. `ms`: CPU time of a decode step; `resident_mib`: what the
process takes then, its imports and 32 blocks of KV included. `speed` (by the least of the times) and `resident` are
relative to fp32.

`gguf-q4_k` and `gguf-q8_0` are files of these types, with random blocks. Rows of 896 elements are no whole blocks of
Q4_K: they are in Q5_0, as llama.cpp writes them. With `--hidden 1024` Q4_K is used throughout.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.loading_memory import BLOCKS, CONTEXT, HIDDEN, LAYERS, VOCABULARY, status, write
from engine.device import return_freed_memory
from engine.options import Quantize
from tests.engine.conftest import generate, make_bench
from tests.engine.gguf_files import fits, write_gguf

FORMATS = ("none", "int4", "int4-g32", "mxfp4", "nvfp4", "gguf-q4_k", "gguf-q8_0")
_GGUF = {"gguf-q4_k": "Q4_K", "gguf-q8_0": "Q8_0"}
BATCHES = (1, 8)
_STEPS = 24


def write_file(folder: Path, fmt: str) -> None:
    """The folder's model as a GGUF file of this format beside it, the embedding in bf16."""

    def kind(name: str, weight: Any) -> str:
        wanted = _GGUF[fmt]
        if name == "token_embd.weight":
            return "BF16"
        return wanted if fits(weight, wanted) else "Q5_0"

    write_gguf(folder, folder / f"{fmt}.gguf", kind, made_up=True)


def measure(folder: Path, fmt: str) -> dict[str, Any]:
    """In this process: load, answer, and say how long steps took."""
    torch.set_num_threads(1)
    weights = "decoded" if fmt == "none" else "packed"
    quantize: Quantize = "none" if fmt in _GGUF else cast(Quantize, fmt)
    folder = folder / f"{fmt}.gguf" if fmt in _GGUF else folder
    bench = make_bench(
        folder, blocks=BLOCKS, context=CONTEXT, budget=256, running=8, quantize=quantize, weights=weights
    )  # fmt: skip
    bench.one(generate("first", [(7 * i) % VOCABULARY for i in range(64)], 2))
    return_freed_memory()
    figures: dict[str, Any] = {"resident_mib": round(status()["VmRSS"])}
    for batch in BATCHES:
        for number in range(batch):
            bench.add(generate(f"{batch}-{number}", [number + 1, 5], _STEPS))
        bench.step()
        took = []
        for _ in range(_STEPS - 2):
            began = time.process_time()
            bench.step()
            took.append(time.process_time() - began)
        bench.finish()
        # The least is what the machine does when nothing else runs on it.
        figures[f"ms batch {batch}"] = {
            "least": round(1000 * min(took), 1),
            "median": round(1000 * statistics.median(took), 1),
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--hidden", type=int, default=HIDDEN, help="another size of hidden states than Qwen2-0.5B's")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        folder, quantize = given.one
        print(json.dumps(measure(Path(folder), quantize)))
        return
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="turnpike-few-bits-") as name:
        write(Path(name), given.layers, given.hidden)
        for quantize in given.formats.split(","):
            if quantize in _GGUF:
                write_file(Path(name), quantize)
            command = [sys.executable, "-m", "benchmarks.few_bits_cpu", "--one", name, quantize]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
            figures[quantize] = json.loads(done.stdout.splitlines()[-1])
            first = figures["none"]
            figures[quantize]["resident"] = round(figures[quantize]["resident_mib"] / first["resident_mib"], 3)
            for batch in BATCHES:
                of = f"ms batch {batch}"
                figures[quantize][f"speed batch {batch}"] = round(
                    first[of]["least"] / figures[quantize][of]["least"], 2
                )
            print(quantize, figures[quantize], flush=True)
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
