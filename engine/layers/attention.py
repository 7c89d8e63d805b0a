"""Causal attention over paged KV with grouped query heads, in splits of fixed length (see `attention_plan`).

With a sliding window (in the plan), a soft cap on scores (Gemma 2), sinks (gpt-oss) and values that are part of the
keys (MLA's latent form). Only stock PyTorch operations: the reference that faster kernels are held to. Scores and sums
are fp32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.kv_memory import KvMemory
from engine.layers.attention_plan import SPLIT_TOKENS, AttentionPlan, Tiles, padded_rows

SLAB_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}
"""Pairs are computed as many at a time as have their keys and scores in this: on the CPU, what its cache holds."""


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
    taken = query[: tiles.count] if tiles.rows is None else query.index_select(0, tiles.rows)
    # [tiles, KV heads, tokens x query heads of the KV head, head dim], padded to whole row multiples
    q = query.new_zeros(tiles.count, kv_heads, padded_rows(used), dim)
    shape = tiles.count, kv_heads, tiles.tokens, group
    torch.mul(
        taken.view(tiles.count, tiles.tokens, kv_heads, group, dim).transpose(1, 2),
        scoring.scale,
        out=q[:, :, :used].view(*shape, dim),
    )
    output = _joined(q, tiles, memory, layer, scoring)
    flat = output[:, :, :used].view(*shape, -1).transpose(1, 2).reshape(-1, heads * scoring.value_dim)
    return flat if tiles.output is None else flat.index_select(0, tiles.output)


def _joined(q: torch.Tensor, tiles: Tiles, memory: KvMemory, layer: int, scoring: Scoring) -> torch.Tensor:
    """[tiles, KV heads, rows, value dim] of queries [tiles, KV heads, rows, head dim]: all splits of each as one."""
    folding = tiles.folding
    output, level = _partials(q if folding is None else q.index_select(0, folding.tile), tiles, memory, layer, scoring)
    if level is None:
        return output
    if folding is None:
        assert scoring.sinks is not None
        return (output.float() / (_sinks(scoring.sinks, level, q.shape) + 1.0)).to(q.dtype)
    # Every split of a query is brought to the largest of its levels; then the tree adds them up, weights beside values.
    # A query's only split weighs exactly 1: it comes out as it does where no tile has more than one.
    top = level.index_select(0, folding.spread).view(tiles.count, -1, *level.shape[1:]).amax(1)
    weight = level.sub_(top.index_select(0, folding.tile)).exp_()
    nodes = torch.cat([output.float().mul_(weight), weight], -1)
    for fold in folding.levels:
        nodes.index_add_(0, fold.left, nodes.index_select(0, fold.right))
    nodes = nodes.index_select(0, folding.final)
    total = nodes[..., -1:]
    if scoring.sinks is not None:
        total = _sinks(scoring.sinks, top, q.shape).add_(total)
    return (nodes[..., :-1] / total).to(q.dtype)


def _sinks(sinks: torch.Tensor, level: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The weights of the sinks beside those of keys with this level, [tiles, KV heads, rows, 1]."""
    _, kv_heads, rows, _ = shape
    # Rows are query heads of the KV head for each token in turn; what is padding gets any.
    group = len(sinks) // kv_heads
    heads = sinks.view(kv_heads, group).repeat(1, -(-rows // group))[:, :rows]
    return heads.view(kv_heads, rows, 1).sub(level).exp_()


def _partials(
    q: torch.Tensor, tiles: Tiles, memory: KvMemory, layer: int, scoring: Scoring
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """For each pair its queries' outputs, [pairs, KV heads, rows, value dim], and if they are to be joined with others
    their levels in fp32, [pairs, KV heads, rows, 1]: the logarithm of the sum of what scores are exponents of.
    """
    pairs, kv_heads, rows, dim = q.shape
    slab = max(1, SLAB_BYTES[q.device.type] // (kv_heads * (rows + tiles.gather.shape[0] * dim) * SPLIT_TOKENS * 4))
    levels = tiles.folding is not None or scoring.sinks is not None
    if pairs <= slab:
        return _slab(q, tiles.gather, tiles.mask, memory, layer=layer, scoring=scoring, levels=levels)
    parts = [
        _slab(
            q[at : at + slab],
            tiles.gather[:, at : at + slab],
            tiles.mask[at : at + slab],
            memory,
            layer=layer,
            scoring=scoring,
            levels=levels,
        )
        for at in range(0, pairs, slab)
    ]
    outputs, most = zip(*parts, strict=True)
    return torch.cat(outputs), torch.cat(most) if levels else None


def _slab(
    q: torch.Tensor,
    gather: torch.Tensor,
    mask: torch.Tensor,
    memory: KvMemory,
    *,
    layer: int,
    scoring: Scoring,
    levels: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    pairs, kv_heads, rows, dim = q.shape
    batch = pairs * kv_heads
    held = memory.gather(layer, gather.reshape(-1)).view(-1, batch, SPLIT_TOKENS, dim)
    # A latent's keys hold its values: those are the first elements of the same vectors.
    keys, values = held[0], held[-1]
    scores = memory.scratch("scores", batch * rows * SPLIT_TOKENS).view(batch, rows, SPLIT_TOKENS)
    torch.bmm(q.view(batch, rows, dim), keys.transpose(1, 2), out=scores)
    scores = scores.float()
    if scoring.soft_cap is not None:
        scores = scores.div_(scoring.soft_cap).tanh_().mul_(scoring.soft_cap)
    if mask.shape[0]:
        scores.view(pairs, kv_heads, rows, SPLIT_TOKENS)[: mask.shape[0]].add_(mask)
    most = scores.amax(-1, keepdim=True) if levels else None
    weights = torch.softmax(scores, -1, out=scores)
    if most is not None:
        # The largest weight is that of the largest score: 1 in the sum that all were divided by.
        most = most.sub_(weights.amax(-1, keepdim=True).log_()).view(pairs, kv_heads, rows, 1)
    if scoring.value_dim < dim:
        values = values[..., : scoring.value_dim]
    output = torch.bmm(weights.to(q.dtype), values)
    return output.view(pairs, kv_heads, rows, scoring.value_dim), most
