"""Attention over latents: `python -m benchmarks.gpu.latents`: µs, and the share of a device's reading rate or TFLOP/s.

The sizes are DeepSeek-V2-Lite's. Entries are read from a pool larger than the L2 cache. A decode's bytes are those of
its entries alone; queries, results of splits and their merging count as time.
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.gpu.kernels import DEVICE, decode_batch, graph_us, on_device
from engine.kernels.attention_splits import split_bounds, split_bounds_on
from engine.kernels.latent_attention import LatentDecode, prefill_latents
from engine.kernels.paged_kv import LatentKv, Scores
from engine.kernels.prefill_attention import plan_prefill_tiles

READ_TB_S = 4.54
"""What an H200 was seen to read."""
HEADS, RANK, ROPE, VALUE, LAYERS = 16, 512, 64, 128, 27
DECODES = ((1, 1_024), (1, 8_192), (32, 1_152), (32, 4_096), (128, 1_152), (512, 1_152))
PROMPTS = ((8_192, 0), (8_192, 24_576))


def pool(blocks: int) -> list[LatentKv]:
    data = torch.randn(blocks, LAYERS, 1, 1, 64, RANK + ROPE, dtype=torch.bfloat16, device=DEVICE)
    values = torch.randn(HEADS, RANK, VALUE, dtype=torch.bfloat16, device=DEVICE)
    return [LatentKv(data, layer, values) for layer in range(LAYERS)]


def time_decode(rows: int, tokens: int) -> None:
    each = -(-tokens // 64)
    layers = pool(rows * each)
    tables = torch.randperm(rows * each).view(rows, each).tolist()
    batch = decode_batch([tokens - 1] * rows, tables)
    attention = LatentDecode(rows, HEADS, layers[0], split_bounds_on(DEVICE, 40_960))
    query = torch.randn(rows, HEADS, RANK + ROPE, dtype=torch.bfloat16, device=DEVICE)
    out = torch.empty(rows, HEADS, VALUE, dtype=torch.bfloat16, device=DEVICE)
    attention.plan(batch)
    took = graph_us(lambda at: attention(query, layers[at % LAYERS], batch, Scores(0.1), out, ahead=True), LAYERS)
    rate = rows * tokens * (RANK + ROPE) * 2 / took / 1e6
    print(f"decode {rows} x {tokens}: {took:.1f} us, {rate:.2f} TB/s, {100 * rate / READ_TB_S:.0f} %", flush=True)


def time_prompt(tokens: int, start: int) -> None:
    each = (start + tokens) // 64
    layers = pool(each)
    table = torch.randperm(each).to(DEVICE, torch.int32)[None]
    query = torch.randn(tokens, HEADS, RANK + ROPE, dtype=torch.bfloat16, device=DEVICE)
    out = torch.empty(tokens, HEADS, VALUE, dtype=torch.bfloat16, device=DEVICE)
    tiles = on_device(plan_prefill_tiles([(0, start, tokens, 0)], HEADS, split_bounds(start + tokens)))
    bounds = split_bounds_on(DEVICE, start + tokens)
    took = graph_us(
        lambda at: prefill_latents(query, layers[at % LAYERS], table, bounds, tiles, Scores(0.1), out), 2, replays=3
    )
    pairs = tokens * start + tokens * tokens / 2
    rate = 2 * pairs * HEADS * (2 * RANK + ROPE) / took / 1e6
    print(f"prompt {tokens} behind {start}: {took:.0f} us, {rate:.0f} TFLOP/s", flush=True)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.manual_seed(0)
    for rows, tokens in DECODES:
        time_decode(rows, tokens)
    for tokens, start in PROMPTS:
        time_prompt(tokens, start)


if __name__ == "__main__":
    main()
