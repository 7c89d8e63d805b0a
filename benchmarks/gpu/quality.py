"""What weights and KV of 8 bits cost: `python -m benchmarks.gpu.quality --json OUT`, bits per byte of the demo model.

Text: docstrings of Python's standard library, which is what the model was trained to explain. By the fused kernels.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engine.core.engine import Engine
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from protocol.replicas import Scope
from protocol.requests import Done, Generate, PromptLogprobs, Sampling, Segment

MODEL = Path(__file__).resolve().parents[2] / "models" / "stdlib-qa"
MODULES = [
    "argparse",
    "asyncio",
    "collections",
    "csv",
    "decimal",
    "functools",
    "heapq",
    "itertools",
    "json",
    "logging",
    "os",
    "pathlib",
    "random",
    "re",
    "shutil",
    "socket",
    "statistics",
    "string",
    "tempfile",
    "textwrap",
]
WINDOW = 1_500
SCOPES = {"project": Scope("project", b"root" * 8, b"key")}


def text() -> str:
    """Docstrings of modules, classes and functions."""
    found = []
    for name in MODULES:
        module = importlib.import_module(name)
        members = [module, *[getattr(module, member) for member in sorted(vars(module)) if not member.startswith("_")]]
        found += [member.__doc__ for member in members if callable(member) or member is module]
    return "\n\n".join(dict.fromkeys(doc for doc in found if isinstance(doc, str)))


def bits(engine: Engine, tokens: list[int]) -> float:
    total = 0.0
    open_requests = set()
    for start in range(0, len(tokens) - 1, WINDOW):
        window = tokens[start : start + WINDOW]
        sampling = Sampling(1, temperature=0.0, prompt_logprobs=0)
        segments = (Segment(len(window), "project"),)
        engine.add(Generate(f"r{start}", 1, segments, window, sampling, credit=1 << 20), SCOPES)
        open_requests.add(f"r{start}")
    while open_requests:
        for event in engine.step().events:
            if isinstance(event, PromptLogprobs):
                total -= sum(each.logprob for each in event.logprobs) / math.log(2)
            elif isinstance(event, Done):
                assert event.reason in ("length", "stop"), event
                open_requests.discard(event.id)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    whole = text()
    tokens = Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode(whole, add_special_tokens=False).ids
    report: dict[str, Any] = {"bytes": len(whole.encode()), "tokens": len(tokens)}
    choices: tuple[dict[str, Any], ...] = (
        {}, {"kv_dtype": "fp8"}, {"quantize": "fp8", "weights": "packed"},
        {"kv_dtype": "fp8", "quantize": "fp8", "weights": "packed"},
    )  # fmt: skip
    for chosen in choices:
        with tempfile.TemporaryDirectory() as folder:
            options = ReplicaOptions(
                MODEL, "unix:unused", Path(folder), "gpu", b"", device="cuda", dtype="bfloat16", kv_memory=1 << 30,
                max_running=32, swap_share=0.0, **chosen,
            )  # fmt: skip
            engine = assemble(options).engine
            name = ", ".join(f"{key} {value}" for key, value in chosen.items()) or "bf16"
            report[name] = {"runner": type(engine.runner).__name__ + engine.runner.numerics}
            report[name]["bits_per_byte"] = round(bits(engine, tokens) / report["bytes"], 5)
    print(json.dumps(report))
    args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
