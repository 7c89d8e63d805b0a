"""Families with experts by the fused kernels: the stock engine's answers, and each request's own, in any company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.exactness import compare_runs
from engine.execution.cuda.experts import FusedExperts, Ways
from engine.execution.cuda.runner import CudaRunner
from engine.execution.cuda.start import cuda_runner, ensure_exact
from engine.execution.model_runner import Sizes
from engine.models.registry import load_model, read_config
from engine.options import Quantize
from tests.engine.conftest import generate, make_bench
from tests.engine.families import by_transformers, write_family
from tests.gpu.execution.fused_bench import fused_bench, plain_tiling
from tests.gpu.execution.test_fused_runner import assert_near, assert_same
from tests.gpu.kernels.interpreter import DEVICE

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

PROMPT = [(7 * i * i + 3 * i) % 131 for i in range(90)]
FAMILIES = [
    pytest.param("qwen3 moe", {"num_hidden_layers": 1}, marks=pytest.mark.slow),
    pytest.param("qwen3 moe partly", {"head_dim": 16}, marks=pytest.mark.gpu),
    pytest.param("mixtral", {"head_dim": 16}, marks=pytest.mark.gpu),
    pytest.param("gpt-oss", {}, marks=pytest.mark.gpu),
    pytest.param("deepseek v2", {}, marks=pytest.mark.gpu),
    pytest.param("glm4 moe", {}, marks=pytest.mark.gpu),
    pytest.param("deepseek v3", {"q_lora_rank": 32}, marks=pytest.mark.slow),
]
SIZES = Sizes(4, 128, 256, [8])


@pytest.mark.parametrize(("family", "changes"), FAMILIES)
def test_a_family_answers_as_by_stock_operations(tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    """And as transformers has it, alone and beside others, cold and from memory."""
    folder = write_family(family, tmp_path / "model", **changes)
    bench = fused_bench(folder, budget=128)
    assert any(bench.engine.executor.runner.fused.mixtures())  # type: ignore[attr-defined]
    expected = make_bench(folder).one(generate("a", PROMPT, 4))
    alone = bench.one(generate("a", PROMPT, 4))
    assert_near(alone, expected)
    theirs = by_transformers(folder, PROMPT + alone.tokens)[len(PROMPT) - 1 : -1]
    assert float((torch.stack(alone.logits).cpu() - theirs).norm() / theirs.norm()) < 1e-4
    beside = [bench.add(generate(str(at), PROMPT[at:], 3, read=False)) for at in (3, 40)]
    assert_same(bench.one(generate("warm", PROMPT, 4)), alone)
    bench.finish()
    assert all(len(run.tokens) == 3 for run in beside)


def test_experts_that_depend_on_the_batch_are_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The self-test goes through the experts: it refuses what multiplies a row by the number of rows."""
    folder = write_family("qwen3 moe", tmp_path / "model", num_hidden_layers=1)
    like, tiling = torch.zeros((), device=DEVICE), plain_tiling()
    model = load_model(folder, read_config(folder), like, tiling, 256)
    original = FusedExperts.__call__

    def leaning(self: FusedExperts, x: torch.Tensor, positions: torch.Tensor) -> Any:
        return original(self, x * (1 + len(x) / 64), positions)

    monkeypatch.setattr(FusedExperts, "__call__", leaning)
    assert cuda_runner(model, (), like, tiling, sizes=SIZES) is None
    assert "rows have other bits in other batches" in caplog.text


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("shape", "quantize"),
    [
        ("qwen3-moe-tiny", "none"),
        ("mixtral-tiny", "none"),
        ("gpt-oss-tiny", "none"),
        ("deepseek-v2-tiny", "none"),
        ("deepseek-v3-tiny", "none"),
        ("qwen3-moe-tiny", "fp8"),
        ("mixtral-tiny", "fp8"),
        ("deepseek-v3-tiny", "fp8"),
    ],
)
def test_logits_have_the_same_bits(tmp_path: Path, shape: str, quantize: Quantize) -> None:
    report = compare_runs(tmp_path, shape, quantize, 24)
    assert report.different == {}
    assert report.compared > 4 * 500


@pytest.mark.gpu
def test_the_start_finds_the_quickest_ways(tmp_path: Path) -> None:
    """On Hopper the experts in bf16 are streamed, and the library has their bits."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("for Hopper")
    sizes = {"hidden_size": 512, "moe_intermediate_size": 256, "head_dim": 64}
    folder = write_family("qwen3 moe", tmp_path / "model", **sizes)
    like, tiling = torch.zeros((), device=DEVICE, dtype=torch.bfloat16), plain_tiling()
    model = load_model(folder, read_config(folder), like, tiling, 1_024)
    runner = cuda_runner(model, (), like, tiling, sizes=Sizes(40, 1_024, 1_024, [32] * len(model.groups)))
    assert isinstance(runner, CudaRunner)
    products = [product for mixture in runner.fused.mixtures() for product in mixture.products()]
    assert products
    assert all(product.ways == Ways(library=True, streamed=True, gated=not product.placed) for product in products)
    for product in products:
        product.ways = Ways()
    runner.steps.forget()
    with torch.inference_mode():
        assert ensure_exact(runner)
