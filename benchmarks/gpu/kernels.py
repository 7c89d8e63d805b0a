"""Correctness and speed of the kernels on this GPU: `python -m benchmarks.gpu.kernels --json OUT`.

Every kernel is compared with a float64 reference or the library's own result before it is timed. Times are medians of
CUDA graph replays; weights and KV are larger than the L2 cache or rotate.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from engine.kernels.attention_splits import split_bounds, split_bounds_on
from engine.kernels.decode_attention import DecodeAttention
from engine.kernels.decode_plan import DecodeBatch
from engine.kernels.linear import LinearTile, linear, tile_for
from engine.kernels.paged_kv import PagedKv, Scores, reference_attention
from engine.kernels.prefill_attention import PrefillTiles, plan_prefill_tiles, prefill_attention
from engine.kernels.rows import rms_norm, rotate_and_append, silu_mul

SHAPES = {
    "qkv": (6_144, 4_096),
    "o": (4_096, 4_096),
    "gate_up": (28_672, 4_096),
    "down": (4_096, 14_336),
    "head": (128_256, 4_096),
}
"""[outputs, inputs] of the linears of Llama 3.1 8B."""
HEADS, KV_HEADS, DIM, LAYERS = 32, 8, 128, 32
DEVICE = torch.device("cuda")
Report = dict[str, Any]


def graph_us(call: Callable[[int], object], times: int, replays: int = 7) -> float:
    """Median µs of `call`, which is captured `times` times (it is told which time it is) and replayed."""
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(times):
            call(index)
    graph.replay()
    torch.cuda.synchronize()
    took = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        took.append(start.elapsed_time(end) * 1e3 / times)
    return statistics.median(took)


def random_tables(lengths: list[int], shared: list[tuple[int, int]], blocks: int) -> list[list[int]]:
    """Block tables in random blocks. `shared`: for each sequence (which prefix, blocks of it)."""
    free = list(range(blocks))
    random.shuffle(free)
    prefixes: dict[int, list[int]] = {}
    tables = []
    for length, (prefix, count) in zip(lengths, shared, strict=True):
        if count and prefix not in prefixes:
            prefixes[prefix] = [free.pop() for _ in range(count)]
        held = prefixes[prefix][:count] if count else []
        needed = -(-length // 64)
        tables.append((held + [free.pop() for _ in range(max(0, needed - len(held)))])[:needed])
    return tables


def padded(tables: list[list[int]]) -> torch.Tensor:
    widest = max(map(len, tables))
    return torch.tensor([[*table, *[0] * (widest - len(table))] for table in tables], dtype=torch.int32, device=DEVICE)


def decode_batch(positions: list[int], tables: list[list[int]]) -> DecodeBatch:
    order = sorted(range(len(tables)), key=lambda row: tables[row])
    rows = range(len(tables))
    first, second, third = (
        torch.tensor(list(values), dtype=torch.int32, device=DEVICE) for values in (positions, rows, order)
    )
    return DecodeBatch(first, second, third, padded(tables))


def on_device(tiles: PrefillTiles) -> PrefillTiles:
    return PrefillTiles(tiles.table.to(DEVICE), tiles.tokens)


def check_attention(report: Report) -> None:
    """Random trees of sharing: error to float64, and bits of decode, grouped decode and prefill."""
    worst, same, cases = 0.0, True, 0
    differs: list[str] = []
    for case in range(24):
        random.seed(case)
        torch.manual_seed(case)
        heads, kv_heads, dim = random.choice([(32, 8, 128), (8, 8, 64), (28, 4, 128), (16, 2, 96), (32, 8, 256)])
        dtype = random.choice([torch.bfloat16, torch.bfloat16, torch.float16, torch.float32])
        window, cap, sinks = random.choice([(0, None, False), (0, None, False), (500, None, True), (0, 30.0, False)])
        lengths = [
            random.choice([1, 63, 64, 65, 255, 256, 257, 2047, 2049, random.randint(1, 4_000)]) for _ in range(21)
        ]
        shared = [(random.randrange(3), 0 if random.random() < 0.3 else 16) for _ in lengths]
        lengths = [max(length, 64 * count + 1) for length, (_, count) in zip(lengths, shared, strict=True)]
        blocks = sum(-(-length // 64) for length in lengths) + 64
        data = torch.randn(blocks, 2, 2, kv_heads, 64, dim, dtype=dtype, device=DEVICE)
        tables = random_tables(lengths, shared, blocks)
        for length, table in zip(lengths, tables, strict=True):
            if length % 64:
                data[table[-1], :, :, :, length % 64 :] = float("nan")
        used = {block for table in tables for block in table}
        for block in set(range(blocks)) - used:
            data[block] = float("nan")
        kv = PagedKv(data, 1)
        scores = Scores(dim**-0.5, window, cap, torch.randn(heads, device=DEVICE) if sinks else None)
        bounds = split_bounds_on(DEVICE, max(lengths))
        query = torch.randn(len(lengths), heads, dim, dtype=dtype, device=DEVICE)
        positions = [length - 1 for length in lengths]
        expected = reference_attention(query, kv, tables, positions, scores)
        batch = decode_batch(positions, tables)
        attention = DecodeAttention(len(lengths), heads, kv, bounds)
        outputs = []
        for limit in (1, 2, 5, 16):
            out = torch.full(query.shape, float("nan"), dtype=torch.float32, device=DEVICE)
            attention._outs.fill_(float("nan"))
            attention.plan(batch, window=window, limit=limit)
            attention(query, kv, batch, scores, out)
            outputs.append(out)
        edges = split_bounds(max(lengths))
        chunks = [(row, position, 1, row) for row, position in enumerate(positions)]
        out = torch.full(query.shape, float("nan"), dtype=torch.float32, device=DEVICE)
        tiles = on_device(plan_prefill_tiles(chunks, heads // kv_heads, edges, window))
        prefill_attention(query, kv, batch.block_tables, bounds, tiles, scores, out)
        outputs.append(out)
        count = lengths[0]
        many = torch.randn(count, heads, dim, dtype=dtype, device=DEVICE)
        many[-1] = query[0]
        whole = torch.full(many.shape, float("nan"), dtype=torch.float32, device=DEVICE)
        tiles = on_device(plan_prefill_tiles([(0, 0, count, 0)], heads // kv_heads, edges, window))
        prefill_attention(many, kv, batch.block_tables, bounds, tiles, scores, whole)
        error = float((outputs[0].double() - expected).norm() / expected.norm())
        worst = max(worst, error if math.isfinite(error) else 9.0)
        equal = [bool(torch.equal(outputs[0], other)) for other in outputs[1:]]
        equal.append(bool(torch.equal(whole[-1], outputs[0][0])) and bool(whole.isfinite().all()))
        cases += 1
        if not all(equal):
            differs.append(
                f"{case} {heads}/{kv_heads}/{dim} {dtype} window {window} cap {cap}: {equal} error {error:.1e}"
            )
        same = same and all(equal)
    report["attention"] = {"cases": cases, "worst_relative_error": worst, "same_bits": same, "differs": differs}


def check_rows(report: Report) -> None:
    torch.manual_seed(1)
    rows, size = 33, 4_096
    x = torch.randn(rows, size, dtype=torch.bfloat16, device=DEVICE)
    plus = torch.randn_like(x)
    weight = torch.randn(size, dtype=torch.bfloat16, device=DEVICE)
    total, out = x.clone(), torch.empty_like(x)
    rms_norm(total, weight, 1e-5, out, plus=plus)
    sums = (x + plus).double()
    expected = sums * (sums.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
    errors = {"rms_norm": float((out.double() - expected).norm() / expected.norm())}
    gate_up = torch.randn(rows, 2 * 14_336, dtype=torch.bfloat16, device=DEVICE)
    acted = torch.empty(rows, 14_336, dtype=torch.bfloat16, device=DEVICE)
    silu_mul(gate_up, acted)
    gate, up = gate_up.double().chunk(2, -1)
    expected = torch.nn.functional.silu(gate) * up
    errors["silu_mul"] = float((acted.double() - expected).norm() / expected.norm())
    data = torch.zeros(40, 2, 2, KV_HEADS, 64, DIM, dtype=torch.bfloat16, device=DEVICE)
    kv = PagedKv(data, 1)
    qkv = torch.randn(rows, (HEADS + 2 * KV_HEADS) * DIM, dtype=torch.bfloat16, device=DEVICE)
    query = torch.empty(rows, HEADS, DIM, dtype=torch.bfloat16, device=DEVICE)
    positions = torch.randint(0, 64, (rows,), dtype=torch.int32, device=DEVICE)
    tables = torch.randperm(40, device=DEVICE)[:rows, None].to(torch.int32)
    cosines, sines = rotary_tables(64)
    weights = torch.rand(DIM, device=DEVICE, dtype=torch.bfloat16), torch.rand(DIM, device=DEVICE, dtype=torch.bfloat16)
    each = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    rotate_and_append(qkv, query, kv, cosines, sines, positions, each, tables, norms=weights, eps=1e-6)
    parts = qkv.double().view(rows, -1, DIM)
    q, k, v = parts[:, :HEADS], parts[:, HEADS : HEADS + KV_HEADS], parts[:, HEADS + KV_HEADS :]

    def turned(y: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        y = y * (y.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * norm.double()
        first, second = y.chunk(2, -1)
        c, s = (table[positions.long()][:, None].double() for table in (cosines, sines))
        return torch.cat([first * c - second * s, second * c + first * s], -1)

    held = data[tables[:, 0].long(), 1, :, :, positions.long()]
    for name, got, want in (
        ("query", query, turned(q, weights[0])),
        ("key", held[:, 0], turned(k, weights[1])),
        ("value", held[:, 1], v),
    ):
        errors[name] = float((got.double() - want).norm() / want.norm())
    report["rows"] = errors


def rotary_tables(context: int) -> tuple[torch.Tensor, torch.Tensor]:
    inverse = 1.0 / 500_000.0 ** (torch.arange(0, DIM, 2, device=DEVICE).float() / DIM)
    angles = torch.outer(torch.arange(context, device=DEVICE).float(), inverse)
    return angles.cos(), angles.sin()


def tiles_to_try(rows: int) -> list[LinearTile]:
    tall = 16 if rows <= 16 else 32 if rows <= 32 else 64
    tiles = [tile_for(rows, *shape) for shape in SHAPES.values()]
    for outputs, inputs, warps, stages in (
        (64, 256, 4, 3), (64, 128, 4, 4), (64, 128, 4, 5), (64, 64, 4, 6),
        (128, 128, 8, 4), (128, 64, 4, 5), (128, 64, 8, 5),
    ):  # fmt: skip
        tiles.append(LinearTile(outputs, tall, inputs, warps, stages))
    for outputs, inputs, warps, stages in (
        (32, 256, 4, 4),
        (16, 256, 2, 5),
        (16, 512, 4, 3),
        (32, 128, 2, 6),
        (64, 128, 4, 4),
    ):
        tiles.append(LinearTile(outputs, tall, inputs, warps, stages, swapped=False))
    if rows > 64:
        tiles += [
            LinearTile(128, 128, 64, 8, 4),
            LinearTile(64, 128, 64, 4, 4),
            LinearTile(128, 128, 64, 8, 4, swapped=False),
        ]
    return list(dict.fromkeys(tiles))


def time_linears(report: Report, counts: tuple[int, ...]) -> None:
    """Every tile's bits beside the library's at 2,048 rows, and the quickest exact one."""
    table: Report = {}
    for name, (outputs, inputs) in SHAPES.items():
        torch.manual_seed(2)
        copies = max(2, int(400e6 // (outputs * inputs * 2)) + 1)
        weights = [torch.randn(outputs, inputs, device=DEVICE, dtype=torch.bfloat16) * 0.02 for _ in range(copies)]
        x = torch.randn(2_048, inputs, device=DEVICE, dtype=torch.bfloat16)
        library = x @ weights[0].t()
        for rows in counts:
            found: list[tuple[float, str]] = []
            wrong = []
            out = torch.empty(rows, outputs, device=DEVICE, dtype=torch.bfloat16)
            for tile in tiles_to_try(rows):
                try:
                    linear(x[:rows], weights[0], out, tile=tile)
                    if not torch.equal(out, library[:rows]):
                        wrong.append(str(tile))
                        continue
                    took = graph_us(
                        lambda i, t=tile, y=out, w=weights, r=rows: linear(x[:r], w[i], y, tile=t), copies, 5
                    )
                    found.append((round(took, 2), str(tile)))
                except Exception as error:  # out of shared memory: not a tile for this shape
                    wrong.append(f"{tile}: {type(error).__name__}")
            theirs = graph_us(lambda i, y=out, w=weights, r=rows: torch.mm(x[:r], w[i].t(), out=y), copies, 5)
            exact = bool(torch.equal(x[:rows] @ weights[0].t(), library[:rows]))
            table[f"{name} {rows}"] = {
                "best": sorted(found)[:3],
                "library_us": round(theirs, 2),
                "library_exact": exact,
                "not_exact": wrong,
                "floor_us": round(outputs * inputs * 2 / 4.54e6, 1),
            }
            best = sorted(found)[:1]
            print(name, rows, best, "library", round(theirs, 1), exact, "not exact", len(wrong), flush=True)
        del weights
    report["linears"] = table


DECODES = {
    "512 x 1152": (512, 512, 0, 1_152),
    "128 x 1152": (128, 128, 0, 1_152),
    "32 x 1152": (32, 32, 0, 1_152),
    "1 x 1152": (1, 1, 0, 1_152),
    "1 x 32768": (1, 1, 0, 32_768),
    "32 x 16 on 8192, +160": (512, 32, 8_192, 160),
    "512 on 8192, +160": (512, 1, 8_192, 160),
}
"""(requests, prefixes that they share, tokens of a prefix, tokens of each request's own)."""


def random_kv(blocks: int, layers: int, in_fp8: bool) -> torch.Tensor:
    shape = (blocks, layers, 2, KV_HEADS, 64, DIM)
    if not in_fp8:
        return torch.randn(shape, dtype=torch.bfloat16, device=DEVICE)
    # Any byte is a value, but for two that are NaN.
    data = torch.randint(0, 127, (*shape[:-1], DIM + 4), dtype=torch.uint8, device=DEVICE)
    data += 128 * torch.randint(0, 2, data.shape, dtype=torch.uint8, device=DEVICE)
    data.flatten(-2).view(torch.float32)[..., 64 * DIM // 4 :] = 2.0**-7
    return data


def time_attention(report: Report) -> None:
    report["decode_attention"] = time_decodes(False)
    report["decode_attention_8_bits"] = time_decodes(True)
    time_prefill(report)


def time_decodes(in_fp8: bool) -> Report:
    """Decode attention, and the Triton kernel alone beside it."""
    figures: Report = {}
    scores = Scores(DIM**-0.5)
    vector = DIM + 4 if in_fp8 else 2 * DIM
    for name, (requests, groups, prefix, own) in DECODES.items():
        random.seed(0)
        lengths = [prefix + own] * requests
        shared = [(row % groups, prefix // 64) for row in range(requests)]
        blocks = groups * (prefix // 64) + requests * (-(-own // 64)) + 1
        copies = max(1, min(8, int(40e9 // (blocks * 2 * KV_HEADS * 64 * vector))))
        data = random_kv(blocks, copies, in_fp8)
        tables = random_tables(lengths, shared, blocks)
        batch = decode_batch([length - 1 for length in lengths], tables)
        bounds = split_bounds_on(DEVICE, 131_072 if requests == 1 else max(lengths) + 512)
        query = torch.randn(requests, HEADS, DIM, dtype=torch.bfloat16, device=DEVICE)
        out = torch.empty_like(query)
        row: Report = {}
        for kind, given in (("", scores), (" Triton", None)):
            for limit in (1, 16) if prefix else (1,):
                attention = DecodeAttention(requests, HEADS, PagedKv(data, 0), bounds, scores=given)
                planned = graph_us(lambda _, a=attention, n=limit: a.plan(batch, limit=n), 4)
                attention.plan(batch, limit=limit)
                took = graph_us(lambda i, a=attention, d=data: a(query, PagedKv(d, i % copies), batch, scores, out), 8)
                merge = graph_us(lambda _, a=attention: a.merge(query, batch, scores, out), 8)
                row[f"limit {limit}{kind}: us, merge of it, plan apart"] = [
                    round(value, 1) for value in (took, merge, planned)
                ]
        unique = groups * prefix + requests * own
        row["floor_us"] = round(unique * 2 * KV_HEADS * vector / 4.54e6, 1)
        figures[name] = row
        print(name, "8 bits" if in_fp8 else "bf16", row, flush=True)
        del data
    return figures


def time_prefill(report: Report) -> None:
    tokens = 32_768
    q = torch.randn(tokens, HEADS, DIM, dtype=torch.bfloat16, device=DEVICE)
    data = torch.randn(tokens // 64, 1, 2, KV_HEADS, 64, DIM, dtype=torch.bfloat16, device=DEVICE)
    tables = torch.randperm(tokens // 64, device=DEVICE)[None].to(torch.int32)
    bounds, out = split_bounds_on(DEVICE, tokens), torch.empty_like(q)
    flops = 4 * HEADS * DIM * tokens * tokens / 2
    prefill: Report = {}
    for rows, warps, stages in ((64, 4, 2), (64, 4, 3), (128, 8, 2), (128, 8, 3)):
        tiles = on_device(
            plan_prefill_tiles([(0, 0, tokens, 0)], HEADS // KV_HEADS, split_bounds(tokens), tile_rows=rows)
        )
        took = graph_us(
            lambda _, w=warps, s=stages, t=tiles: prefill_attention(
                q, PagedKv(data, 0), tables, bounds, t, Scores(DIM**-0.5), out, warps=w, stages=s
            ),
            1,
            3,
        )
        prefill[f"{rows} rows, {warps} warps, {stages} stages"] = round(flops / took / 1e6)
    k, v = (data[tables[0].long(), 0, part].transpose(1, 2).reshape(tokens, KV_HEADS, DIM) for part in range(2))
    heads_first = [value.transpose(0, 1)[None] for value in (q, k, v)]
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel([backend]):
            took = graph_us(
                lambda _: torch.nn.functional.scaled_dot_product_attention(
                    *heads_first, is_causal=True, enable_gqa=True
                ),
                1,
                3,
            )
        prefill[str(backend)] = round(flops / took / 1e6)
    report["prefill_tflops"] = prefill
    print(prefill, flush=True)


class DecodeStep:
    """Decode steps of Llama 3.1 8B with random weights, built of the kernels alone: what a captured graph can reach."""

    def __init__(self) -> None:
        torch.manual_seed(3)

        def weight(outputs: int, inputs: int) -> torch.Tensor:
            return torch.randn(outputs, inputs, device=DEVICE, dtype=torch.bfloat16) * 0.02

        self.layers = [{name: weight(*SHAPES[name]) for name in ("qkv", "o", "gate_up", "down")} for _ in range(LAYERS)]
        self.head = weight(*SHAPES["head"])
        self.embedding = weight(128_256, 4_096)
        self.norm = torch.ones(4_096, device=DEVICE, dtype=torch.bfloat16)
        self.rotary = rotary_tables(16_384)

    def product(self, x: torch.Tensor, weight: torch.Tensor, limit: int) -> torch.Tensor:
        return linear(x, weight) if len(x) <= limit else x @ weight.t()

    def time(self, requests: int, groups: int, prefix: int, own: int, limit: int) -> float:
        """ms a step. `limit`: up to so many rows by our own linears."""
        random.seed(0)
        lengths = [prefix + own] * requests
        blocks = groups * (prefix // 64) + requests * (-(-own // 64)) + 1
        shared = [(row % groups, prefix // 64) for row in range(requests)]
        data = torch.empty(blocks, LAYERS, 2, KV_HEADS, 64, DIM, dtype=torch.bfloat16, device=DEVICE).normal_()
        batch = decode_batch([length - 1 for length in lengths], random_tables(lengths, shared, blocks))
        bounds = split_bounds_on(DEVICE, max(lengths) + 512)
        attention = DecodeAttention(requests, HEADS, PagedKv(data, 0), bounds)
        tokens = torch.randint(0, 128_256, (requests,), device=DEVICE)
        query = torch.empty(requests, HEADS, DIM, dtype=torch.bfloat16, device=DEVICE)
        mixed, normal = torch.empty_like(query), torch.empty(requests, 4_096, dtype=torch.bfloat16, device=DEVICE)
        acted = torch.empty(requests, 14_336, dtype=torch.bfloat16, device=DEVICE)
        scores = Scores(DIM**-0.5)

        def step(_: int) -> None:
            attention.plan(batch)
            h = self.embedding.index_select(0, tokens)
            delta = None
            for index, layer in enumerate(self.layers):
                kv = PagedKv(data, index)
                rms_norm(h, self.norm, 1e-5, normal, plus=delta)
                qkv = self.product(normal, layer["qkv"], limit)
                rotate_and_append(qkv, query, kv, *self.rotary, batch.positions, batch.table_rows, batch.block_tables)
                attention(query, kv, batch, scores, mixed)
                delta = self.product(mixed.view(requests, -1), layer["o"], limit)
                rms_norm(h, self.norm, 1e-5, normal, plus=delta)
                silu_mul(self.product(normal, layer["gate_up"], limit), acted)
                delta = self.product(acted, layer["down"], limit)
            rms_norm(h, self.norm, 1e-5, normal, plus=delta)
            tokens.copy_(self.product(normal, self.head, limit).argmax(-1))

        step(0)
        return graph_us(step, 1, 9) / 1e3


def time_steps(report: Report) -> None:
    step = DecodeStep()
    figures: Report = {}
    for name, arguments in {
        "1 x 1152": (1, 1, 0, 1_152, 64),
        "32 x 1152": (32, 32, 0, 1_152, 64),
        "64 x 1152": (64, 64, 0, 1_152, 64),
        "512 x 1152": (512, 512, 0, 1_152, 64),
        "32 x 16 on 8192, +160": (512, 32, 8_192, 160, 64),
    }.items():
        figures[name] = round(step.time(*arguments), 3)
        print("step ms", name, figures[name], flush=True)
        torch.cuda.empty_cache()
    report["decode_step_ms"] = figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--only", default="check,attention,steps,linears", help="parts, separated by commas")
    parser.add_argument("--rows", default="1,16,32,64,128,256", help="row counts of linears")
    options = parser.parse_args()
    report: Report = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    parts = options.only.split(",")
    with torch.inference_mode():
        if "check" in parts:
            check_rows(report)
            check_attention(report)
            print(json.dumps(report, indent=1), flush=True)
        if "attention" in parts:
            time_attention(report)
        if "steps" in parts:
            time_steps(report)
        if "linears" in parts:
            time_linears(report, tuple(map(int, options.rows.split(","))))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
