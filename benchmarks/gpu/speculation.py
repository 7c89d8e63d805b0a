"""Speed with drafts on a GPU: `python -m benchmarks.gpu.speculation --shape llama-3.1-8b --json OUT`.

A published shape with random weights. Runs with drafts and without alternate on one engine, and their tokens are
compared; told are the medians of plain time over time with drafts for as many tokens, from the moment at which all
requests have their first token until one has its last: of decode steps alone, all of which have all requests.

- `oracle 0.6`, `oracle 0.8`: a drafter that knows the output, of whose tokens so many are right.
- `repeats`: one token for ever, which `ngram` finds.
- `nothing to copy`: sampled outputs with the drafters of `--speculation auto`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import torch

from benchmarks.engine_gpu import PRECISIONS
from benchmarks.gpu.random_weights import load_random
from benchmarks.gpu.shapes import SHAPES, write_shape
from engine.core.engine import Engine
from engine.options import TEXT_DRAFTERS
from engine.speculation.drafter import Drafter, Proposal, Query
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from engine.startup.speculation import make_drafters
from protocol.replicas import Scope
from protocol.requests import Done, Generate, Sampling, Segment, Tokens

Mode: TypeAlias = Literal["auto", "off"]
SHARES = (0.6, 0.8)
SCOPE = "bench"
SCOPES = {SCOPE: Scope(SCOPE, b"root" * 8, b"key".ljust(32), retention=3600.0)}
PROMPT = 60
REPEATED = 7


class Oracle(Drafter):
    """Proposes what will come, of which a share is right. `outputs`: by the number of a request."""

    name: ClassVar[str] = "oracle"

    def __init__(self, vocabulary: int, share: float, outputs: Mapping[str, Sequence[int]]) -> None:
        self._share = share
        self._told = {number: self._corrupted(number, output, vocabulary) for number, output in outputs.items()}

    def _corrupted(self, number: str, output: Sequence[int], vocabulary: int) -> Sequence[int]:
        wrong = set(random.Random(number).sample(range(len(output)), round((1 - self._share) * len(output))))
        return [(token + 1) % vocabulary if at in wrong else token for at, token in enumerate(output)]

    def propose(self, queries: Sequence[Query]) -> Sequence[Proposal | None]:
        proposals: list[Proposal | None] = []
        for query in queries:
            number = query.request.id.partition("/")[2]
            output = query.request.output
            told = self._told[number][output : output + query.most]
            proposals.append(Proposal(told, self._share) if told else None)
        return proposals


class Bench:
    """An engine, and requests that are run to their end."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._sent = 0

    def run(self, requests: Sequence[Generate], mode: Mode) -> tuple[float, float, dict[str, list[int]]]:
        """Seconds a token of each request, seconds a step, and what was put out by the number of the request."""
        self._sent += 1
        outputs: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            fields = {name: getattr(request, name) for name in request.__struct_fields__}
            outputs[str(number)] = []
            self.engine.add(Generate(**{**fields, "id": f"{self._sent}/{number}", "speculation": mode}), SCOPES)
        began, begun, left = 0.0, 0, len(requests)
        took = tokens = steps = 0.0
        while left:
            steps += bool(began)
            for event in self.engine.step().events:
                if isinstance(event, Tokens):
                    outputs[event.id.partition("/")[2]] += event.tokens
                elif isinstance(event, Done):
                    if event.reason != "length":
                        raise SystemExit(f"request {event.id} ended by {event.reason}: {event.error}")
                    left -= 1
            if not began and all(outputs.values()):
                began, begun = time.perf_counter(), sum(map(len, outputs.values()))
            if not took and left < len(requests):
                took, tokens = time.perf_counter() - began, sum(map(len, outputs.values())) - begun
                a_step = took / steps
        return took / tokens * len(requests), a_step, outputs


def in_pairs(bench: Bench, requests: Sequence[Generate], pairs: int) -> dict[str, Any]:
    """Ratios of plain runs to runs with drafts, after one run to warm up."""
    bench.run(requests, "auto")
    totals = bench.engine.speculator.totals
    before = totals.drafted, totals.accepted
    times: dict[Mode, list[float]] = {"auto": [], "off": []}
    steps: dict[Mode, list[float]] = {"auto": [], "off": []}
    for pair in range(pairs):
        outputs = {}
        order: tuple[Mode, Mode] = ("auto", "off") if pair % 2 else ("off", "auto")
        for mode in order:
            took, a_step, outputs[mode] = bench.run(requests, mode)
            times[mode].append(took)
            steps[mode].append(a_step)
        if outputs["auto"] != outputs["off"]:
            raise SystemExit("the outputs with drafts are not those of plain decoding")
    ratios = [plain / drafted for plain, drafted in zip(times["off"], times["auto"], strict=True)]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "ms_a_token": {mode: round(statistics.median(took) * 1e3, 3) for mode, took in times.items()},
        "ms_a_step": {mode: round(statistics.median(took) * 1e3, 3) for mode, took in steps.items()},
        "tokens_a_step": round(statistics.median(steps["auto"]) / statistics.median(times["auto"]), 3),
        "drafted": totals.drafted - before[0],
        "accepted": totals.accepted - before[1],
    }


def requests_of(batch: int, output: int, vocabulary: int, **sampling: Any) -> list[Generate]:
    """A batch of random prompts."""
    chance = random.Random(batch)
    return [
        Generate(
            "", 1, (Segment(PROMPT, SCOPE),), [chance.randrange(vocabulary) for _ in range(PROMPT)],
            Sampling(output, **{"temperature": 0.0, "seed": at, **sampling}), output, read=False, store="none",
        )
        for at in range(batch)
    ]  # fmt: skip


def measure(bench: Bench, args: argparse.Namespace, report: dict[str, Any]) -> None:
    """All cases; the report is written after each."""
    vocabulary = bench.engine.executor.vocabulary
    costs = bench.engine.speculator.planner.costs

    def keep(name: str, batch: int, found: dict[str, Any]) -> None:
        report["cases"].setdefault(name, {})[str(batch)] = found
        if costs is not None:
            report["step_us"], report["unqueued_us"] = costs.shown(), costs.shown_unqueued()
        print(args.precision, name, batch, json.dumps(found), flush=True)
        if args.json:
            args.json.write_text(json.dumps(report, indent=1) + "\n")

    def ask(*drafters: Drafter) -> None:
        bench.engine.speculator.ask(drafters)

    batches = [int(batch) for batch in args.batches.split(",")]
    if "oracle" in args.cases:
        for batch in batches:
            requests = requests_of(batch, args.output, vocabulary)
            ask()
            _, _, outputs = bench.run(requests, "off")
            for share in SHARES:
                ask(Oracle(vocabulary, share, outputs))
                keep(f"oracle {share}", batch, in_pairs(bench, requests, args.pairs))
    ask(*make_drafters(TEXT_DRAFTERS))
    if "repeats" in args.cases:
        requests = requests_of(1, args.output, vocabulary, logit_bias={REPEATED: 100.0})
        keep("repeats", 1, in_pairs(bench, requests, args.pairs))
    if "nothing" in args.cases:
        for batch in batches:
            requests = requests_of(batch, args.output, vocabulary, temperature=1.0)
            keep("nothing to copy", batch, in_pairs(bench, requests, args.pairs))


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-3.1-8b")
    parser.add_argument("--precision", choices=sorted(PRECISIONS), default="bf16")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--cases", default="oracle,repeats,nothing", help="default: %(default)s")
    parser.add_argument("--batches", default="1,32,64", help="default: %(default)s")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--output", type=int, default=256, help="tokens of each output")
    parser.add_argument("--running", type=int, default=0, help="requests in a step; 0 for what suits the device")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    args = parser.parse_args()
    args.cases = args.cases.split(",")
    quantize, kv_dtype = PRECISIONS[args.precision]
    with tempfile.TemporaryDirectory() as folder:
        options = ReplicaOptions(
            write_shape(Path(folder) / "model", args.shape), "unix:unused", Path(folder), "bench", b"",
            device=args.device, quantize=quantize, kv_dtype=kv_dtype, context=8_192, swap_share=0.0,
            max_running=args.running,
        )  # fmt: skip
        engine = assemble(options, load_random).engine
    report = {
        "shape": args.shape,
        "precision": args.precision,
        "machine": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "pairs": args.pairs,
        "output": args.output,
        "off": engine.speculator.off,
        "cases": {},
    }
    print(json.dumps(report), flush=True)
    measure(Bench(engine), args, report)


if __name__ == "__main__":
    main()
