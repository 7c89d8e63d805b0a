"""How fast the engine is here: `python -m benchmarks.engine --model DIR --json OUT`.

Decode at batch 1 and 8, 64 requests of mixed length from the first token computed to the last one sampled, prefill, and
`transformers.generate` beside it at batch 1 and 8 and (one after the other) on the first of the mixed requests. All in
one process and one run, without sockets; greedy.
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
from pathlib import Path
from typing import Any

from engine.assembly import assemble
from engine.engine import Engine
from engine.options import ReplicaOptions
from engine.protocol.replicas import Scope
from engine.protocol.requests import Done, Generate, Sampling, Segment

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


def best(measure: Callable[[], float]) -> dict[str, float]:
    """The best and the median of some rounds after one to warm up."""
    measure()
    figures = [measure() for _ in range(ROUNDS)]
    return {"best": round(max(figures), 1), "median": round(statistics.median(figures), 1)}


def prompts_of(vocabulary: int, lengths: list[int]) -> list[list[int]]:
    """Random prompts of these lengths, the same ones each time."""
    chance = random.Random(SEED)
    return [[chance.randrange(vocabulary) for _ in range(length)] for length in lengths]


def measure_engine(folder: Path) -> dict[str, Any]:
    """Tokens per second by workload."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as data:
        engine = assemble(ReplicaOptions(folder, "unix:unused", Path(data), "bench", b"", device="cpu")).engine
    figures: dict[str, Any] = {"assemble_s": round(time.perf_counter() - start, 2)}
    vocabulary = engine.runner.model.config.vocabulary
    threads = engine.runner.threads
    figures["threads"] = {"small_steps": threads.few, "large_steps": threads.many}
    for batch in (1, 8):
        prompts = prompts_of(vocabulary, [PROMPT] * batch)
        figures[f"generate_{batch}"] = best(lambda p=prompts: run(engine, p, [OUTPUT] * len(p))[1])
    lengths, outputs = mixed()
    prompts = prompts_of(vocabulary, lengths)
    figures["mixed_64"] = best(lambda: run(engine, prompts, outputs)[1])
    for length in (512, 4096):
        if length < engine.limits.context_tokens:
            prompt = prompts_of(vocabulary, [length])
            figures[f"prefill_{length}"] = best(lambda p=prompt: len(p[0]) / run(engine, p, [1])[0])
    return figures


def mixed() -> tuple[list[int], list[int]]:
    """Prompt and output lengths of 64 requests."""
    chance = random.Random(SEED)
    return [chance.randrange(20, 300) for _ in range(64)], [chance.randrange(16, 2 * OUTPUT) for _ in range(64)]


def measure_transformers(folder: Path) -> dict[str, Any]:
    """The same for `transformers.generate`, with torch's own number of threads."""
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.set_num_threads(len(os.sched_getaffinity(0)))

    def generate(prompts: list[list[int]], output: int) -> float:
        given = torch.tensor(prompts)
        start = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=output,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        return output * len(prompts) / (time.perf_counter() - start)

    vocabulary = model.config.vocab_size
    figures: dict[str, Any] = {}
    for batch in (1, 8):
        prompts = prompts_of(vocabulary, [PROMPT] * batch)
        figures[f"generate_{batch}"] = best(lambda p=prompts: generate(p, OUTPUT))
    lengths, outputs = mixed()

    def one_after_another() -> float:
        first = list(zip(prompts_of(vocabulary, lengths), outputs, strict=True))[:8]
        start = time.perf_counter()
        for prompt, output in first:
            generate([prompt], output)
        return sum(output for _, output in first) / (time.perf_counter() - start)

    figures["mixed_one_by_one"] = best(one_after_another)
    return figures


def main() -> None:
    """Measure, print, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-transformers", action="store_true")
    given = parser.parse_args()
    result = {"cores": len(os.sched_getaffinity(0)), "tokens_per_s": {"turnpike": measure_engine(given.model)}}
    if not given.no_transformers:
        result["tokens_per_s"]["transformers"] = measure_transformers(given.model)
    text = json.dumps(result, indent=2)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
