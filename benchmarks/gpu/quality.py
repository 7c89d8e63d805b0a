"""What weights and KV of 8 bits cost: `python -m benchmarks.gpu.quality --json OUT`, bits per byte of the demo model.

Text: docstrings of Python's standard library, which is what the model was trained to explain. By the fused kernels, or
with `--device cpu` by the stock operations in fp32, where products have weights in e4m3 but no rows. Then the same of a
model with outlier channels, and a needle: one key in 131,072 that must win.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from benchmarks.gpu.outliers import write_with_outliers
from engine.core.engine import Engine
from engine.options import Device
from engine.quantization import fp8
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


CHOICES: tuple[dict[str, Any], ...] = (
    {}, {"kv_dtype": "fp8"}, {"quantize": "fp8", "weights": "packed"},
    {"kv_dtype": "fp8", "quantize": "fp8", "weights": "packed"},
)  # fmt: skip


def bits_per_byte(model: Path, device: Device, tokens: list[int], size: int) -> dict[str, Any]:
    """Of each choice of formats, and how many per cent that is above the first."""
    report: dict[str, Any] = {}
    first = 0.0
    for chosen in CHOICES:
        with tempfile.TemporaryDirectory() as folder:
            options = ReplicaOptions(
                model, "unix:unused", Path(folder), "gpu", b"", device=device, kv_memory=1 << 30, max_running=32,
                dtype="bfloat16" if device == "cuda" else "float32", swap_share=0.0, **chosen,
            )  # fmt: skip
            engine = assemble(options).engine
            name = ", ".join(f"{key} {value}" for key, value in chosen.items()) or "as it is"
            found = bits(engine, tokens) / size
            first = first or found
            report[name] = {
                "runner": type(engine.executor.runner).__name__ + engine.executor.runner.numerics,
                "bits_per_byte": round(found, 5), "per_cent": round(100 * (found / first - 1), 3),
            }  # fmt: skip
            print(name, report[name], flush=True)
    return report


def needle(keys: int = 131_072, dim: int = 128, trials: int = 8, margin: float = 6.0) -> dict[str, float]:
    """Attention to one key that wins against all others together by `margin` nats, in float64: with keys and values as
    they are and as KV in 8 bits has them. The largest difference of its weight, and of the output, relative."""
    weight_off, output_off = 0.0, 0.0
    for trial in range(trials):
        chance = torch.Generator().manual_seed(trial)
        query = torch.randn(dim, generator=chance).bfloat16().double()
        k = torch.randn(keys, dim, generator=chance).bfloat16()
        v = torch.randn(keys, dim, generator=chance).bfloat16()
        at = int(torch.randint(keys, (1,), generator=chance))
        scale = dim**-0.5
        others = (k.double() @ query * scale).index_fill(0, torch.tensor([at]), -torch.inf).logsumexp(0)
        k[at] = (query * ((others + margin) / scale / (query @ query))).bfloat16()
        exact = (k.double() @ query * scale).softmax(0)
        expected = exact @ v.double()
        stored_k, stored_v = (_stored(vectors) for vectors in (k, v))
        weights = (stored_k @ query * scale).softmax(0)
        weight_off = max(weight_off, float((weights[at] - exact[at]).abs()))
        output_off = max(output_off, float((weights @ stored_v - expected).norm() / expected.norm()))
    return {"keys": keys, "margin_nats": margin, "weight_off": round(weight_off, 5), "output_off": round(output_off, 5)}


def _stored(vectors: torch.Tensor) -> torch.Tensor:
    """Vectors as KV in 8 bits has them, in float64: e4m3, each with a scale that is a power of two."""
    _, scales = fp8.encode(vectors)
    scales = torch.exp2(torch.ceil(torch.log2(scales.double())))
    return (vectors.double() / scales).to(torch.float8_e4m3fn).double() * scales


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--bytes", type=int, default=1 << 20, help="of the text, at most")
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    whole = text()[: args.bytes]
    tokens = Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode(whole, add_special_tokens=False).ids
    size = len(whole.encode())
    report: dict[str, Any] = {"bytes": size, "tokens": len(tokens), "needle": needle()}
    print(report, flush=True)
    report["as it is"] = bits_per_byte(MODEL, args.device, tokens, size)
    with tempfile.TemporaryDirectory() as folder:
        outliers = write_with_outliers(MODEL, Path(folder) / MODEL.name)
        report["outlier channels"] = bits_per_byte(outliers, args.device, tokens, size)
    args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
