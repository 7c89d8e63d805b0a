"""`turnpike calibrate`: measure memory, disk, sealing and models, and say when fetching cached KV pays.

What it measured of the disk under the folder for KV it keeps, for replicas that start after it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnpike.command_context import print_table
from turnpike.command_line import CommandError, CommandParser
from turnpike.settings.settings import Settings

if TYPE_CHECKING:
    from prompt_cache.placement.fetch_or_recompute import Place, TierRate
    from turnpike.processes.machine_rates import ModelRates

_DRAFTS, _BATCHES = (1, 3, 7), (1, 4, 16, 64)
"""Drafts of a request, and requests in a step, for which it is told from which acceptance on drafting pays."""
_LENGTHS = (512, 2048, 8192, 32_768)
"""Of the prompts that are told of, as far as a model's context goes."""


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike calibrate`."""
    parser.runs(calibrate)
    parser.add_argument(
        "--folder",
        type=Path,
        help="a folder that exists, on another disk to measure, of which nothing is kept; default: the one for KV",
    )
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: %(default)s")
    parser.add_argument("--no-model", action="store_true", help="measure memory, disk and sealing alone")
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")


def calibrate(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike calibrate`."""
    from prompt_cache.placement.fetch_or_recompute import TierRate
    from turnpike.processes import machine_rates

    folder = _folder(settings, arguments.folder)
    try:
        disk = machine_rates.read_disk(folder)
    except OSError as error:
        raise CommandError(f"the disk cannot be measured: {error}") from error
    memory, sealing = machine_rates.copy_memory(), machine_rates.seal()
    # What is read from disk is also opened, by one core.
    nvme = TierRate(disk.tier.fixed_s, 1 / (1 / disk.tier.bytes_per_s + 1 / sealing))
    if arguments.folder is None:
        _keep(settings, folder, nvme)
    figures: dict[str, Any] = {
        "memory_bytes_per_s": round(memory.bytes_per_s),
        "disk_bytes_per_s": {str(depth): round(rate) for depth, rate in disk.by_depth.items()},
        "disk_fixed_us": round(disk.tier.fixed_s * 1e6, 1),
        "disk_direct": disk.direct,
        "sealing_bytes_per_s": round(sealing),
        "models": [],
    }
    if not arguments.no_model:
        for at, model in enumerate(settings.model_folders):
            rates = machine_rates.compute(model, arguments.device, settings.attention_of(at))
            figures["models"].append(_meaning(rates, {"dram": memory, "nvme": nvme}))
    if arguments.json:
        print(json.dumps(figures, indent=2))
    else:
        _print(figures)
        if arguments.folder is None:
            print(f"\nKept in {settings.calibration} for replicas that start from now on.")
    return 0


def _folder(settings: Settings, named: Path | None) -> Path:
    """A folder on the disk to measure."""
    from prompt_cache.tiers.disk_calibration import nearest_folder

    if named is None:
        settings.data.mkdir(parents=True, exist_ok=True)
        return nearest_folder(settings.kv_folder)
    if not named.is_dir():
        raise CommandError(f"--folder: there is no folder {named}")
    return named


def _keep(settings: Settings, folder: Path, rate: TierRate) -> None:
    """Keep what was measured of the disk, for each replica that `serve` starts."""
    from prompt_cache.tiers.disk_calibration import VERSION, DiskCalibration, write_calibration

    kept = DiskCalibration(VERSION, str(folder), time.time(), rate.fixed_s, rate.bytes_per_s)
    for replica in settings.own_replicas:
        try:
            replica.data.mkdir(parents=True, exist_ok=True)
            write_calibration(replica.calibration, kept)
        except OSError as error:
            raise CommandError(f"{replica.calibration} cannot be written: {error}") from error


def _meaning(rates: ModelRates, tiers: Mapping[Place, TierRate]) -> dict[str, Any]:
    """What a model's KV costs to compute and to fetch."""
    from prompt_cache.placement.fetch_or_recompute import FetchOrRecompute

    chooser = FetchOrRecompute(tiers, rates.compute)
    lengths = sorted({min(length, rates.context_tokens) for length in _LENGTHS})
    return {
        "model": rates.name,
        "attention": list(rates.attention),
        "block_tokens": rates.block_tokens,
        "block_bytes": rates.block_bytes,
        "prefill_tokens_per_s": {
            str(length): round(length / rates.compute.seconds(0, length), 1) for length in lengths
        },
        "pays_from_tokens": {
            place: chooser.pays_from(place, rates.block_tokens, rates.block_bytes, rates.context_tokens)
            for place in tiers
        },
        "needed_bytes_per_s": {
            str(length): round(length / rates.block_tokens * rates.block_bytes / rates.compute.seconds(0, length))
            for length in lengths
        },
        "speculation": _speculation(rates),
    }


def _speculation(rates: ModelRates) -> dict[str, Any]:
    """What steps take by rows and KV, and the least share of right drafts with which drafting pays, by requests in a
    step and drafts of each."""
    from engine.speculation.verify_costs import break_even

    costs = rates.verification
    if costs is None:
        return {"off": rates.no_drafts, "step_us": {}, "break_even": {}}
    kv = min(costs.kv)
    return {
        "off": None,
        "step_us": {
            str(length): {str(rows): round(took) for rows, took in shown} for length, shown in costs.shown().items()
        },
        "break_even": {
            str(batch): {str(drafts): break_even(costs, batch, drafts, kv) for drafts in _DRAFTS} for batch in _BATCHES
        },
    }


def _print(figures: dict[str, Any]) -> None:
    disk = figures["disk_bytes_per_s"]
    rows = [("memory, a copy", _speed(figures["memory_bytes_per_s"]))]
    rows += [(f"disk, {depth} reads at once", _speed(rate)) for depth, rate in disk.items()]
    rows.append(("sealing, one core", _speed(figures["sealing_bytes_per_s"])))
    print_table(("what", "GB/s"), rows)
    if not figures["disk_direct"]:
        print("This disk is read through the page cache: its figures may be those of memory.")
    for model in figures["models"]:
        print()
        print_table(
            (f"{model['model']}: prompt", "prefill tokens/s", "GB/s to be worth fetching"),
            [
                (length, f"{rate:.0f}", _speed(model["needed_bytes_per_s"][length]))
                for length, rate in model["prefill_tokens_per_s"].items()
            ],
        )
        for place, tokens in model["pays_from_tokens"].items():
            verdict = "never pays here: computing is quicker" if tokens is None else f"pays from {tokens} tokens on"
            print(f"Fetching from {place} {verdict}.")
        if model["attention"]:
            print(f"Attention is fast, by {' and '.join(model['attention'])}.")
        _print_speculation(model["speculation"])


def _print_speculation(speculation: Mapping[str, Any]) -> None:
    print()
    if speculation["off"] is not None:
        print(f"Nothing is drafted: {speculation['off']}.")
        return
    lengths = list(speculation["step_us"])
    rows = list(speculation["step_us"][lengths[0]])
    print_table(
        ("rows of a step", *(f"ms at {length} tokens of KV" for length in lengths)),
        [(row, *(f"{speculation['step_us'][length][row] / 1000:.2f}" for length in lengths)) for row in rows],
    )
    print()
    print_table(
        ("requests", *(f"{drafts} drafts pay from" for drafts in next(iter(speculation["break_even"].values())))),
        [
            (batch, *("never" if share is None else f"{share:.0%} right" for share in shares.values()))
            for batch, shares in speculation["break_even"].items()
        ],
    )


def _speed(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3f}"
