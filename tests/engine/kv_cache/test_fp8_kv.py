"""KV in fp8 with a scale for each token and head: near to KV in full, smaller, not shared with another format."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.kv_cache.memory import FP8, KvLayout, KvMemory
from engine.options import KvDtype
from engine.startup.assembly import AssembledEngine, assemble
from engine.startup.options import ReplicaOptions
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from tests.engine.conftest import Families, generate, make_bench

PROMPT = [(7 * i * i + 3 * i) % 131 for i in range(200)]


def memory(dtype: torch.dtype, like: torch.Tensor, heads: int, dim: int, *, latent: bool = False) -> KvMemory:
    layout = KvLayout(dtype)
    for layer in range(2):
        layout.place(layer, heads, dim, latent=latent)
    return KvMemory(layout.groups()[0], 3, like)


@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("like", [torch.zeros(()), torch.zeros((), dtype=torch.bfloat16)])
def test_what_is_read_is_near_to_what_was_stored(like: torch.Tensor, latent: bool):
    torch.manual_seed(0)
    kv = memory(FP8, like, 1, 40, latent=latent)
    kv.zero(range(3))
    # Tokens of very different sizes: each has its own scale.
    vectors = (torch.randn(BLOCK_TOKENS, 40) * torch.logspace(-6, 6, BLOCK_TOKENS)[:, None]).to(like)
    vectors[5] = 0
    per_block = 2 * (1 if latent else 2)
    kv.store(1, torch.arange(BLOCK_TOKENS) + per_block * BLOCK_TOKENS, vectors)
    keys, _ = kv.gather(1, torch.tensor([per_block] * per_block), 1)
    assert keys.dtype == like.dtype
    read = keys.view(-1, 40)[:BLOCK_TOKENS].float()
    largest = vectors.float().abs().amax(-1, keepdim=True)
    # Three bits behind the point, and in bf16 seven more for the product with the scale.
    assert ((read - vectors.float()).abs() <= vectors.float().abs() * (1 / 16 + 1 / 256) + largest / 2**17).all()
    for layer, row in ((0, per_block), (1, 0)):
        assert not any(vectors.any() for vectors in kv.gather(layer, torch.tensor([row] * per_block), 1)), "unwritten"
    kv.poison(1)
    assert all(vectors.isnan().all() for vectors in kv.gather(1, torch.tensor([per_block] * per_block), 1))


@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 132 / 512), (torch.bfloat16, 132 / 256)])
def test_a_block_is_about_a_quarter_of_fp32_and_half_of_bf16(dtype: torch.dtype, share: float):
    """At 128 elements for each head; its bytes are all that it takes, scales included."""
    like = torch.zeros((), dtype=dtype)
    small, large = memory(FP8, like, 2, 128), memory(dtype, like, 2, 128)
    assert small.group.block_bytes == share * large.group.block_bytes
    for kv in (small, large):
        assert kv.data.nbytes == 3 * kv.group.block_bytes


# Full, full with windows, windows and sinks, latent: each has its own way through attention.
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt-oss", "deepseek v3"])
def test_logits_are_near_to_those_with_full_kv(family: str, family_folders: Families):
    folder = family_folders(family)
    full = make_bench(folder).one(generate("a", PROMPT, 1))
    run = make_bench(folder, kv_dtype="fp8").one(generate("a", PROMPT, 1))
    difference = (run.logits[0] - full.logits[0]).norm() / full.logits[0].norm()
    assert 1e-4 < difference < 0.05, "about twice what it is for these models"


def assembled(folder: Path, data: Path, kv_dtype: KvDtype) -> AssembledEngine:
    return assemble(
        ReplicaOptions(folder, "unix:x", data, "r", b"", device="cpu", kv_memory=1 << 21, kv_dtype=kv_dtype)
    )


@pytest.mark.slow
def test_its_replica_holds_more_and_keys_blocks_by_itself(tiny_model: Path, tmp_path: Path):
    """The digest is what every block key is rooted in, so KV of one format is never found by a replica of another."""
    full, small = (assembled(tiny_model, tmp_path, kv_dtype) for kv_dtype in ("auto", "fp8"))
    assert full.model.digest != small.model.digest
    assert small.model.dtype == full.model.dtype
    assert [group.dtype for group in small.layout.groups] == ["float8_e4m3fn"]
    # Heads of 8 elements: 12 bytes instead of 32.
    assert small.capacity.blocks[0] == (1 << 21) // (2 * 2 * 2 * BLOCK_TOKENS * 12)
    assert full.capacity.blocks[0] == (1 << 21) // (2 * 2 * 2 * BLOCK_TOKENS * 32)
