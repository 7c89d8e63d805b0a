"""Does the engine on a GPU give the same tokens alone, in company, cold, warm, and after preemption?

`python -m benchmarks.gpu.exactness --json OUT`: random prompts of a model with random weights. Each is answered alone,
then all together in random order, then again while their prefixes are cached; logits are compared bit by bit.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch

from benchmarks.gpu.random_weights import load_random
from benchmarks.gpu.shapes import SHAPES, write_shape
from engine.core.engine import Engine
from engine.models.decoder import Decoder
from engine.options import KvDtype, Quantize
from engine.scheduling.step_work import Work
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from protocol.replicas import Scope
from protocol.requests import Done, Generate, Sampling, Segment

SCOPES = {"project": Scope("project", b"root" * 8, b"key")}


Answered = tuple[list[int], int]
NO_ADAPTERS: Mapping[str, str] = {}
Logits = dict[str, list[int]]
"""By request, a sum over all bits of each of its logits."""


class Recorder:
    """An engine whose logits of each request are kept, as hashes of their bits."""

    def __init__(self, options: ReplicaOptions, load: Callable[..., Decoder] = load_random) -> None:
        self.engine: Engine = assemble(options, load).engine
        self.engine.executor.runner.on_logits = self._see
        self.seen: Logits = {}

    def _see(self, works: Sequence[Work], logits: torch.Tensor) -> None:
        # A sum over all bits of a row, each weighed by its place.
        weights = torch.arange(1, logits.shape[1] + 1, device=logits.device, dtype=torch.int64)
        sums = (logits.contiguous().view(torch.int32).long() * weights).sum(-1).tolist()
        for work, value in zip(works, sums, strict=True):
            self.seen.setdefault(work.request.id, []).append(value)

    def run(
        self, requests: dict[str, Answered], together: int, read: bool = True, adapters: Mapping[str, str] = NO_ADAPTERS
    ) -> Logits:
        """The logits of these requests, of which so many run at once. `adapters`: digests by request."""
        self.seen, waiting = {}, list(requests.items())
        running: set[str] = set()
        while waiting or running:
            while waiting and len(running) < together:
                name, (prompt, tokens) = waiting.pop()
                self.engine.add(
                    Generate(
                        name, 1, (Segment(len(prompt), "project"),), prompt, Sampling(tokens, temperature=0.0),
                        credit=1 << 20, read=read, adapter=adapters.get(name, ""),
                    ),
                    SCOPES,
                )  # fmt: skip
                running.add(name)
            for event in self.engine.step().events:
                if isinstance(event, Done):
                    assert event.reason == "length", event
                    running.discard(event.id)
        return self.seen


@dataclass
class Report:
    """How many logits were compared with those of requests alone, and which requests differ in which run."""

    compared: int = 0
    preemptions: int = 0
    different: dict[str, list[str]] = field(default_factory=dict)


def random_requests(count: int) -> dict[str, Answered]:
    """Prompts and lengths of output by name; many begin alike."""
    chance = random.Random(1)
    prefixes = [[chance.randrange(100, 100_000) for _ in range(size)] for size in (300, 1_100, 4_096)]
    requests = {}
    for index in range(count):
        prompt = [] if chance.random() < 0.4 else list(chance.choice(prefixes))
        own = chance.choice([1, 63, 64, 65, 200, chance.randrange(1, 2_000)])
        prompt += [chance.randrange(100, 100_000) for _ in range(own)]
        requests[f"r{index}"] = (prompt, chance.choice([1, 2, 30, 70, 140]))
    return requests


def compare_runs(folder: Path, shape: str, quantize: Quantize, requests: int, kv_dtype: KvDtype = "auto") -> Report:
    """Each request alone and computed from its begin; then together, from memory, in small chunks."""
    model = write_shape(folder / "model", shape)
    asked = random_requests(requests)
    report = Report()

    def recorder(name: str, **options: Any) -> Recorder:
        return Recorder(
            ReplicaOptions(
                model, "unix:unused", folder / name, "gpu", b"", device="cuda", dtype="bfloat16", quantize=quantize,
                swap_share=0.0, served=shape, kv_dtype=kv_dtype, **options,
            )
        )  # fmt: skip

    def compare(name: str, found: Logits) -> None:
        report.compared += sum(map(len, found.values()))
        different = [id for id in asked if found[id] != alone[id]]
        if different:
            report.different[name] = different

    wide = recorder("wide", max_running=64, token_budget=2_048, context=16_384, kv_memory=8 << 30)
    shuffled = list(asked.items())
    random.Random(2).shuffle(shuffled)
    alone = wide.run(asked, 1, read=False)
    compare("together", wide.run(dict(shuffled), 64, read=False))
    compare("alone, from memory", wide.run(asked, 1))
    compare("together, from memory", wide.run(dict(shuffled), 23))
    narrow = recorder("narrow", max_running=40, token_budget=192, context=8_192, kv_memory=1 << 30)
    compare("in small chunks", narrow.run(dict(shuffled), 40))
    report.preemptions = narrow.engine.scheduler.preemptions
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-3.2-1b")
    parser.add_argument("--quantize", choices=get_args(Quantize), default="none")
    parser.add_argument("--kv", choices=("auto", "fp8"), default="auto")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = compare_runs(Path(folder), args.shape, args.quantize, args.requests, args.kv)
    print(json.dumps(asdict(report)))
    args.json.write_text(json.dumps(asdict(report), indent=1))


if __name__ == "__main__":
    main()
