"""Both prefill kernels against each other, bit by bit, and timed: `python -m benchmarks.gpu.prefill --json OUT`.

Random chunks of sequences of random lengths in random blocks; what no sequence may read is NaN.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.kernels import DEVICE, DIM, HEADS, KV_HEADS, graph_us, padded, random_tables
from engine.kernels.attention_splits import split_bounds, split_bounds_on
from engine.kernels.paged_kv import PagedKv, Scores
from engine.kernels.prefill_attention import PrefillTiles, plan_prefill_tiles, prefill_attention
from engine.kernels.prefill_hopper import TILE_ROWS, prefill_attention_hopper

Chunks = list[tuple[int, int, int, int]]


class Case:
    """Sequences of `lengths`, each with a chunk (start, tokens)."""

    def __init__(self, lengths: list[int], starts: list[int], shape: tuple[int, int, int], dtype: torch.dtype) -> None:
        self.heads, kv_heads, dim = shape
        blocks = sum(-(-length // 64) for length in lengths) + 9
        data = torch.randn(blocks, 2, 2, kv_heads, 64, dim, dtype=dtype, device=DEVICE)
        tables = random_tables(lengths, [(0, 0)] * len(lengths), blocks)
        for length, table in zip(lengths, tables, strict=True):
            if length % 64:
                data[table[-1], :, :, :, length % 64 :] = torch.nan
        unused = set(range(blocks)) - {block for table in tables for block in table}
        data[list(unused)] = torch.nan
        self.kv, self.tables, self.each = PagedKv(data, 1), padded(tables), self.heads // kv_heads
        self.chunks: Chunks = []
        at = 0
        for row, (length, start) in enumerate(zip(lengths, starts, strict=True)):
            self.chunks.append((at, start, length - start, row))
            at += length - start
        self.rows, self.edges = at, split_bounds(max(lengths))
        self.bounds = split_bounds_on(DEVICE, max(lengths))
        self.query = torch.randn(at, self.heads, dim, dtype=dtype, device=DEVICE)
        self.scores = Scores(dim**-0.5)

    def tiles(self, rows: int) -> PrefillTiles:
        tiles = plan_prefill_tiles(self.chunks, self.each, self.edges, tile_rows=rows)
        return PrefillTiles(tiles.table.to(DEVICE), tiles.tokens)

    def plain(self, tiles: PrefillTiles, out: torch.Tensor) -> None:
        prefill_attention(self.query, self.kv, self.tables, self.bounds, tiles, self.scores, out)

    def hopper(self, tiles: PrefillTiles, out: torch.Tensor) -> None:
        prefill_attention_hopper(self.query, self.kv, self.tables, self.bounds, tiles, self.scores, out)

    def output(self, dtype: torch.dtype) -> torch.Tensor:
        return torch.full(self.query.shape, torch.nan, dtype=dtype, device=DEVICE)


def check(report: dict[str, Any], cases: int) -> None:
    rows, differs = 0, []
    for seed in range(cases):
        random.seed(seed)
        torch.manual_seed(seed)
        shape = random.choice([(32, 8, 128), (32, 8, 128), (32, 8, 64), (16, 8, 128), (32, 4, 128), (64, 4, 64)])
        dtype = random.choice([torch.bfloat16, torch.bfloat16, torch.float16])
        lengths = [random.choice([1, 31, 63, 64, 65, 256, 257, random.randint(1, 5_000)]) for _ in range(9)]
        starts = [random.choice([0, length - 1, random.randrange(length)]) for length in lengths]
        case = Case(lengths, starts, shape, dtype)
        first, second = case.output(torch.float32), case.output(torch.float32)
        case.plain(case.tiles(64), first)
        case.hopper(case.tiles(TILE_ROWS), second)
        rows += case.rows * case.heads
        if not torch.equal(first, second):
            wrong = (first != second).any(-1)
            differs.append(f"{seed} {shape} {dtype}: {int(wrong.sum())} of {wrong.numel()} rows")
    report["bits"] = {"cases": cases, "rows": rows, "differs": differs}
    print(json.dumps(report["bits"]), flush=True)


def measure(report: dict[str, Any]) -> None:
    for name, lengths, starts in (
        ("32768", [32_768], [0]),
        ("8192 of 32768", [32_768], [24_576]),
        ("8 x 1024", [1_024] * 8, [0] * 8),
        ("64 x 128 on 8192", [8_320] * 64, [8_192] * 64),
        ("8192", [8_192], [0]),
    ):
        random.seed(0)
        case = Case(lengths, starts, (HEADS, KV_HEADS, DIM), torch.bfloat16)
        keys = sum(
            (length * (length + 1) - start * (start + 1)) / 2 for length, start in zip(lengths, starts, strict=True)
        )
        work = keys * HEADS * DIM * 4
        first, second = case.output(torch.bfloat16), case.output(torch.bfloat16)
        small, large = case.tiles(64), case.tiles(TILE_ROWS)
        found = {}
        for which, call in (
            ("plain", lambda _, c=case, t=small, o=first: c.plain(t, o)),
            ("hopper", lambda _, c=case, t=large, o=second: c.hopper(t, o)),
        ):
            took = graph_us(call, 4, 5)
            found[which] = {"us": round(took, 1), "tflops": round(work / took / 1e6, 1)}
        found["same"] = torch.equal(first, second)
        report[name] = found
        print(name, json.dumps(found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=60)
    args = parser.parse_args()
    report: dict[str, Any] = {"machine": torch.cuda.get_device_name()}
    measure(report)
    check(report, args.cases)
    args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
