"""Families that the fused kernels run as they are: the same answers as by stock operations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.conftest import generate, make_bench
from tests.engine.families import write_family, write_multimodal
from tests.gpu.execution.fused_bench import fused_bench

# The interpreter multiplies what lies behind the vocabulary, which counts for nothing, by 0 as well.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")
PROMPT = [(7 * i * i + 3 * i) % 131 for i in range(70)]


def write(name: str, folder: Path) -> Path:
    if name == "qwen3_vl":
        return write_multimodal(folder, name)
    return write_family(name, folder, **({"hidden_size": 64} if name == "smollm3" else {}))


@pytest.mark.parametrize("name", ["smollm3", pytest.param("seed oss", marks=pytest.mark.slow), "qwen3_vl"])
def test_logits_are_those_of_stock_operations(name: str, tmp_path: Path) -> None:
    """Prompts in two chunks, and decodes: layers that turn nothing, biases, positions of three parts."""
    folder = write(name, tmp_path / "model")
    expected = make_bench(folder, context=256).one(generate("a", PROMPT, 3))
    run = fused_bench(folder, budget=68, context=256).one(generate("a", PROMPT, 3))
    assert run.tokens == expected.tokens
    found = torch.stack(run.logits).cpu()
    assert (found - torch.stack(expected.logits)).abs().max() < 1e-3
