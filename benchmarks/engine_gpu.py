"""How fast is the engine on a GPU? `python -m benchmarks.engine_gpu --shape llama-3.1-8b --workloads all --json OUT`

Random weights of a published shape, the workloads and fields that vLLM is timed with, all in this process: the engine
in its own thread, its journal on disk, as in a replica. `start` is the time from the start of this process to the first
token. Each workload is run with `--repeats` seeds and stopped after `--limit` seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from benchmarks.gpu.random_weights import SHAPES, load_random, write_shape
from benchmarks.gpu.workloads import workloads
from engine.core.output_processor import Event
from engine.options import KvDtype, Quantize
from engine.server.engine_loop import EngineLoop
from engine.server.journal import Journal
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from protocol.replicas import Scope
from protocol.requests import Done, Generate, Sampling, Segment, Tokens

SCOPES = {"project": Scope("project", b"root" * 8, b"key")}
CONTEXT = 40_960
PRECISIONS: dict[str, tuple[Quantize, KvDtype]] = {
    "bf16": ("none", "auto"),
    "fp8": ("fp8", "fp8"),
    "fp8-weights": ("fp8", "auto"),
}
"""What weights are rounded to, and what KV is kept as."""


def process_started() -> float:
    """When this process began, in seconds since the Unix epoch."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    up = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - up + ticks / os.sysconf("SC_CLK_TCK")


class Driver:
    """Sends requests to an engine in its thread, and waits for their ends."""

    def __init__(self, options: ReplicaOptions) -> None:
        assembled = assemble(options, load_random)
        self.engine = assembled.engine
        self._events = threading.Condition()
        self._open: set[str] = set()
        self.outputs: dict[str, list[int]] = {}
        self._first: dict[str, float] = {}
        self._failure: BaseException | None = None
        self._sent = 0
        journal = Journal(options.data)
        self.loop = EngineLoop(self.engine, journal, self._deliver, self._failed)
        self.loop.start()

    def run(self, prompts: Sequence[list[int]], tokens: int, limit: float) -> dict[str, Any]:
        """All prompts at once, `tokens` of output each; what it took, and how soon the first token came."""
        names = [f"r{self._sent + index}" for index in range(len(prompts))]
        self._sent += len(prompts)
        requests = [
            Generate(
                name, 1, (Segment(len(prompt), "project"),), prompt, Sampling(tokens, temperature=0.0),
                credit=1 << 20, flow="flow",
            )
            for name, prompt in zip(names, prompts, strict=True)
        ]  # fmt: skip
        self.outputs = {name: [] for name in names}
        self._open, self._first = set(names), {}
        steps = self.engine.steps
        began = time.perf_counter()
        for request in requests:
            self.loop.do(lambda request=request: self.engine.add(request, SCOPES))  # type: ignore[misc]
        with self._events:
            done = self._events.wait_for(lambda: not self._open or self._failure is not None, limit)
        took = time.perf_counter() - began
        if self._failure is not None:
            raise self._failure
        if not done:
            for name in list(self._open):
                self.loop.do(lambda name=name: self.engine.abort(name) and None)  # type: ignore[misc]
            with self._events:
                self._events.wait_for(lambda: not self._open, 30)
        drawn = sum(map(len, self.outputs.values()))
        found: dict[str, Any] = {
            "s": took, "out_tok_s": drawn / took,
            "total_tok_s": (drawn + sum(map(len, prompts))) / took,
            "first_token_s": min(self._first.values(), default=float("nan")) - began,
            "steps": self.engine.steps - steps,
        }  # fmt: skip
        if not done:
            found["stopped"] = True
        elif drawn != len(prompts) * tokens:
            found["wrong"] = f"{drawn} tokens instead of {len(prompts) * tokens}"
        return found

    def _deliver(self, events: Sequence[Event]) -> None:
        now = time.perf_counter()
        ended = False
        for event in events:
            if isinstance(event, Tokens):
                self.outputs[event.id] += event.tokens
                self._first.setdefault(event.id, now)
            elif isinstance(event, Done):
                with self._events:
                    self._open.discard(event.id)
                ended = True
                if event.reason not in ("length", "abort"):
                    print("ended", event.id, event.reason, event.error, flush=True)
        if ended:
            with self._events:
                self._events.notify_all()

    def _failed(self, error: BaseException) -> None:
        with self._events:
            self._failure = error
            self._events.notify_all()


def measure(driver: Driver, wanted: Sequence[str], args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Every wanted workload with each seed; the report is written after each."""
    for seed in range(args.repeats):
        for name, (prompts, tokens) in workloads(seed).items():
            if name not in wanted:
                continue
            if name == "single_decode":
                first = driver.run(prompts, 1, args.limit)
                whole = driver.run(prompts, tokens, args.limit)
                found = {"itl_ms": 1e3 * whole["s"] / tokens, "ttft_ms": 1e3 * first["s"], **whole}
                outputs = driver.outputs
            else:
                found = driver.run(prompts, tokens, args.limit)
                outputs = driver.outputs
            report.setdefault(name, []).append(found)
            print(args.precision, seed, name, json.dumps(found), flush=True)
            if name == "shared_prefix" and not found.get("stopped"):
                cold = list(outputs.values())
                warm = driver.run(prompts, tokens, args.limit)
                same = sum(a == b for a, b in zip(cold, driver.outputs.values(), strict=True))
                warm["same_as_cold"] = f"{same} of {len(prompts)}"
                report.setdefault("shared_prefix_warm", []).append(warm)
                print(args.precision, seed, "shared_prefix_warm", json.dumps(warm), flush=True)
            args.json.write_text(json.dumps(report, indent=1))


def profile(driver: Driver, name: str, tokens: int, limit: float) -> None:
    """Print where the GPU's time goes in a run, by kernel, and how much of the run it was busy."""
    prompts, _ = workloads(7)[name]
    # Others, so that nothing of what is measured is cached.
    driver.run(workloads(8)[name][0][:8], 4, limit)
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as trace:
        took = driver.run(prompts, tokens, limit)["s"]
    rows = [(event.key, event.self_device_time_total / 1e3, event.count) for event in trace.key_averages()]
    busy = sum(ms for _, ms, _ in rows)
    print(f"profile of {name}: {took * 1e3:.0f} ms, GPU busy {busy:.0f} ms")
    for key, ms, count in sorted(rows, key=lambda row: -row[1])[:14]:
        print(f"  {ms:9.1f} ms {count:7d} x {ms / max(count, 1) * 1e3:8.1f} us  {key[:70]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-3.1-8b")
    parser.add_argument("--precision", choices=sorted(PRECISIONS), default="bf16")
    parser.add_argument("--workloads", default="all")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--profile", default="", help="workloads to look into first")
    args = parser.parse_args()
    names = [*workloads_names()] if args.workloads == "all" else [name for name in args.workloads.split(",") if name]
    started = process_started()
    with tempfile.TemporaryDirectory() as folder:
        quantize, kv_dtype = PRECISIONS[args.precision]
        model = write_shape(Path(folder) / "model", args.shape)
        data = Path(folder) / "data"
        data.mkdir()
        options = ReplicaOptions(
            model, "unix:unused", data, "gpu", b"", device="cuda", dtype="bfloat16", quantize=quantize,
            kv_dtype=kv_dtype, swap_share=0.0, context=CONTEXT,
            served=args.shape,
        )  # fmt: skip
        driver = Driver(options)
        ready = time.time() - started
        driver.run([[5] * 64], 1, 60)
        report: dict[str, Any] = {
            "shape": args.shape, "precision": args.precision, "kv": kv_dtype, "machine": torch.cuda.get_device_name(),
            "torch": torch.__version__, "host": platform.processor(), "ready_s": ready,
            "start_s": time.time() - started,
        }  # fmt: skip
        print(json.dumps(report), flush=True)
        driver.run([[5] * 64] * 8, 16, 60)
        for name in args.profile.split(",") if args.profile else ():
            profile(driver, name, 24 if name in ("single_decode", "batch32") else workloads(7)[name][1], args.limit)
        measure(driver, names, args, report)
        driver.loop.stop()


def workloads_names() -> list[str]:
    """The names of all workloads."""
    return ["single_decode", "batch32", "saturated", "shared_prefix", "long_prefill"]


if __name__ == "__main__":
    main()
