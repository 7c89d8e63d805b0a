"""Many adapters over few slots: `python -m benchmarks.adapter_fleet --model DIR --json OUT`.

Two replicas' engines, a process each, serve requests of adapters whose popularity is Zipf's. All adapters are in host
memory; each replica has slots for a few. A number of clients each send their next request when the last has ended, to
one of the replicas at random.

- `lost`: requests that did not end as they were asked to.
- `load_ms`: from when a slot is given to an adapter until it is ready, from host memory.
- `wait_ms`: from when a request comes until it has its adapter, other adapters' requests before it included.
- `seldom_ms`: the same, of the requests for the less popular half of the adapters: nobody starves.

Bars: nothing is lost, the 99th percentile of `load_ms` is at most LOAD_MS, and no request waits longer than LONGEST
times the mean time of a request.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from engine.adapters.adapter_store import in_a_thread
from engine.scheduling.adapter_slots import AdapterSlots
from engine.scheduling.request import Request
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from model_files.adapter_file import pack, read_packed
from model_files.adapter_trial import configuration
from prompt_cache.model_digest import text_digest
from protocol.adapters import adapter_name
from protocol.replicas import Scope
from protocol.requests import Done, Generate, Sampling, Segment

REPLICAS = 2
LOAD_MS = 50.0
LONGEST = 30.0
_PROMPT, _OUTPUT, _RANK, _SEED = 48, 8, 16, 7


class MeasuredSlots(AdapterSlots):
    """Slots that note how long loads and waits take, in seconds."""

    def __init__(self, most: int) -> None:
        super().__init__(most, lambda load: in_a_thread(self._timed(load)))
        self.load_times: list[float] = []
        self.waits: dict[str, float] = {}
        self._since: dict[str, float] = {}

    def delay(self, request: Request) -> bool:
        """As it is, noting when the request came."""
        if request.weights is not None:  # it has waited, and comes again
            return super().delay(request)
        self._since[request.id] = time.perf_counter()
        waits = super().delay(request)
        if not waits:
            self._has(request)
        return waits

    def take_ready(self) -> list[Request]:
        """As it is, noting for how long each has waited."""
        ready = super().take_ready()
        for request in ready:
            self._has(request)
        return ready

    def _has(self, request: Request) -> None:
        self.waits[request.id] = time.perf_counter() - self._since.pop(request.id)

    def _timed(self, load: Callable[[], None]) -> Callable[[], None]:
        begun = time.perf_counter()

        def run() -> None:
            load()
            self.load_times.append(time.perf_counter() - begun)

        return run


def adapter_of(model: Path, number: int) -> bytes:
    """The content of an adapter of attention's queries and values, made of random numbers."""
    config = configuration(model)
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    dim = config.get("head_dim") or hidden // heads
    outputs = {"q_proj": heads * dim, "v_proj": config.get("num_key_value_heads", heads) * dim}
    chance, tensors = np.random.default_rng(number), {}
    for layer in range(config["num_hidden_layers"]):
        for part, rows in outputs.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}.lora_"
            tensors[f"{name}A.weight"] = chance.normal(0, 0.02, (_RANK, hidden)).astype(np.float32)
            tensors[f"{name}B.weight"] = chance.normal(0, 0.02, (rows, _RANK)).astype(np.float32)
    said = {"peft_type": "LORA", "r": _RANK, "lora_alpha": 2 * _RANK, "target_modules": sorted(outputs)}
    return pack(json.dumps(said).encode(), save(tensors))


def replica(model: Path, adapters: int, slots: int, asked: Sequence[int], clients: int) -> dict[str, Any]:
    """What one replica makes of requests for these adapters, in this order."""
    with tempfile.TemporaryDirectory() as data:
        options = ReplicaOptions(model, "unix:unused", Path(data), "bench", b"", device="cpu", max_loras=slots)
        engine = assemble(options).engine
    assert engine.adapters is not None, "this device computes no adapters"
    measured = engine.scheduler.adapters = MeasuredSlots(slots)
    base, names = text_digest(model), []
    for number in range(adapters):
        content = adapter_of(model, number)
        names.append(adapter_name(read_packed(content, base).digest, "bench"))
        engine.adapters.take(names[-1], content)
    scopes, chance = {"bench": Scope("bench", b"root" * 8, b"key")}, random.Random(_SEED)
    vocabulary = engine.executor.runner.model.config.vocabulary
    lost, ended, began, took = 0, 0, time.perf_counter(), dict[str, float]()
    waiting = iter(enumerate(asked))

    def send() -> None:
        for at, adapter in waiting:
            prompt = [chance.randrange(vocabulary) for _ in range(_PROMPT)]
            took[str(at)] = -time.perf_counter()
            sampling = Sampling(_OUTPUT, temperature=0.0)
            request = Generate(str(at), 1, (Segment(_PROMPT, "bench"),), prompt, sampling, credit=_OUTPUT,
                               adapter=names[adapter], flow=f"tenant {adapter % 50}")  # fmt: skip
            engine.add(request, scopes)
            return

    for _ in range(clients):
        send()
    while ended < len(asked):
        for event in engine.step().events:
            if isinstance(event, Done):
                ended, lost = ended + 1, lost + (event.reason not in {"length", "stop"})
                took[event.id] += time.perf_counter()
                send()
    seldom = [measured.waits[str(at)] for at, adapter in enumerate(asked) if adapter >= adapters // 2]
    return {
        "requests": len(asked), "lost": lost, "seconds": time.perf_counter() - began, "loads": measured.load_times,
        "waits": list(measured.waits.values()), "seldom": seldom, "took": list(took.values()),
    }  # fmt: skip


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds."""
    values = np.array(seconds or [0.0]) * 1000
    return {f"p{share}": round(float(np.percentile(values, share)), 2) for share in (50, 99)} | {
        "most": round(float(values.max()), 2)
    }


def main() -> int:
    """Measure, print, and hold the bars: 1 where one does not hold."""
    parser = argparse.ArgumentParser(description="Many adapters over few slots, on two replicas.")
    parser.add_argument("--model", type=Path, default=Path("models/stdlib-qa"))
    parser.add_argument("--adapters", type=int, default=500)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=24, help="of each replica")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    chance = random.Random(_SEED)
    weights = [1 / (rank + 1) for rank in range(arguments.adapters)]
    drawn = chance.choices(range(arguments.adapters), weights, k=arguments.requests)
    parts: list[list[int]] = [[] for _ in range(REPLICAS)]
    for adapter in drawn:
        chance.choice(parts).append(adapter)
    with ProcessPoolExecutor(REPLICAS) as pool:
        runs = [
            pool.submit(replica, arguments.model, arguments.adapters, arguments.slots, part, arguments.clients)
            for part in parts
        ]
        found = [run.result() for run in runs]
    every = {name: [value for one in found for value in one[name]] for name in ("loads", "waits", "seldom", "took")}
    mean_s = float(np.mean(every["took"]))
    figures = {
        "adapters": arguments.adapters,
        "slots": arguments.slots,
        "requests": sum(one["requests"] for one in found),
        "asked_for": len(set(drawn)),
        "lost": sum(one["lost"] for one in found),
        "loads": len(every["loads"]),
        "seconds": round(max(one["seconds"] for one in found), 1),
        "load_ms": percentiles(every["loads"]),
        "wait_ms": percentiles(every["waits"]),
        "seldom_ms": percentiles(every["seldom"]),
        "request_ms": round(mean_s * 1000, 1),
    }
    print(json.dumps(figures, indent=2))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2))
    missed = [
        what
        for what, held in (
            ("requests were lost", figures["lost"] == 0),
            ("loading takes too long", figures["load_ms"]["p99"] <= LOAD_MS),  # type: ignore[index]
            ("a request waited too long", max(every["waits"]) <= LONGEST * mean_s),
        )
        if not held
    ]
    for what in missed:
        print(what, file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
