"""Causal attention over paged KV with grouped query heads, in splits of fixed length (see `attention_plan`).

Only stock PyTorch operations: the reference that faster kernels are held to. Scores and sums are fp32.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.kv_memory import KvMemory
from engine.layers.attention_plan import SPLIT_TOKENS, AttentionPlan, Level, Tiles, padded_rows

SLAB_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}
"""Pairs are computed as many at a time as have their keys and scores in this: on the CPU, what its cache holds."""
_LEAST = -1e30


def attend(qkv: torch.Tensor, plan: AttentionPlan, memory: KvMemory, layer: int, heads: int) -> torch.Tensor:
    """Store the rows' keys and values, and attend to all keys up to each row's own.

    `qkv` is [rows, heads + 2 · KV heads, head dim], turned by rotary; `layer` counts within the memory's group. Returns
    [rows, heads · head dim]; rows beyond the plan's tokens are padding and come out as zeros.
    """
    kv_heads, dim = memory.group.kv_heads, memory.group.head_dim
    memory.rows[layer][plan.write] = qkv[: plan.tokens, heads:].reshape(-1, dim)
    query = qkv[:, :heads] * dim**-0.5
    outputs = [_tiles(query, tiles, memory, layer, kv_heads) for tiles in plan.tiles]
    padding = qkv.shape[0] - plan.tokens
    if padding:
        outputs.append(qkv.new_zeros(padding, heads * dim))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _tiles(query: torch.Tensor, tiles: Tiles, memory: KvMemory, layer: int, kv_heads: int) -> torch.Tensor:
    heads, dim = query.shape[1:]
    group = heads // kv_heads
    used = tiles.tokens * group
    rows = padded_rows(used)
    taken = query[: tiles.count] if tiles.rows is None else query[tiles.rows]
    # [tiles, KV heads, tokens x query heads of the KV head, head dim], padded to whole row multiples
    q = query.new_zeros(tiles.count, kv_heads, rows, dim) if rows > used else query.new_empty(0)
    shaped = taken.view(tiles.count, tiles.tokens, kv_heads, group, dim).transpose(1, 2)
    if rows > used:
        q[:, :, :used] = shaped.reshape(tiles.count, kv_heads, used, dim)
    else:
        q = shaped.reshape(tiles.count, kv_heads, rows, dim)
    if tiles.pair_tile is not None:
        q = q[tiles.pair_tile]
    output, total = _partials(q, tiles, memory, layer)
    output = output.div_(total).to(query.dtype)
    result = output[:, :, :used].view(-1, kv_heads, tiles.tokens, group, dim).transpose(1, 2)
    flat = result.reshape(-1, heads * dim)
    return flat if tiles.output is None else flat[tiles.output]


def _partials(q: torch.Tensor, tiles: Tiles, memory: KvMemory, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted sums [tiles, KV heads, rows, head dim] and sums of weights [tiles, KV heads, rows, 1], both fp32."""
    pairs, kv_heads, rows, dim = q.shape
    slab = max(1, SLAB_BYTES[q.device.type] // (kv_heads * (rows + dim) * SPLIT_TOKENS * 4))
    if pairs <= slab:
        parts = [_slab(q, tiles.gather, tiles.masked, memory, layer)]
    else:
        per_pair = len(tiles.gather) // pairs
        parts = [
            _slab(
                q[at : at + slab],
                tiles.gather[at * per_pair : (at + slab) * per_pair],
                tiles.masked[at : at + slab],
                memory,
                layer,
            )
            for at in range(0, pairs, slab)
        ]
    output, total, most = parts[0] if len(parts) == 1 else (torch.cat(part) for part in zip(*parts, strict=True))
    if not tiles.levels:
        return output, total
    # Every split of a query is brought to the largest of its maxima, then added up by the tree.
    assert tiles.pair_tile is not None
    assert tiles.final is not None
    top = _fold(most, tiles.levels, torch.maximum)[tiles.final]
    weight = most.sub_(top[tiles.pair_tile]).exp_()
    output = _fold(output.mul_(weight), tiles.levels, torch.add)
    total = _fold(total.mul_(weight), tiles.levels, torch.add)
    return output[tiles.final], total[tiles.final]


def _slab(
    q: torch.Tensor, gather: torch.Tensor, masked: torch.Tensor, memory: KvMemory, layer: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    pairs, kv_heads, rows, dim = q.shape
    batch = pairs * kv_heads
    keys = memory.gather(memory.keys[layer], gather).view(batch, SPLIT_TOKENS, dim)
    scores = memory.scratch("scores", batch * rows * SPLIT_TOKENS).view(batch, rows, SPLIT_TOKENS)
    torch.bmm(q.reshape(batch, rows, dim), keys.transpose(1, 2), out=scores)
    scores = scores.float().view(pairs, kv_heads, rows, SPLIT_TOKENS)
    if len(masked):
        scores[: len(masked)].masked_fill_(masked, -torch.inf)
    most = scores.amax(-1, keepdim=True).clamp_min_(_LEAST)
    weights = scores.sub_(most).exp_()
    total = weights.sum(-1, keepdim=True)
    values = memory.gather(memory.values[layer], gather).view(batch, SPLIT_TOKENS, dim)
    output = torch.bmm(weights.view(batch, rows, SPLIT_TOKENS).to(q.dtype), values).float()
    return output.view(pairs, kv_heads, rows, dim), total, most


def _fold(nodes: torch.Tensor, levels: tuple[Level, ...], join: Callable[..., torch.Tensor]) -> torch.Tensor:
    for level in levels:
        joined = nodes.index_select(0, level.left)
        pairs = joined[: len(level.right)]
        join(pairs, nodes.index_select(0, level.right), out=pairs)
        nodes = joined
    return nodes
