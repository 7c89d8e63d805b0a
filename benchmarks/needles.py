"""Attention to a few keys that must win among very many: with keys and values as they are, and as KV in 8 bits."""

from __future__ import annotations

import math

import torch

from engine.quantization import fp8


def needles(winners: int, margin: float, keys: int = 131_072, dim: int = 128, trials: int = 4) -> dict[str, float]:
    """`winners` keys that win against all others together by `margin` nats, in float64: the largest difference, over
    trials, of their weight and of the output, the latter relative."""
    weight_off, output_off = 0.0, 0.0
    for trial in range(trials):
        chance = torch.Generator().manual_seed(trial)
        query = torch.randn(dim, generator=chance).bfloat16().double()
        k = torch.randn(keys, dim, generator=chance).bfloat16()
        v = torch.randn(keys, dim, generator=chance).bfloat16()
        at = torch.randperm(keys, generator=chance)[:winners]
        scale = dim**-0.5
        others = (k.double() @ query * scale).index_fill(0, at, -torch.inf).logsumexp(0)
        # Each wins by its part of the margin. Beside the query's direction they differ as any keys do.
        score = (others + margin - math.log(winners)) / scale
        beside = k[at].double() if winners > 1 else torch.zeros(1, dim, dtype=torch.float64)
        beside -= (beside @ query / (query @ query))[:, None] * query
        k[at] = (beside + query * (score / (query @ query))).bfloat16()
        exact = (k.double() @ query * scale).softmax(0)
        expected = exact @ v.double()
        stored_k, stored_v = (_stored(vectors) for vectors in (k, v))
        weights = (stored_k @ query * scale).softmax(0)
        weight_off = max(weight_off, float((weights[at].sum() - exact[at].sum()).abs()))
        output_off = max(output_off, float((weights @ stored_v - expected).norm() / expected.norm()))
    return {
        "keys": keys,
        "winners": winners,
        "margin_nats": margin,
        "weight_off": round(weight_off, 5),
        "output_off": round(output_off, 5),
    }


def _stored(vectors: torch.Tensor) -> torch.Tensor:
    """Vectors as KV in 8 bits has them, in float64: e4m3, each with a scale that is a power of two."""
    _, scales = fp8.encode(vectors)
    scales = torch.exp2(torch.ceil(torch.log2(scales.double())))
    return (vectors.double() / scales).to(torch.float8_e4m3fn).double() * scales
