"""A model with outlier channels computes the very same function."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmarks.outliers import LARGEST, write_with_outliers
from tests.engine.conftest import VOCABULARY, generate, make_bench, write_model


def test_logits_have_the_same_bits_and_weights_have_outliers(tmp_path: Path) -> None:
    plain = write_model(tmp_path / "tiny")
    changed = write_with_outliers(plain, tmp_path / "outliers", share=0.1)
    prompt = [(7 * i * i + 3 * i) % VOCABULARY for i in range(80)]
    before, after = (make_bench(folder).one(generate("a", prompt, 5)) for folder in (plain, changed))
    assert torch.equal(torch.stack(after.logits), torch.stack(before.logits))
    old, new = (load_file(folder / "model.safetensors") for folder in (plain, changed))
    for name in ("input_layernorm", "self_attn.k_proj", "self_attn.v_proj", "mlp.up_proj"):
        key = f"model.layers.0.{name}.weight"
        ratio = (new[key] / old[key]).abs()
        assert 4 <= float(ratio.max()) <= LARGEST * LARGEST
