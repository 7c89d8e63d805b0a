"""What formats of few bits cost: `python -m benchmarks.quality --formats int4,mxfp4,nvfp4 --json OUT`.

For each format of weights, with KV in the model's own type and in 8 bits: bits per byte of a text by the demo model,
and of a model with outlier channels that computes the same; questions answered right, and tools called right, greedily.
Text: docstrings of Python's standard library, which is what the model was trained to explain. Then needles: keys that
must win among 131,072. By the fused kernels on a GPU, by the stock operations in fp32 on the CPU.

`--table` prints rows for docs/quality.md from a file of figures.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from tokenizers import Tokenizer

from benchmarks.needles import needles
from benchmarks.outliers import write_with_outliers
from benchmarks.quality_tasks import CALLS, QUESTIONS, SCOPES, right_answers, right_calls
from engine.core.engine import Engine
from engine.options import Device, KvDtype, Quantize
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from protocol.requests import Done, Generate, PromptLogprobs, Sampling, Segment

FORMATS: tuple[Quantize, ...] = get_args(Quantize)
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


@contextmanager
def engine_with(model: Path, device: Device, quantize: Quantize, kv_dtype: KvDtype) -> Iterator[Engine]:
    """An engine of the model in these formats."""
    with tempfile.TemporaryDirectory() as folder:
        options = ReplicaOptions(
            model, "unix:unused", Path(folder), "quality", b"", device=device, kv_memory=1 << 28, max_running=32,
            dtype="bfloat16" if device == "cuda" else "float32", swap_share=0.0, quantize=quantize, kv_dtype=kv_dtype,
            # On a GPU e4m3 is multiplied as it is; others are decoded, here and there.
            weights="auto" if device == "cuda" else "decoded",
        )  # fmt: skip
        yield assemble(options).engine


def measure(
    models: dict[str, Path],
    device: Device,
    formats: Sequence[Quantize],
    kv_dtypes: Sequence[KvDtype],
    tokens: list[int],
    size: int,
) -> Iterator[dict[str, Any]]:
    """The figures of each combination of formats. `models`: those whose bits per byte are measured, by name."""
    for kv_dtype in kv_dtypes:
        for quantize in formats:
            row: dict[str, Any] = {"weights": quantize, "kv": kv_dtype}
            for name, model in models.items():
                with engine_with(model, device, quantize, kv_dtype) as engine:
                    row[f"bits_per_byte {name}"] = round(bits(engine, tokens) / size, 5)
                    if model == QUESTIONS:
                        runner = engine.executor.runner
                        row["runner"] = type(runner).__name__ + runner.numerics
                        row["answers"] = right_answers(engine)
            with engine_with(CALLS, device, quantize, kv_dtype) as engine:
                row["calls"] = right_calls(engine)
            yield row


def with_losses(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With how many per cent each figure of bits is above that of weights and KV as they are."""
    first = next(row for row in rows if row["weights"] == "none" and row["kv"] == "auto")
    for row in rows:
        for name in [name for name in row if name.startswith("bits_per_byte")]:
            row[name.replace("bits_per_byte", "per_cent")] = round(100 * (row[name] / first[name] - 1), 2)
    return rows


def table(report: dict[str, Any]) -> str:
    """The rows of docs/quality.md."""
    lines = []
    for row in report["rows"]:
        kv = "8 bits" if row["kv"] == "fp8" else "as it is"
        cells = [
            row["weights"], kv, f"{row['bits_per_byte plain']:.4f}", f"{row['per_cent plain']:+.2f}",
            f"{row['per_cent outliers']:+.2f}", row["answers"], row["calls"],
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--formats", default=",".join(FORMATS), help="of weights (default: %(default)s)")
    parser.add_argument("--kv", default="auto,fp8", help="formats of KV (default: %(default)s)")
    parser.add_argument("--bytes", type=int, default=1 << 20, help="of the text, at most")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--table", type=Path, help="print the table of a file of figures, and measure nothing")
    args = parser.parse_args()
    if args.table:
        print(table(json.loads(args.table.read_text())))
        return
    formats = ["none", *[name for name in args.formats.split(",") if name != "none"]]
    if unknown := set(formats) - set(FORMATS):
        parser.error(f"--formats: {', '.join(sorted(unknown))} unknown; there are {', '.join(FORMATS)}")
    whole = text()[: args.bytes]
    tokens = Tokenizer.from_file(str(QUESTIONS / "tokenizer.json")).encode(whole, add_special_tokens=False).ids
    report: dict[str, Any] = {"device": args.device, "bytes": len(whole.encode()), "tokens": len(tokens)}
    report["needles"] = [needles(1, 6.0), needles(10, 2.0)]
    print(report, flush=True)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        models = {"plain": QUESTIONS, "outliers": write_with_outliers(QUESTIONS, Path(folder) / QUESTIONS.name)}
        for row in measure(models, args.device, formats, args.kv.split(","), tokens, report["bytes"]):
            print(row, flush=True)
            rows.append(row)
            report["rows"] = with_losses(rows)
            if args.json:
                args.json.write_text(json.dumps(report, indent=1) + "\n")
    print(table(report))


if __name__ == "__main__":
    main()
