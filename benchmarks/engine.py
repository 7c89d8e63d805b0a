"""How fast the engine is here: `python -m benchmarks.engine --model DIR --json OUT`.

Decode at batch 1 and 8, 64 requests of mixed length from the first token computed to the last one sampled, prefill, and
`transformers.generate` beside it at batch 1 and 8 and (one after the other) on the first of the mixed requests. All in
one process and one run, without sockets; greedy. Both take turns, round by round, so that a slow minute of the machine
falls on both.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from engine.assembly import assemble
from engine.engine import Engine
from engine.options import ReplicaOptions
from engine.protocol.replicas import Scope
from engine.protocol.requests import Done, Generate, Sampling, Segment

Measure: TypeAlias = Callable[[], float]
Figures: TypeAlias = dict[str, float]
SCOPES = {"bench": Scope("bench", b"root" * 8, b"key")}
ROUNDS = 3
OUTPUT = 64
PROMPT = 100
SEED = 7


def run(engine: Engine, prompts: list[list[int]], outputs: list[int]) -> tuple[float, float]:
    """Seconds until all is done, and tokens sampled per second. Nothing is read from the cache nor left in it."""
    for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        segments = (Segment(len(prompt), "bench"),)
        sampling = Sampling(output, temperature=0.0)
        request = Generate(str(index), 1, segments, prompt, sampling, credit=output, read=False, store="none")
        engine.add(request, SCOPES)
    start = time.perf_counter()
    finished = 0
    while finished < len(prompts):
        for event in engine.step().events:
            if isinstance(event, Done):
                if event.reason != "length":
                    raise SystemExit(f"request {event.id} ended by {event.reason}: {event.error}")
                finished += 1
    seconds = time.perf_counter() - start
    return seconds, sum(outputs) / seconds


def in_turns(ours: Measure, theirs: Measure | None) -> tuple[Figures, Figures | None]:
    """The best and the median of some rounds of each after one to warm up."""
    both = [measure for measure in (ours, theirs) if measure is not None]
    took: list[list[float]] = [[] for _ in both]
    for number in range(ROUNDS + 1):
        for measure, figures in zip(both, took, strict=True):
            figure = measure()
            if number:
                figures.append(figure)
    mine, *others = [{"best": round(max(each), 1), "median": round(statistics.median(each), 1)} for each in took]
    return mine, others[0] if others else None


def prompts_of(vocabulary: int, lengths: list[int]) -> list[list[int]]:
    """Random prompts of these lengths, the same ones each time."""
    chance = random.Random(SEED)
    return [[chance.randrange(vocabulary) for _ in range(length)] for length in lengths]


def mixed() -> tuple[list[int], list[int]]:
    """Prompt and output lengths of 64 requests."""
    chance = random.Random(SEED)
    return [chance.randrange(20, 300) for _ in range(64)], [chance.randrange(16, 2 * OUTPUT) for _ in range(64)]


def generator(folder: Path) -> Callable[[list[list[int]], list[int]], float]:
    """The tokens per second of `transformers.generate`, with torch's own number of threads, for prompts that have one
    output length together, or one after the other."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def generate(prompts: list[list[int]], outputs: list[int]) -> float:
        torch.set_num_threads(len(os.sched_getaffinity(0)))  # ours sets its own in its turn
        together = len(set(outputs)) == 1
        start = time.perf_counter()
        for given, output in [(prompts, outputs[0])] if together else zip([[p] for p in prompts], outputs, strict=True):
            tokens = torch.tensor(given)
            with torch.inference_mode():
                model.generate(
                    tokens,
                    attention_mask=torch.ones_like(tokens),
                    max_new_tokens=output,
                    do_sample=False,
                    eos_token_id=None,
                    pad_token_id=0,
                )
        return sum(outputs) / (time.perf_counter() - start)

    return generate


def measure(folder: Path, *, beside: bool) -> dict[str, Any]:
    """Tokens per second by workload, ours and, if `beside`, those of transformers."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as data:
        engine = assemble(ReplicaOptions(folder, "unix:unused", Path(data), "bench", b"", device="cpu")).engine
    threads = engine.runner.threads
    ours: dict[str, Any] = {
        "assemble_s": round(time.perf_counter() - start, 2),
        "threads": {"small_steps": threads.few, "large_steps": threads.many},
    }
    theirs: dict[str, Any] = {}
    generate = generator(folder) if beside else None
    vocabulary = engine.runner.model.config.vocabulary

    def take(name: str, prompts: list[list[int]], outputs: list[int], compared: int, theirs_as: str = "") -> None:
        """`compared`: how many of the requests transformers is given; `theirs_as`: its figure's name, if another."""
        other = None
        if generate is not None:
            other = partial(generate, prompts[:compared], outputs[:compared])
        ours[name], figures = in_turns(lambda: run(engine, prompts, outputs)[1], other)
        if figures is not None:
            theirs[theirs_as or name] = figures

    for batch in (1, 8):
        take(f"generate_{batch}", prompts_of(vocabulary, [PROMPT] * batch), [OUTPUT] * batch, batch)
    lengths, outputs = mixed()
    take("mixed_64", prompts_of(vocabulary, lengths), outputs, 8, "mixed_one_by_one")
    for length in (512, 4096):
        if length < engine.limits.context_tokens:
            prompt = prompts_of(vocabulary, [length])
            ours[f"prefill_{length}"] = in_turns(lambda p=prompt: len(p[0]) / run(engine, p, [1])[0], None)[0]
    return {"turnpike": ours, "transformers": theirs} if beside else {"turnpike": ours}


def main() -> None:
    """Measure, print, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-transformers", action="store_true")
    given = parser.parse_args()
    figures = measure(given.model, beside=not given.no_transformers)
    result = {"cores": len(os.sched_getaffinity(0)), "tokens_per_s": figures}
    text = json.dumps(result, indent=2)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
