"""Does the engine on a GPU give the same tokens alone, in company, cold, warm, and after preemption?

`python -m benchmarks.gpu.exactness --json OUT`: random prompts of a model with random weights. Each is answered alone,
then all together in random order, then again while their prefixes are cached; logits are compared bit by bit.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.random_weights import SHAPES, load_random, write_shape
from engine.core.engine import Engine
from engine.options import ReplicaOptions
from engine.scheduling.step_work import Work
from engine.startup.assembly import assemble
from protocol.replicas import Scope
from protocol.requests import Done, Generate, Sampling, Segment

SCOPES = {"project": Scope("project", b"root" * 8, b"key")}


class Recorder:
    """An engine whose logits of each request are kept, as hashes of their bits."""

    def __init__(self, options: ReplicaOptions) -> None:
        self.engine: Engine = assemble(options, load_random).engine
        self.engine.runner.on_logits = self._see
        self.seen: dict[str, list[float]] = {}

    def _see(self, works: list[Work], logits: torch.Tensor) -> None:
        # A sum over all bits of a row, each weighed by its place.
        weights = torch.arange(1, logits.shape[1] + 1, device=logits.device, dtype=torch.int64)
        sums = (logits.contiguous().view(torch.int32).long() * weights).sum(-1).tolist()
        for work, value in zip(works, sums, strict=True):
            self.seen.setdefault(work.request.id, []).append(value)

    def run(
        self, requests: dict[str, tuple[list[int], int]], together: int, read: bool = True
    ) -> dict[str, list[float]]:
        """The logits of these requests, of which so many run at once."""
        self.seen, waiting = {}, list(requests.items())
        running: set[str] = set()
        while waiting or running:
            while waiting and len(running) < together:
                name, (prompt, tokens) = waiting.pop()
                self.engine.add(
                    Generate(
                        name, 1, (Segment(len(prompt), "project"),), prompt, Sampling(tokens, temperature=0.0),
                        credit=1 << 20, read=read,
                    ),
                    SCOPES,
                )  # fmt: skip
                running.add(name)
            for event in self.engine.step().events:
                if isinstance(event, Done):
                    assert event.reason == "length", event
                    running.discard(event.id)
        return self.seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-3.2-1b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quantize", choices=("none", "fp8"), default="none")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = write_shape(Path(folder) / "model", args.shape)
        options: dict[str, Any] = {
            "device": args.device, "quantize": args.quantize, "dtype": "bfloat16", "swap_share": 0.0, "context": 16_384, "served": args.shape
        }  # fmt: skip
        chance = random.Random(1)
        prefixes = [[chance.randrange(100, 100_000) for _ in range(size)] for size in (300, 1_100, 4_096)]
        requests = {}
        for index in range(args.requests):
            prompt = [] if chance.random() < 0.4 else list(chance.choice(prefixes))
            own = chance.choice([1, 63, 64, 65, 200, chance.randrange(1, 2_000)])
            prompt += [chance.randrange(100, 100_000) for _ in range(own)]
            requests[f"r{index}"] = (prompt, chance.choice([1, 2, 30, 70, 140]))
        report: dict[str, Any] = {"shape": args.shape, "requests": args.requests}
        wide = Recorder(
            ReplicaOptions(
                model, "unix:unused", Path(folder) / "a", "gpu", b"", max_running=64, token_budget=2_048, **options
            )
        )
        alone = wide.run(requests, 1, read=False)

        def compare(name: str, found: dict[str, list[float]]) -> None:
            different = [id for id in requests if found[id] != alone[id]]
            report[name] = {"logits": sum(map(len, found.values())), "different": different}
            print(name, report[name], flush=True)

        compare("together, cold", wide.run(dict(sorted(requests.items())), 64, read=False))
        compare("alone, warm", wide.run(requests, 1))
        shuffled = list(requests.items())
        chance.shuffle(shuffled)
        compare("together, warm", wide.run(dict(shuffled), 23))
        narrow = Recorder(
            ReplicaOptions(
                model, "unix:unused", Path(folder) / "b", "gpu", b"", max_running=40, token_budget=192,
                kv_memory=300 * 64 * 2 * 16 * 8 * 64 * 2, **{**options, "context": 8_192},
            )
        )  # fmt: skip
        compare("small chunks, preempted", narrow.run(dict(shuffled), 40))
        report["preemptions"] = narrow.engine.scheduler.preemptions
        print("preemptions", report["preemptions"], flush=True)
        args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
