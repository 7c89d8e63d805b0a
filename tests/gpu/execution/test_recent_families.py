"""Families that the fused kernels run as they are: the same answers as by stock operations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.gpu.exactness import compare_runs
from engine.options import Quantize
from tests.engine.conftest import generate, make_bench
from tests.engine.families import by_transformers, write_family, write_multimodal
from tests.gpu.execution.fused_bench import fused_bench
from tests.gpu.execution.test_fused_runner import assert_same

# The interpreter multiplies what lies behind the vocabulary, which counts for nothing, by 0 as well.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")
PROMPT = [(7 * i * i + 3 * i) % 131 for i in range(70)]


WITHOUT_HEAD_DIM = ("granite", "olmo2", "smollm3", "starcoder2")
SLOW = ("gemma", "gemma3", "gemma3 capped", "granite", "olmo2", "phi", "seed oss")


def write(name: str, folder: Path) -> Path:
    if name == "qwen3_vl":
        return write_multimodal(folder, name)
    return write_family(name, folder, **({"hidden_size": 64} if name in WITHOUT_HEAD_DIM else {}))


@pytest.mark.parametrize(
    "name",
    [
        "gemma2",
        "glm4",
        "qwen3_vl",
        "smollm3",
        "starcoder2",
        *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW),
    ],
)
def test_logits_are_those_of_stock_operations(name: str, tmp_path: Path) -> None:
    """Prompts in two chunks, and decodes: layers that turn nothing or pairs of neighbours, biases, positions of three
    parts, norms behind parts, of whole rows, of mean and variance, factors, caps, parts beside each other, no gates."""
    folder = write(name, tmp_path / "model")
    expected = make_bench(folder, context=256).one(generate("a", PROMPT, 3))
    bench = fused_bench(folder, budget=68, context=256)
    run = bench.one(generate("a", PROMPT, 3))
    assert run.tokens == expected.tokens
    found = torch.stack(run.logits).cpu()
    assert (found - torch.stack(expected.logits)).abs().max() < 1e-3
    if name != "qwen3_vl":  # transformers has no text model of it alone
        theirs = by_transformers(folder, PROMPT + run.tokens)[len(PROMPT) - 1 : -1]
        assert float((found - theirs).norm() / theirs.norm()) < 1e-4


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gemma2", "gemma3 capped", *(name for name in SLOW if " " not in name), "glm4"])
def test_a_request_has_its_own_bits(name: str, tmp_path: Path) -> None:
    """Cold, from memory, and beside others, in chunks that end anywhere."""
    bench = fused_bench(write(name, tmp_path / "model"), budget=68, context=256)
    cold = bench.one(generate("cold", PROMPT, 4))
    for number, at in enumerate((3, 40, 69)):
        bench.add(generate(f"beside {number}", PROMPT[at:] + PROMPT, 4, read=False))
    assert_same(bench.one(generate("warm", PROMPT, 4)), cold)
    bench.finish()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("shape", "quantize"), [("gemma-3-tiny", "none"), ("gemma-2-tiny", "none"), ("gemma-3-tiny", "fp8")]
)
def test_logits_of_heads_of_256_have_the_same_bits(tmp_path: Path, shape: str, quantize: Quantize) -> None:
    report = compare_runs(tmp_path, shape, quantize, 24, "fp8" if quantize == "fp8" else "auto")
    assert report.different == {}
    assert report.compared > 4 * 500
