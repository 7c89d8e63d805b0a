"""Every format of few bits: a weight is what its published definition says, and a model in it says what the model says
that holds the same numbers plainly, dense and with experts, decoded and packed."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.layers.linear import Linear, PackedLinear, best_tiling
from engine.model_config.fields import Fields
from engine.quantization.packed import decoded
from engine.weights.checkpoint import Checkpoint
from tests.engine.conftest import Bench, generate, make_bench, write_model
from tests.engine.families import by_transformers, write_family
from tests.engine.quantization.published_formats import PUBLISHED
from tests.fast import only_fast, only_some

PROMPT = [(7 * i * i + 3 * i) % 131 for i in range(150)]
SIZES = {"hidden_size": 128, "intermediate_size": 128}
DENSE = {"llama": {}, "qwen3": {}, "phi3": {}, "glm4": {}, "starcoder2": {}}
EXPERTS: dict[str, dict[str, Any]] = {"mixtral": {}, "qwen3 moe": {"moe_intermediate_size": 128}}
EXPERTS["deepseek v3"] = {"moe_intermediate_size": 128, "kv_lora_rank": 128, "q_lora_rank": 128, "v_head_dim": 32}


@pytest.mark.parametrize("fmt", PUBLISHED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_is_what_its_definition_says(fmt: str, dtype: torch.dtype, tmp_path: Path):
    """To the last bit but for NVFP4, whose scale of the tensor is rounded apart when a weight is decoded with it."""
    torch.manual_seed(4)
    config, write = PUBLISHED[fmt]
    parts, exact = write(24, 256)
    save_file({f"layer.{part}": tensor for part, tensor in parts.items()}, tmp_path / "model.safetensors")
    weight = torch.empty(24, 256, dtype=dtype)
    with Checkpoint(tmp_path, Fields(tmp_path, config)) as checkpoint:
        assert checkpoint.is_quantized()
        assert checkpoint.decoded_bytes(4) >= weight.numel() * 4
        checkpoint.load("layer.weight", weight)
    if "nvfp4" in fmt or "nf4" in fmt:
        assert ((weight.double() - exact).abs() <= exact.abs() * (1e-6 if dtype == torch.float32 else 0.004)).all()
    else:
        assert torch.equal(weight, exact.to(dtype))


@pytest.mark.parametrize("fmt", PUBLISHED)
def test_a_part_of_it_is_decoded_as_that_part(fmt: str, tmp_path: Path):
    torch.manual_seed(5)
    config, write = PUBLISHED[fmt]
    parts, _ = write(24, 256)
    save_file({f"layer.{part}": tensor for part, tensor in parts.items()}, tmp_path / "model.safetensors")
    with Checkpoint(tmp_path, Fields(tmp_path, config)) as checkpoint:
        packed = checkpoint.packed("layer.weight", (24, 256))
        assert packed is not None
        whole = packed.rows(0, 24)
        for start, stop in ((0, 1), (3, 11), (16, 24)):
            assert torch.equal(packed.rows(start, stop), whole[start:stop])


def rewritten(plain: Path, folder: Path, fmt: str) -> Path:
    """The model of the folder `plain` with random weights in this format; `plain` then holds the same numbers."""
    torch.manual_seed(6)
    config, write = PUBLISHED[fmt]
    tensors = {name: each for file in plain.glob("*.safetensors") for name, each in load_file(file).items()}
    packed = {}
    for name, tensor in tensors.items():
        layer = name.removesuffix(".weight")
        if not layer.endswith(("_proj", "_proj_with_mqa", ".w1", ".w2", ".w3")) or "embed" in name:
            packed[name] = tensor
            continue
        parts, exact = write(*tensor.shape)
        packed |= {f"{layer}.{part}": each for part, each in parts.items()}
        tensors[name] = exact.float()
    for file in [*plain.glob("*.safetensors"), plain / "model.safetensors.index.json"]:
        file.unlink(missing_ok=True)
    save_file(tensors, plain / "model.safetensors", metadata={"format": "pt"})
    folder.mkdir()
    fields = json.loads((plain / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, "quantization_config": config}))
    save_file(packed, folder / "model.safetensors")
    return folder


def products(bench: Bench) -> set[type[Linear]]:
    return {type(product) for product in bench.engine.executor.runner.tiling.products.values()}


def assert_same_in_any_batch(folder: Path) -> None:
    """Decoded and packed, alone and beside others, in one chunk and in several: the same bits of each request."""
    for dtype in (torch.float32, torch.bfloat16):
        runs = []
        for weights in ("decoded", "packed"):
            bench = make_bench(folder, dtype=dtype, weights=weights, budget=100, running=8)
            assert (PackedLinear in products(bench)) == (weights == "packed")
            beside = [bench.add(generate(str(length), PROMPT[:length], 6)) for length in (3, 64, 90)]
            bench.finish()
            runs.append([*beside, bench.one(generate("a", PROMPT, 8, read=False))])
            alone = bench.one(generate("alone", PROMPT[:64], 6, read=False))
            assert torch.equal(torch.stack(alone.logits), torch.stack(beside[1].logits))
        for ours, theirs in zip(*runs, strict=True):
            assert torch.equal(torch.stack(ours.logits), torch.stack(theirs.logits))


@pytest.mark.parametrize("fmt", only_fast("nvfp4 modelopt", "nf4", of=PUBLISHED))
def test_a_dense_model_says_what_its_plain_twin_says(fmt: str, tmp_path: Path):
    plain = write_model(tmp_path / "plain", num_attention_heads=8, head_dim=16, scale=0.1, **SIZES)
    folder = rewritten(plain, tmp_path / "packed", fmt)
    run = make_bench(folder).one(generate("a", PROMPT, 8))
    logits = by_transformers(plain, PROMPT + run.tokens)[len(PROMPT) - 1 : -1]
    assert (torch.stack(run.logits) - logits).abs().max() < 2e-4 * max(1.0, float(logits.abs().max()))
    assert_same_in_any_batch(folder)


DIFFERENT = ("nvfp4 modelopt", "mxfp4 compressed", "int4 g32 with zeros", "gptq act-order", "nf4")


@pytest.mark.slow
@pytest.mark.parametrize(("family", "fmt"), only_some(of=itertools.product([*DENSE, *EXPERTS], DIFFERENT), every=3))
def test_each_family_says_what_its_plain_twin_says(family: str, fmt: str, tmp_path: Path):
    """Projections fused in the file, norms of queries and keys, experts beside each other, latents."""
    plain = write_family(family, tmp_path / "plain", **SIZES, **{**DENSE, **EXPERTS}[family])
    folder = rewritten(plain, tmp_path / "packed", fmt)
    run = make_bench(folder).one(generate("a", PROMPT, 8))
    logits = by_transformers(plain, PROMPT + run.tokens)[len(PROMPT) - 1 : -1]
    assert (torch.stack(run.logits) - logits).abs().max() < 2e-4 * max(1.0, float(logits.abs().max()))
    assert_same_in_any_batch(folder)


@pytest.mark.parametrize("fmt", ["nvfp4 modelopt", "nvfp4 compressed"])
def test_fused_projections_keep_their_own_scale(fmt: str, tmp_path: Path):
    """q, k and v are one product, whose outputs have the factors of three tensors; a bias comes after them."""
    torch.manual_seed(7)
    config, write = PUBLISHED[fmt]
    written = [write(size, 64) for size in (32, 16, 16)]
    tensors = {f"{index}.{part}": each for index, (parts, _) in enumerate(written) for part, each in parts.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    with Checkpoint(tmp_path, Fields(tmp_path, config)) as checkpoint:
        pieces = [checkpoint.packed(f"{index}.weight", (len(exact), 64)) for index, (_, exact) in enumerate(written)]
    like, bias = torch.empty(0), torch.randn(64)
    product = PackedLinear([piece for piece in pieces if piece is not None], bias, best_tiling(like), like)
    x, plus = torch.randn(5, 64), torch.randn(5, 64)
    exact = x.double() @ torch.cat([weight for _, weight in written]).t() + bias.double() + plus.double()
    with torch.inference_mode():
        assert (product(x, plus).double() - exact).abs().max() < 1e-5
    assert product.output_scales is not None
    assert len(product.output_scales.unique()) == 3


def test_what_is_multiplied_is_exact_in_bf16(tmp_path: Path):
    """NVFP4's e2m1 · e4m3 has 6 bits: the tensor's scale is a factor of sums, so no weight is rounded."""
    torch.manual_seed(8)
    config, write = PUBLISHED["nvfp4 modelopt"]
    parts, exact = write(16, 64)
    save_file({f"layer.{part}": each for part, each in parts.items()}, tmp_path / "model.safetensors")
    with Checkpoint(tmp_path, Fields(tmp_path, config)) as checkpoint:
        packed = checkpoint.packed("layer.weight", (16, 64))
    assert packed is not None
    rows = packed.rows(0, 16)
    assert torch.equal(rows.bfloat16().float(), rows)
    assert torch.equal(rows.double() * parts["weight_scale_2"].double(), exact)
    assert (decoded(packed).double() - exact).abs().max() <= 1e-6 * exact.abs().max()
