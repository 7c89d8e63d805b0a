"""Causal attention over paged KV with grouped query heads, in splits of fixed length (see `attention_plan`).

With a sliding window (in the plan), a soft cap on scores (Gemma 2), sinks (gpt-oss) and values that are part of the
keys (MLA's latent form). Only stock PyTorch operations: the reference that faster kernels are held to. Scores and sums
are fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.kv_memory import KvMemory
from engine.layers.attention_plan import SPLIT_TOKENS, AttentionPlan, Level, Tiles, padded_rows

SLAB_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}
"""Pairs are computed as many at a time as have their keys and scores in this: on the CPU, what its cache holds."""
_LEAST = -1e30


@dataclass(frozen=True)
class Scoring:
    """How scores are made of queries and keys: `scale` · q·k, then `soft_cap` · tanh(score / `soft_cap`) if given.

    `sinks` [heads], fp32: a further score for each head, which takes its share of the weights and has no value
    (Xiao et al. 2023; gpt-oss learns it). `value_dim`: how many elements of a value count; in a latent group, of a key.
    """

    scale: float
    value_dim: int
    soft_cap: float | None = None
    sinks: torch.Tensor | None = None


def attend(
    query: torch.Tensor, entries: torch.Tensor, plan: AttentionPlan, memory: KvMemory, *, layer: int, scoring: Scoring
) -> torch.Tensor:
    """Store the rows' keys and values, and attend to the keys up to each row's own.

    `query` is [rows, heads, head dim] and `entries` what is stored, [rows, KV heads · parts, head dim] (first all keys,
    then all values), both turned by rotary; `layer` counts within the memory's group. Returns
    [rows, heads · value dim]; rows beyond the plan's tokens are padding and come out as zeros.
    """
    memory.store(layer, plan.write, entries[: plan.tokens].reshape(-1, memory.group.head_dim))
    query = query * scoring.scale
    outputs = [_tiles(query, tiles, memory, layer, scoring) for tiles in plan.tiles]
    padding = query.shape[0] - plan.tokens
    if padding:
        outputs.append(query.new_zeros(padding, query.shape[1] * scoring.value_dim))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _tiles(query: torch.Tensor, tiles: Tiles, memory: KvMemory, layer: int, scoring: Scoring) -> torch.Tensor:
    heads, dim = query.shape[1:]
    kv_heads = memory.group.kv_heads
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
    output, total, top = _partials(q, tiles, memory, layer, scoring)
    if scoring.sinks is not None:
        output, total = _with_sinks(output, total, top, scoring.sinks.view(kv_heads, 1, group), used)
    output = output.div_(total).to(query.dtype)
    dim = scoring.value_dim
    result = output[:, :, :used].view(-1, kv_heads, tiles.tokens, group, dim).transpose(1, 2)
    flat = result.reshape(-1, heads * dim)
    return flat if tiles.output is None else flat[tiles.output]


def _with_sinks(
    output: torch.Tensor, total: torch.Tensor, top: torch.Tensor, sinks: torch.Tensor, used: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Let each head's sink [KV heads, 1, query heads of the KV head] take its share; rows from `used` are padding."""
    kv_heads, _, group = sinks.shape
    score = top.new_zeros(1, kv_heads, top.shape[2], 1)
    score[:, :, :used] = sinks.expand(kv_heads, used // group, group).reshape(1, kv_heads, used, 1)
    most = torch.maximum(top, score)
    shrink = top.sub(most).exp_()
    return output.mul_(shrink), total.mul(shrink).add_(score.sub(most).exp_())


def _partials(
    q: torch.Tensor, tiles: Tiles, memory: KvMemory, layer: int, scoring: Scoring
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weighted sums [tiles, KV heads, rows, value dim]; sums of weights and largest scores, [tiles, KV heads, rows, 1].

    All fp32; weights are relative to the largest score.
    """
    pairs, kv_heads, rows, dim = q.shape
    slab = max(1, SLAB_BYTES[q.device.type] // (kv_heads * (rows + dim) * SPLIT_TOKENS * 4))
    if pairs <= slab:
        parts = [_slab(q, tiles.gather, tiles.masked, memory, layer=layer, scoring=scoring)]
    else:
        per_pair = len(tiles.gather) // pairs
        parts = [
            _slab(
                q[at : at + slab],
                tiles.gather[at * per_pair : (at + slab) * per_pair],
                tiles.masked[at : at + slab],
                memory,
                layer=layer,
                scoring=scoring,
            )
            for at in range(0, pairs, slab)
        ]
    output, total, most = parts[0] if len(parts) == 1 else (torch.cat(part) for part in zip(*parts, strict=True))
    if not tiles.levels:
        return output, total, most
    # Every split of a query is brought to the largest of its maxima, then added up by the tree.
    assert tiles.pair_tile is not None
    assert tiles.final is not None
    top = _fold(most, tiles.levels, torch.maximum)[tiles.final]
    weight = most.sub_(top[tiles.pair_tile]).exp_()
    output = _fold(output.mul_(weight), tiles.levels, torch.add)
    total = _fold(total.mul_(weight), tiles.levels, torch.add)
    return output[tiles.final], total[tiles.final], top


def _slab(
    q: torch.Tensor, gather: torch.Tensor, masked: torch.Tensor, memory: KvMemory, *, layer: int, scoring: Scoring
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    pairs, kv_heads, rows, dim = q.shape
    batch = pairs * kv_heads
    keys = memory.gather(memory.keys[layer], gather).view(batch, SPLIT_TOKENS, dim)
    scores = memory.scratch("scores", batch * rows * SPLIT_TOKENS).view(batch, rows, SPLIT_TOKENS)
    torch.bmm(q.reshape(batch, rows, dim), keys.transpose(1, 2), out=scores)
    scores = scores.float().view(pairs, kv_heads, rows, SPLIT_TOKENS)
    if scoring.soft_cap is not None:
        scores = scores.div_(scoring.soft_cap).tanh_().mul_(scoring.soft_cap)
    if len(masked):
        scores[: len(masked)].masked_fill_(masked, -torch.inf)
    most = scores.amax(-1, keepdim=True).clamp_min_(_LEAST)
    weights = scores.sub_(most).exp_()
    total = weights.sum(-1, keepdim=True)
    if memory.group.kind == "latent":
        values = keys[..., : scoring.value_dim]
    else:
        values = memory.gather(memory.values[layer], gather).view(batch, SPLIT_TOKENS, dim)
    output = torch.bmm(weights.view(batch, rows, SPLIT_TOKENS).to(q.dtype), values).float()
    return output.view(pairs, kv_heads, rows, scoring.value_dim), total, most


def _fold(nodes: torch.Tensor, levels: tuple[Level, ...], join: Callable[..., torch.Tensor]) -> torch.Tensor:
    for level in levels:
        joined = nodes.index_select(0, level.left)
        pairs = joined[: len(level.right)]
        join(pairs, nodes.index_select(0, level.right), out=pairs)
        nodes = joined
    return nodes
