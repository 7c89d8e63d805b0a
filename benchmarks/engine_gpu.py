"""How fast is the engine on a GPU? `python -m benchmarks.engine_gpu --shape llama-3.1-8b --workloads all --json OUT`

Random weights of a published shape, the workloads and fields that vLLM is timed with. A replica runs in a process of
its own, with the settings that `turnpike engine` has by default and its journal on disk; requests go over its socket,
and an eighth of them are sampled with penalties, or with `--sampling grammar` under a JSON schema over made-up words.
What vLLM is compared with is all greedy: `--greedy`. `start_s` is the time from the start of the replica's process to
the first token, measured here. With `--in-process` the engine is in a thread of this process, without host memory and
disk for KV, and `start_s` is from the start of this one.

Each workload is run with `--repeats` seeds and stopped after `--limit` seconds. To try it without a GPU:
`--device cpu --shape qwen3-tiniest --scale 64`.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.shapes import SHAPES, write_shape
from benchmarks.gpu.timed_requests import WAYS, Driver
from benchmarks.gpu.workloads import NAMES, workloads
from engine.options import KvDtype, Quantize
from turnpike.settings import loading
from turnpike.settings.settings import Settings

CONTEXT = 40_960
PRECISIONS: dict[str, tuple[Quantize, KvDtype]] = {
    "bf16": ("none", "auto"),
    "fp8": ("fp8", "fp8"),
    "fp8-weights": ("fp8", "auto"),
    "int4": ("int4", "auto"),
    "int4-fp8": ("int4", "fp8"),
    "mxfp4": ("mxfp4", "auto"),
    "nvfp4": ("nvfp4", "auto"),
}
"""What weights are rounded to, and what KV is kept as."""
WARM = ("shared_prefix", "sharing_trees")
"""Run once more while their prefixes are cached."""


def measure(driver: Driver, wanted: Sequence[str], args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Every wanted workload with each seed; the report is written after each."""

    def keep(name: str, found: dict[str, Any]) -> None:
        report.setdefault(name, []).append(found)
        print(args.precision, seed, name, json.dumps(found), flush=True)
        args.json.write_text(json.dumps(report, indent=1))

    for seed in range(args.repeats):
        for name, (prompts, tokens) in workloads(seed, args.scale).items():
            if name not in wanted:
                continue
            if name == "single_decode":
                first = driver.run(prompts, 1, args.limit)
                whole = driver.run(prompts, tokens, args.limit)
                found = {"itl_ms": 1e3 * whole["s"] / tokens, "ttft_ms": 1e3 * first["s"], **whole}
            else:
                found = driver.run(prompts, tokens, args.limit)
            keep(name, found)
            if name in WARM and not found.get("stopped"):
                cold = list(driver.outputs.values())
                warm = driver.run(prompts, tokens, args.limit)
                same = sum(a == b for a, b in zip(cold, driver.outputs.values(), strict=True))
                keep(f"{name}_warm", {**warm, "same_as_cold": f"{same} of {len(prompts)}"})


def settings_for(args: argparse.Namespace, folder: Path) -> Settings:
    """The settings of the replica: the defaults but for what is measured, and what `--setting` says."""
    quantize, kv_dtype = PRECISIONS[args.precision]
    (folder / "data").mkdir()
    model = write_shape(folder / "model", args.shape)
    if args.sampling == "grammar":
        from benchmarks.gpu.made_up_tokenizer import write_tokenizer  # noqa: PLC0415

        write_tokenizer(model, SHAPES[args.shape]["vocab_size"])
    flags: dict[str, Any] = {
        "model": str(model), "listen": f"unix:{folder}/socket",
        "data_dir": str(folder / "data"), "replica_name": "gpu", "device": args.device, "quantize": quantize,
        "kv_dtype": kv_dtype, "context": CONTEXT,
    }  # fmt: skip
    if args.in_process:
        flags |= {"swap_share": 0.0, "disk_memory": 0}
    return loading.load(flags | dict(args.setting), {})


def start(settings: Settings, args: argparse.Namespace) -> Driver:
    """The driver, whose engine can be asked."""
    if args.in_process:
        from benchmarks.gpu.in_process import InProcessDriver  # noqa: PLC0415  # imports torch

        return InProcessDriver(settings, args.sampling)
    from benchmarks.gpu.socket_driver import SocketDriver  # noqa: PLC0415

    return SocketDriver(settings, args.sampling)


def setting(text: str) -> tuple[str, str]:
    """NAME=VALUE."""
    name, _, value = text.partition("=")
    if name not in Settings.__struct_fields__:
        raise argparse.ArgumentTypeError(f"{name!r} is no setting")
    return name, value


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-3.1-8b")
    parser.add_argument("--precision", choices=sorted(PRECISIONS), default="bf16")
    parser.add_argument("--workloads", default="all", help=f"all, or some of {','.join(NAMES)}")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--sampling", choices=WAYS, default="eighth", help="which requests are sampled; default eighth")
    parser.add_argument("--greedy", dest="sampling", action="store_const", const="none", help="as --sampling none")
    parser.add_argument("--in-process", action="store_true", help="the engine in this process, without a socket")
    parser.add_argument("--profile", default="", help="workloads to look into first; with --in-process")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--scale", type=int, default=1, help="prompts, and their tokens, are so many times fewer")
    parser.add_argument(
        "--setting", type=setting, action="append", default=[], metavar="NAME=VALUE", help="a setting of the replica"
    )
    args = parser.parse_args(argv)
    args.names = list(NAMES) if args.workloads == "all" else [name for name in args.workloads.split(",") if name]
    unknown = {*args.names, *filter(None, args.profile.split(","))} - {*NAMES}
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: no such workload")
    if args.profile and (not args.in_process or args.device == "cpu"):
        parser.error("--profile: only with --in-process, on a GPU")
    if args.scale < 1:
        parser.error("--scale: at least 1")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, and write the report after each workload."""
    args = parsed(argv)
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_for(args, Path(folder))
        driver = start(settings, args)
        try:
            started = driver.since_start()
            started += driver.run([[5] * 64], 1, max(60, args.limit))["first_token_s"]
            report: dict[str, Any] = {
                "shape": args.shape, "precision": args.precision, "kv": settings.kv_dtype, "dtype": driver.dtype,
                "machine": driver.machine, "torch": driver.torch, "host": platform.processor(), "way": driver.way,
                "sampling": args.sampling, "ready_s": driver.ready_s, "start_s": started,
            }  # fmt: skip
            print(json.dumps(report), flush=True)
            driver.run([[5] * 64] * 8, 16, 60)
            if args.profile:
                from benchmarks.gpu.in_process import profile  # noqa: PLC0415

                for name in args.profile.split(","):
                    profile(driver, name, args.limit)
            measure(driver, args.names, args, report)
        finally:
            driver.close()


if __name__ == "__main__":
    main()
