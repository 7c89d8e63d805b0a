"""Speed of the engine on this machine: `python -m benchmarks.engine --model DIR --json OUT`.

Measured are decoding at batch 1 and 8, prefill, and 64 requests of mixed length from the first token computed to the
last one sampled. `transformers.generate` runs beside it at batch 1 and 8 and on the mixed requests: in batches of 8 in
their order, padded to the longest prompt and run to the longest output, and the first of them one by one.

All runs are greedy, in one process, without sockets. They take turns, round by round, so that a slow minute of the
machine falls on each of them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from engine.core.engine import Engine
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from protocol.replicas import Scope
from protocol.requests import Done, Generate, Sampling, Segment

Measure: TypeAlias = Callable[[], float]
Figures: TypeAlias = dict[str, float]
GenerateTogether: TypeAlias = Callable[[list[list[int]], list[int], int], float]
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


def in_turns(measures: Mapping[str, Measure]) -> dict[str, Figures]:
    """The best and the median of some rounds of each after one to warm up."""
    took: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(ROUNDS + 1):
        for name, measure in measures.items():
            figure = measure()
            if number:
                took[name].append(figure)
    return {
        name: {"best": round(max(each), 1), "median": round(statistics.median(each), 1)} for name, each in took.items()
    }


def prompts_of(vocabulary: int, lengths: list[int]) -> list[list[int]]:
    """Random prompts of these lengths, the same ones each time."""
    chance = random.Random(SEED)
    return [[chance.randrange(vocabulary) for _ in range(length)] for length in lengths]


def mixed() -> tuple[list[int], list[int]]:
    """Prompt and output lengths of 64 requests."""
    chance = random.Random(SEED)
    return [chance.randrange(20, 300) for _ in range(64)], [chance.randrange(16, 2 * OUTPUT) for _ in range(64)]


def generator(folder: Path) -> GenerateTogether:
    """The tokens per second of `transformers.generate`, with torch's own number of threads, for prompts and how many
    tokens are wanted after each, so many of them together as they come."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def generate(prompts: list[list[int]], outputs: list[int], together: int) -> float:
        torch.set_num_threads(len(os.sched_getaffinity(0)))  # ours sets its own in its turn
        start = time.perf_counter()
        for at in range(0, len(prompts), together):
            batch = prompts[at : at + together]
            longest = max(map(len, batch))
            tokens = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in batch])
            real = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in batch])
            with torch.inference_mode():
                model.generate(
                    tokens,
                    attention_mask=real,
                    max_new_tokens=max(outputs[at : at + together]),
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
    threads = engine.executor.runner.threads
    ours: dict[str, Any] = {
        "assemble_s": round(time.perf_counter() - start, 2),
        "threads": {"small_steps": threads.few, "large_steps": threads.many},
    }
    theirs: dict[str, Any] = {}
    generate = generator(folder) if beside else None
    vocabulary = engine.executor.runner.model.config.vocabulary

    def take(name: str, prompts: list[list[int]], outputs: list[int], *compared: tuple[str, int, int]) -> None:
        """`compared`: names of figures of transformers, how many of the requests it is given, and how many at once."""
        measures: dict[str, Measure] = {"ours": lambda: run(engine, prompts, outputs)[1]}
        if generate is not None:
            for theirs_as, count, together in compared:
                measures[theirs_as] = partial(generate, prompts[:count], outputs[:count], together)
        figures = in_turns(measures)
        ours[name] = figures.pop("ours")
        theirs.update(figures)

    for batch in (1, 8):
        name = f"generate_{batch}"
        take(name, prompts_of(vocabulary, [PROMPT] * batch), [OUTPUT] * batch, (name, batch, batch))
    lengths, outputs = mixed()
    whole, part = ("mixed_in_batches_of_8", len(lengths), 8), ("mixed_one_by_one", 8, 1)
    take("mixed_64", prompts_of(vocabulary, lengths), outputs, whole, part)
    for length in (512, 4096):
        if length < engine.limits.context_tokens:
            prompt = prompts_of(vocabulary, [length])
            ours[f"prefill_{length}"] = in_turns({"ours": lambda p=prompt: len(p[0]) / run(engine, p, [1])[0]})["ours"]
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
