"""Causal attention over paged KV with grouped query heads, in splits of fixed length (see `attention_plan`).

Supports a sliding window (in the plan), a soft cap on scores (Gemma 2), sinks (gpt-oss) and values that are part of the
keys (MLA's latent form). Uses stock PyTorch operations, which are the reference for faster kernels, and torch's fused
CPU attention where it fits. Scores and sums are fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch

from engine.kernels.paged_kv import Scores
from engine.kv_cache.memory import KvMemory, Tensors
from engine.layers.attention_plan import AttentionPlan, Pairs, Tiles, padded_rows


@dataclass(frozen=True)
class Scoring:
    """How scores follow from queries and keys: `scale` · q·k, then `soft_cap` · tanh(score / `soft_cap`) if given.

    `sinks` [heads], fp32: a further score for each head that takes part in the softmax and has no value (Xiao et al.
    2023; learned in gpt-oss). `value_dim`: how many elements of a value are used; in a latent group, of a key.
    """

    scale: float
    value_dim: int
    soft_cap: float | None = None
    sinks: torch.Tensor | None = None


def attend(
    query: torch.Tensor, entries: torch.Tensor, plan: AttentionPlan, memory: KvMemory, *, layer: int, scoring: Scoring
) -> torch.Tensor:
    """Store the rows' keys and values, and attend to the keys up to each row's own.

    `query`: [rows, heads, head dim]. `entries`: keys and values to store, [rows, KV heads · parts, head dim], first all
    keys. Both are after rotary embedding. `layer`: index within the memory's group. Returns
    [rows, heads · value dim]; rows beyond the plan's tokens are padding and come out as zeros.
    """
    padding = query.shape[0] - plan.tokens
    if padding:
        entries = entries.narrow(0, 0, plan.tokens)
    memory.store(layer, plan.write, entries.reshape(-1, memory.group.head_dim))
    if plan.fast is None:
        outputs = [_tiles(query, tiles, memory, layer, scoring) for tiles in plan.tiles]
    else:
        scores = Scores(scoring.scale, memory.group.window, scoring.soft_cap, scoring.sinks)
        outputs = [plan.fast(query, memory, layer, scores, scoring.value_dim)]
    if padding:
        outputs.append(memory.zeros(padding, query.shape[1] * scoring.value_dim))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _tiles(query: torch.Tensor, tiles: Tiles, memory: KvMemory, layer: int, scoring: Scoring) -> torch.Tensor:
    heads = query.shape[1]
    kv_heads, group = memory.group.kv_heads, heads // memory.group.kv_heads
    count, tokens = tiles.count, tiles.tokens
    output = _joined(_arranged(query, tiles, memory, group), tiles, memory, layer, scoring)
    output = output.narrow(2, 0, tokens * group)
    if tokens > 1:
        output = output.view(count, kv_heads, tokens, group, -1).transpose(1, 2)
    output = output.reshape(count * tokens, heads * scoring.value_dim)
    return output if tiles.output is None else output.index_select(0, tiles.output)


def _arranged(query: torch.Tensor, tiles: Tiles, memory: KvMemory, group: int) -> torch.Tensor:
    """[tiles, KV heads, rows, head dim]: tokens x query heads of the KV head, padded to whole row multiples."""
    count, tokens, kv_heads, dim = tiles.count, tiles.tokens, memory.group.kv_heads, query.shape[2]
    rows = padded_rows(tokens * group, dim)
    if tokens > 1:
        assert tiles.rows is not None
        arranged, real = memory.queries(count, tokens, group, rows)
        query = query.index_select(0, tiles.rows)
        real.copy_(query.view(count, tokens, kv_heads, group, dim).transpose(1, 2))
        return arranged
    if tiles.rows is not None:
        query = query.index_select(0, tiles.rows)
    step, heads = query.stride(0), (kv_heads - 1) * group + rows
    if query.stride(1) == dim and query.storage_offset() % step == 0 and heads * dim <= step:
        # If a token's heads precede its keys and values in one row, the heads behind a KV head's own serve as padding.
        return query.as_strided((count, kv_heads, rows, dim), (step, group * dim, dim, 1))
    arranged, real = memory.queries(count, tokens, group, rows)
    real.copy_(query.narrow(0, 0, count).view(count, kv_heads, group, dim))
    return arranged


def _joined(q: torch.Tensor, tiles: Tiles, memory: KvMemory, layer: int, scoring: Scoring) -> torch.Tensor:
    """Queries [tiles, KV heads, rows, head dim] → outputs [tiles, KV heads, rows, value dim], over all their splits."""
    folding, sinks = tiles.folding, scoring.sinks
    with_lse = folding is not None or sinks is not None
    partials = [_partial(q, pairs, memory, layer, scoring, with_lse=with_lse) for pairs in tiles.pairs]
    output = partials[0][0] if len(partials) == 1 else torch.cat([output for output, _ in partials])
    if not with_lse:
        return output if tiles.final is None else output.index_select(0, tiles.final)
    lse = torch.cat([lse for _, lse in partials if lse is not None])[..., None]
    if folding is None:
        if tiles.final is not None:
            output, lse = output.index_select(0, tiles.final), lse.index_select(0, tiles.final)
        assert sinks is not None
        return (output.float() / (_sinks(sinks, lse, q.shape) + 1.0)).to(q.dtype)
    assert tiles.final is not None
    # Splits are scaled by exp(lse − largest lse of the query); then the tree adds up weights and weighted values. A
    # query's only split weighs exactly 1, as where no tile has more than one.
    top = lse.index_select(0, folding.spread).view(tiles.count, -1, *lse.shape[1:]).amax(1)
    weight = lse.sub(top.index_select(0, folding.tile)).exp_()
    nodes = torch.cat([output.float() * weight, weight], -1)
    for fold in folding.levels:
        nodes.index_add_(0, fold.left, nodes.index_select(0, fold.right))
    nodes = nodes.index_select(0, tiles.final)
    total = nodes[..., -1:]
    if sinks is not None:
        total = _sinks(sinks, top, q.shape).add_(total)
    return (nodes[..., :-1] / total).to(q.dtype)


def _sinks(sinks: torch.Tensor, lse: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The weights of the sinks relative to keys with this log-sum-exp, [tiles, KV heads, rows, 1]."""
    _, kv_heads, rows, _ = shape
    # Rows are the KV head's query heads for each token in turn; padding gets any sink.
    group = len(sinks) // kv_heads
    heads = sinks.view(kv_heads, group).repeat(1, -(-rows // group))[:, :rows]
    return heads.view(kv_heads, rows, 1).sub(lse).exp_()


Partial: TypeAlias = tuple[torch.Tensor, torch.Tensor | None]
"""Outputs of pairs, [pairs, KV heads, rows, value dim], and if they are to be joined with others, the log-sum-exp of
their scores in fp32, [pairs, KV heads, rows]."""


def _partial(
    q: torch.Tensor, pairs: Pairs, memory: KvMemory, layer: int, scoring: Scoring, *, with_lse: bool
) -> Partial:
    keys, values = memory.gather(layer, pairs.gather, pairs.count)
    if pairs.tile is not None:
        q = q.index_select(0, pairs.tile)
    if pairs.fused and scoring.soft_cap is None and scoring.value_dim == keys.shape[-1]:
        # The same in one operation that keeps scores in the core's cache (FlashAttention, Dao et al. 2022).
        output, lse = FUSED(q, keys, values, 0.0, False, attn_mask=pairs.mask, scale=scoring.scale)
        return output, lse
    return _reference(q, (keys, values), pairs, memory, scoring, with_lse=with_lse)


FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def _reference(
    q: torch.Tensor, held: Tensors, pairs: Pairs, memory: KvMemory, scoring: Scoring, *, with_lse: bool
) -> Partial:
    _, kv_heads, rows, dim = q.shape
    batch, length = pairs.count * kv_heads, pairs.length
    keys, values = (vectors.flatten(0, 1) for vectors in held)
    scores = memory.scratch("scores", batch * rows * length).view(batch, rows, length)
    # A copy instead of a view: with overlapping rows the product may be computed in another order.
    scaled = (q * scoring.scale).reshape(batch, rows, dim)
    scores = torch.bmm(scaled, keys.transpose(1, 2), out=scores).float()
    if scoring.soft_cap is not None:
        scores = scores.div_(scoring.soft_cap).tanh_().mul_(scoring.soft_cap)
    if pairs.mask is not None:
        scores.view(pairs.count, kv_heads, rows, length)[: len(pairs.mask)].add_(pairs.mask)
    top = scores.amax(-1) if with_lse else None
    weights = torch.softmax(scores, -1, out=scores)
    output = torch.bmm(weights.to(q.dtype), values[..., : scoring.value_dim]).view(pairs.count, kv_heads, rows, -1)
    if top is None:
        return output, None
    # The largest weight is exp(0) divided by the sum, so lse = largest score − log(largest weight).
    return output, top.sub_(weights.amax(-1).log_()).view(pairs.count, kv_heads, rows)
