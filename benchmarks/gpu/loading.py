"""How long do files of 4 bits take to load onto a GPU? `python -m benchmarks.gpu.loading --format awq --json OUT`

Writes a checkpoint of a published shape with random codes (5.7 GB for Llama 3.1 8B), and loads it twice from the page
cache. GPTQ's is in act-order.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.gpu.shapes import SHAPES
from engine.layers.linear import best_tiling
from engine.models.registry import load_model, read_config

GROUP = 128
QUANTIZATIONS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True},
}


def products(config: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
    """Each projection's name in a layer, outputs and inputs."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv = (config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    yield from (("self_attn.q_proj", heads, hidden), ("self_attn.k_proj", kv, hidden), ("self_attn.v_proj", kv, hidden))
    yield ("self_attn.o_proj", hidden, heads)
    yield from (("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner, hidden), ("mlp.down_proj", hidden, inner))


def words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32, device="cuda").cpu()


def stored(form: str, outputs: int, inputs: int, order: torch.Tensor) -> dict[str, torch.Tensor]:
    """A projection's tensors. `order`: of the inputs, for act-order."""
    groups = inputs // GROUP
    shape = (inputs, outputs // 8) if form == "awq" else (inputs // 8, outputs)
    tensors = {
        "qweight": words(*shape),
        "qzeros": words(groups, outputs // 8),
        "scales": (torch.rand(groups, outputs) * 0.01 + 1e-3).half(),
    }
    return tensors if form == "awq" else {**tensors, "g_idx": (order // GROUP).int()}


def write(folder: Path, shape: str, form: str) -> int:
    """Write a checkpoint; returns its bytes."""
    config = {**SHAPES[shape], "quantization_config": QUANTIZATIONS[form]}
    (folder / "config.json").write_text(json.dumps(config))
    hidden, size = config["hidden_size"], 0
    orders = {inputs: torch.randperm(inputs) for inputs in (hidden, config["intermediate_size"])}
    plain = {
        "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
        "model.embed_tokens.weight": torch.randn(config["vocab_size"], hidden, device="cuda").bfloat16().cpu(),
    }
    if not config["tie_word_embeddings"]:
        plain["lm_head.weight"] = plain["model.embed_tokens.weight"].clone()
    for layer in range(-1, config["num_hidden_layers"]):
        tensors, name = ({}, f"model.layers.{layer}") if layer >= 0 else (plain, "")
        if layer >= 0:
            for norm in ("input_layernorm", "post_attention_layernorm"):
                tensors[f"{name}.{norm}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
            for product, outputs, inputs in products(config):
                for part, tensor in stored(form, outputs, inputs, orders[inputs]).items():
                    tensors[f"{name}.{product}.{part}"] = tensor
        size += sum(tensor.nbytes for tensor in tensors.values())
        save_file(tensors, folder / f"model-{layer + 1:05}.safetensors")
    return size


def main() -> None:
    """Print, and write with `--json`, the bytes and seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="llama-3.1-8b")
    parser.add_argument("--format", choices=sorted(QUANTIZATIONS), default="awq")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report: dict[str, Any] = {"format": args.format, "bytes": write(folder, args.shape, args.format), "s": []}
        for _ in range(2):
            torch.cuda.synchronize()
            began = time.perf_counter()
            like = torch.empty(0, device="cuda", dtype=torch.bfloat16)
            model = load_model(folder, read_config(folder), like, best_tiling(like), 4_096, weights="auto")
            torch.cuda.synchronize()
            report["s"].append(time.perf_counter() - began)
            report["resident_bytes"] = torch.cuda.memory_allocated()
            del model
            torch.cuda.empty_cache()
    print(json.dumps(report), flush=True)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
