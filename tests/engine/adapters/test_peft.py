"""Logits of adapters are those of the same model with W + s · B A; and PEFT's own, where it is installed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model_files.adapter_file import pack, read_packed
from tests import adapter_files
from tests.engine.conftest import generate, make_bench

PROMPT = [int(token) for token in np.random.default_rng(0).integers(10, 131, 90)]
CASES: list[tuple[int, dict[str, Any]]] = [
    (8, {"alpha": 16}),
    (16, {"alpha": 8, "use_rslora": True}),
    (64, {"alpha": 20}),
    (20, {"alpha": 20, "targets": ("self_attn.q_proj", "self_attn.v_proj")}),
    (8, {"alpha": 16, "targets": ("self_attn.k_proj", "mlp.down_proj"), "alpha_pattern": {"down_proj": 3}}),
    (8, {"alpha": 16, "alora_invocation_tokens": [5, 6]}),
]


def first_logits(folder: Path, config: bytes, tensors: bytes, prompt: list[int], **options: Any) -> torch.Tensor:
    bench = make_bench(folder, adapters=1, **options)
    content = pack(config, tensors)
    digest = read_packed(content, "base").digest
    assert bench.engine.adapters is not None
    bench.engine.adapters.take(digest, content)
    return bench.one(generate("a", prompt, 1, adapter=digest)).logits[0]


@pytest.mark.parametrize(("rank", "fields"), CASES[:-1])
def test_logits_are_those_of_merged_weights(tiny_model: Path, rank: int, fields: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    targets = fields.get("targets", adapter_files.ALL)
    matrices = adapter_files.matrices(rank, targets)
    ours = first_logits(tiny_model, adapter_files.config(rank, **fields), adapter_files.safetensors(matrices), PROMPT)
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with torch.no_grad():
        base = model(torch.tensor([PROMPT])).logits[0, -1]
        for name, module in model.named_modules():
            key = f"base_model.model.{name}.lora_A.weight"
            if key in matrices:
                alpha = (
                    fields["alpha_pattern"]["down_proj"]
                    if "down_proj" in name and "alpha_pattern" in fields
                    else fields["alpha"]
                )
                scale = alpha / (math.sqrt(rank) if fields.get("use_rslora") else rank)
                b, a = (torch.from_numpy(matrices[key.replace("lora_A", side)]) for side in ("lora_B", "lora_A"))
                module.weight += scale * (b @ a)
        merged = model(torch.tensor([PROMPT])).logits[0, -1]
    assert (merged - base).abs().max() > 0.1
    torch.testing.assert_close(ours, merged, atol=2e-4, rtol=1e-3)


@pytest.mark.filterwarnings("ignore")  # of libraries about each other
@pytest.mark.parametrize(("rank", "fields"), CASES)
def test_logits_are_those_of_peft(tiny_model: Path, tmp_path: Path, rank: int, fields: dict[str, Any]) -> None:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    config = adapter_files.config(rank, **fields)
    tensors = adapter_files.safetensors(adapter_files.matrices(rank, fields.get("targets", adapter_files.ALL)))
    (tmp_path / "adapter_config.json").write_bytes(config)
    (tmp_path / "adapter_model.safetensors").write_bytes(tensors)
    prompt = [*PROMPT[:60], 5, 6, *PROMPT[60:]]
    ours = first_logits(tiny_model, config, tensors, prompt)
    base = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    model = peft.PeftModelForCausalLM.from_pretrained(base, tmp_path)
    with torch.no_grad():
        theirs = model(input_ids=torch.tensor([prompt])).logits[0, -1]
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("options", [{"quantize": "fp8"}, {"dtype": torch.bfloat16}], ids=["fp8", "bf16"])
def test_adapters_of_rounded_bases_are_near_those_of_exact_ones(tiny_model: Path, options: dict[str, Any]) -> None:
    config, tensors = adapter_files.config(16), adapter_files.safetensors(adapter_files.matrices(16))
    exact = first_logits(tiny_model, config, tensors, PROMPT)
    rounded = first_logits(tiny_model, config, tensors, PROMPT, **options)
    assert torch.nn.functional.cosine_similarity(exact, rounded.float(), dim=0) > 0.97
