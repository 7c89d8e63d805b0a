"""The weights of experts: slices of one tensor, where they are kept as they are loaded."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.layers.decoder_layer import DecoderLayer
from engine.layers.moe import MixtureOfExperts, StackedExperts
from tests.engine.conftest import Families, make_bench
from tests.fast import only_fast

FAMILIES = only_fast("qwen3 moe", of=["mixtral", "qwen2 moe", "qwen3 moe", "gpt-oss", "deepseek v3", "glm4 moe"])


def mixtures(families: Families, name: str, **options: Any) -> list[MixtureOfExperts]:
    layers = make_bench(families(name), **options).engine.executor.runner.model.layers
    found = [layer.mlp for layer in layers if isinstance(layer, DecoderLayer)]
    return [mlp for mlp in found if isinstance(mlp, MixtureOfExperts)]


@pytest.mark.parametrize("quantize", only_fast("none", of=["none", "fp8"]))
@pytest.mark.parametrize("name", FAMILIES)
def test_experts_are_slices_of_one_tensor(name: str, quantize: str, family_folders: Families):
    """Rounded weights too: each expert computes with what lies there, and nothing lies twice in memory."""
    made = mixtures(family_folders, name, dtype=torch.bfloat16, quantize=quantize)
    assert made
    for mixture in made:
        assert mixture.stacked is not None
        for place, expert in enumerate(mixture.experts):
            assert expert.gate_up.weight.data_ptr() == mixture.stacked.gate_up[place].data_ptr()  # type: ignore[attr-defined]
            assert expert.down.weight.data_ptr() == mixture.stacked.down[place].data_ptr()  # type: ignore[attr-defined]
        x = torch.randn(8, mixture.gate.inputs, generator=torch.Generator().manual_seed(1)).bfloat16()
        with torch.inference_mode():
            before = mixture.experts[0](x)
            mixture.stacked.gate_up[0].mul_(2)
            assert not torch.equal(mixture.experts[0](x), before)
            mixture.stacked.gate_up[0].div_(2)
            assert torch.equal(mixture.experts[0](x), before)


@pytest.mark.parametrize("name", only_fast("mixtral", of=["mixtral", "qwen3 moe"]))
def test_codes_of_8_bits_are_slices_of_one_tensor(name: str, family_folders: Families):
    """With the bits that they had: the codes are moved, and nothing is left where they were."""
    options: dict[str, Any] = {"dtype": torch.bfloat16, "quantize": "fp8"}
    decoded = mixtures(family_folders, name, **options)
    for mixture, other in zip(mixtures(family_folders, name, **options, weights="packed"), decoded, strict=True):
        assert mixture.stacked is not None
        x = torch.randn(8, mixture.gate.inputs, generator=torch.Generator().manual_seed(1)).bfloat16()
        for place, (expert, plain) in enumerate(zip(mixture.experts, other.experts, strict=True)):
            for product, stack in (
                (expert.gate_up, mixture.stacked.gate_up),  # type: ignore[attr-defined]
                (expert.down, mixture.stacked.down),  # type: ignore[attr-defined]
            ):
                assert product.pieces[0].codes.data_ptr() == stack[place].data_ptr()
            with torch.inference_mode():
                torch.testing.assert_close(expert(x), plain(x), rtol=0.02, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("qwen3 moe", {}),
        ("gpt-oss", {}),
        ("gpt-oss", {"dtype": torch.bfloat16, "quantize": "fp8", "weights": "packed"}),
    ],
    ids=["fp32", "fp32 by blocks", "packed"],
)
def test_experts_that_are_arranged_or_packed_are_not_stacked(
    name: str, options: dict[str, Any], family_folders: Families
):
    """A stack beside them would be memory for nothing."""
    stacked: list[StackedExperts | None] = [one.stacked for one in mixtures(family_folders, name, **options)]
    assert stacked
    assert not any(stacked)
