"""What adapters cost on a GPU: `python -m benchmarks.gpu.adapters --precision bf16|fp8|int4 --json OUT`.

ms of a decode step without adapters and with them, the rows of which read the same 1,152 tokens: one row with one
adapter, 32 rows with as many, with one for all, and with one beside 31 rows of the base model. ms of a pass over 2,048
prompt tokens; and what it takes to fill a slot from host memory.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.engine_gpu import PRECISIONS
from benchmarks.gpu.random_weights import load_random
from benchmarks.gpu.shapes import SHAPES, write_shape
from engine.execution.cuda.adapters import NO_SLOT, AdapterMemory
from engine.execution.cuda.probe import Probe
from engine.execution.cuda.runner import CudaRunner
from engine.kernels.uploads import Ints
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from model_files.adapter_config import AdapterConfig
from model_files.adapter_file import AdaptedModule, AdapterFile, AdapterTensor

ROWS = 32
_STEPS, _ROUNDS, _PROMPT = 20, 4, 2_048


def least_ms(call: Callable[[], object], times: int) -> float:
    """ms of a call, the least of some rounds of `times` calls that are queued one behind the other."""
    call()
    took = []
    for _ in range(_ROUNDS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(times):
            call()
        end.record()
        end.synchronize()
        took.append(start.elapsed_time(end) / times)
    return round(min(took), 3)


def step_ms(runner: CudaRunner, probe: Probe, adapted: Ints | None, rows: int) -> float:
    """A decode step of so many rows, whose adapters are in these slots."""
    positions, slots = probe.apart(rows), np.arange(rows, dtype=np.int32)
    probe.decode(positions)
    return least_ms(lambda: runner.steps.run(slots, positions, slots, adapted=adapted), _STEPS)


def prompt_ms(probe: Probe, slot: int | None) -> float:
    """A pass over a prompt."""
    probe.adapted = None if slot is None else np.full(probe.length, slot, np.int32)
    return least_ms(lambda: probe.prefill([0]), 2)


def random_file(memory: AdapterMemory, rank: int) -> AdapterFile:
    """An adapter of all layers, in bf16."""
    torch.manual_seed(1)
    modules: dict[str, AdaptedModule] = {}

    def tensor(*shape: int) -> AdapterTensor:
        values = (torch.randn(*shape) * 0.02).bfloat16().view(torch.int16).numpy()
        return AdapterTensor("BF16", (shape[0], shape[1]), memoryview(values).cast("B"))

    for target in memory.targets.values():
        for name, (start, stop) in target.parts.items():
            if not name.endswith(("qkv_proj", "gate_up_proj")):
                modules[name] = AdaptedModule(tensor(rank, target.inputs), tensor(stop - start, rank), 1.0)
    size = sum(len(matrix.data) for module in modules.values() for matrix in (module.a, module.b))
    return AdapterFile(AdapterConfig(rank, rank, False, (), (), ()), modules, "random", size)


def measure(runner: CudaRunner, rank: int) -> dict[str, Any]:
    """All that is measured, in ms."""
    memory = runner.adapter_memory
    assert memory is not None
    memory.slots.planes.normal_(0.0, 0.02)
    memory.slots.scales[:] = 1.0
    memory.slots.counts[:] = -(-rank // 16)
    probe, each = Probe(runner, _PROMPT), np.arange(ROWS, dtype=np.int32)
    probe.prefill([0])
    asked: dict[str, tuple[int, Ints | None]] = {
        "1 row, base": (1, None),
        "1 row, 1 adapter": (1, each[:1]),
        "32 rows, base": (ROWS, None),
        "32 rows, 32 adapters": (ROWS, each),
        "32 rows, 1 adapter": (ROWS, np.zeros(ROWS, np.int32)),
        "32 rows, 1 of them adapted": (ROWS, np.where(each == 0, 0, NO_SLOT).astype(np.int32)),
    }
    found: dict[str, Any] = {name: step_ms(runner, probe, of, rows) for name, (rows, of) in asked.items()}
    found |= {"2,048 prompt tokens, base": prompt_ms(probe, None), "2,048 prompt tokens, adapted": prompt_ms(probe, 0)}
    for name, base in (("1 row, 1 adapter", "1 row, base"), ("32 rows, 32 adapters", "32 rows, base")):
        found[f"{name}, %"] = round(100 * (found[name] / found[base] - 1), 1)
    began = time.perf_counter()
    load = memory.prepare(random_file(memory, rank))
    found["packing"] = round(1e3 * (time.perf_counter() - began), 1)
    loads = []
    for _ in range(5):
        began = time.perf_counter()
        load()
        loads.append(1e3 * (time.perf_counter() - began))
    found["filling a slot"] = [round(took, 2) for took in loads]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-3.1-8b")
    parser.add_argument("--precision", choices=sorted(PRECISIONS), default="bf16")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    quantize, kv_dtype = PRECISIONS[args.precision]
    with tempfile.TemporaryDirectory() as folder:
        options = ReplicaOptions(
            write_shape(Path(folder) / "model", args.shape), "unix:unused", Path(folder), "gpu", b"", device="cuda",
            dtype="bfloat16", quantize=quantize, kv_dtype=kv_dtype, swap_share=0.0, context=8_192, max_running=ROWS,
            token_budget=_PROMPT + ROWS, kv_memory=20 << 30, served=args.shape, max_loras=ROWS,
            max_lora_rank=max(16, args.rank),
        )  # fmt: skip
        runner = assemble(options, load_random).engine.executor.runner
        assert isinstance(runner, CudaRunner)
        with torch.inference_mode():
            report = {"machine": torch.cuda.get_device_name(), "rank": args.rank, "ms": measure(runner, args.rank)}
    print(args.precision, json.dumps(report, indent=1), flush=True)
    args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
