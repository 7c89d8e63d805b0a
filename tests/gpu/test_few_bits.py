"""Weights in few bits on a device: decoded there as on the CPU, whether on loading or tile by tile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.gpu.exactness import Recorder
from engine.execution.cuda.runner import CudaRunner
from engine.kernels import packed_linear
from engine.layers import linear
from engine.layers.linear import PackedLinear
from engine.models.registry import load_model
from engine.options import Quantize, Weights
from engine.quantization import fp4, fp8, int4
from engine.quantization.encoding import encoded
from engine.quantization.packed import PackedWeight
from engine.startup.options import ReplicaOptions
from tests.engine.conftest import generate, make_bench, write_model
from tests.engine.quantization.stored_checkpoints import FORMATS, stored
from tests.gpu.test_requests import distance

PROMPT = [(7 * i * i + 3 * i) % 131 for i in range(150)]


def weights() -> dict[str, PackedWeight]:
    torch.manual_seed(0)
    values, words = torch.randn(96, 128), torch.randint(-(2**31), 2**31, (128, 12), dtype=torch.int64).int()
    zeros = torch.randint(-(2**31), 2**31, (2, 12), dtype=torch.int64).int()
    return {
        "fp8": fp8.stored(*fp8.encode(values)),
        "fp8 in blocks": fp8.stored(values.to(torch.float8_e4m3fn), torch.rand(2, 3) + 0.1, (48, 48)),
        "fp8 e5m2": fp8.stored(values.to(torch.float8_e5m2), torch.rand(96, 4)),
        "mxfp4": fp4.encode_mxfp4(values),
        "nvfp4": fp4.encode_nvfp4(values),
        "int4 in groups of 32": int4.encode(values, 32),
        "int4": int4.stored_awq(words, zeros, torch.rand(2, 96).half()),
    }


@pytest.mark.parametrize("form", weights())
def test_a_weight_is_decoded_to_the_same_numbers(device: str, form: str):
    weight = weights()[form]
    there = weight.to(torch.device(device))
    for start, stop in ((0, 96), (0, 48), (48, 96)):
        assert torch.equal(there.rows(start, stop).cpu(), weight.rows(start, stop))


@pytest.mark.parametrize("into", ["fp8", "mxfp4", "nvfp4", "int4-g32"])
def test_a_weight_is_encoded_there(device: str, into: Quantize):
    torch.manual_seed(0)
    weight = torch.randn(96, 128) * torch.logspace(-4, 4, 96)[:, None]
    here, there = encoded(weight, into), encoded(weight.to(device), into)
    ours, theirs = there.rows(0, 96).cpu(), here.rows(0, 96)
    # A scale that is rounded to its neighbour may take a value in the middle of two with it, no more.
    assert (ours - theirs).norm() < 1e-3 * theirs.norm()
    assert ((ours - theirs).abs() <= 1e-6 * theirs.abs()).float().mean() > 0.999


@pytest.mark.parametrize("kept", ["decoded", "packed"])
@pytest.mark.parametrize("fmt", [*FORMATS, "on load: fp8", "on load: mxfp4"])
def test_a_model_in_few_bits(device: str, fmt: str, kept: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    quantize: Quantize = "none"
    if fmt.startswith("on load"):
        quantize = "fp8" if fmt.endswith("fp8") else "mxfp4"
        folder = write_model(tmp_path / "model", hidden_size=64, intermediate_size=128, num_attention_heads=8)
    else:
        folder, _ = stored(tmp_path, FORMATS[fmt], fmt)
    expected = make_bench(folder, quantize=quantize).one(generate("a", PROMPT, 8))
    monkeypatch.setattr(linear, "_TILE_OUTPUTS", 16)  # so that these small weights have several tiles
    monkeypatch.setattr(linear, "_TILE_ELEMENTS", 16)
    bench = make_bench(folder, quantize=quantize, weights=kept, device=device)
    products = bench.engine.executor.runner.tiling.products.values()
    assert any(isinstance(product, PackedLinear) for product in products) == (kept == "packed")
    beside = bench.add(generate("b", PROMPT[:90], 6))
    run = bench.add(generate("a", PROMPT, 8))
    bench.finish()
    assert run.tokens == expected.tokens
    assert len(beside.tokens) == 6
    assert distance(run, expected) < (1e-4 if quantize == "none" else 1e-3)


SIZES = {
    **{"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2},
    "head_dim": 64,
}
"""Of a model that the fused kernels compute."""


def recorder_of(folder: Path, kept: Weights, data: Path) -> Recorder:
    options = ReplicaOptions(
        folder, "unix:unused", data, "gpu", b"", device="cuda", dtype="bfloat16", weights=kept, context=256,
        kv_memory=64 << 20, swap_share=0.0,
    )  # fmt: skip
    return Recorder(options, load_model)


@pytest.mark.gpu
@pytest.mark.parametrize("fmt", ["awq", "gptq"])
def test_files_of_4_bits_are_multiplied_from_tiles(fmt: str, tmp_path: Path) -> None:
    """GPTQ's is in act-order. Logits have the same bits alone, together, from memory, with copies and without."""
    if not packed_linear.available(torch.device("cuda")):
        pytest.skip("for Hopper")
    folder, _ = stored(tmp_path, FORMATS[fmt], fmt, SIZES)
    asked = {f"{length}": ([(7 * i * i + length) % 131 for i in range(length)], 20) for length in (3, 64, 150, 200)}
    seen = []
    for kept in ("auto", "packed"):
        recorder = recorder_of(folder, kept, tmp_path / kept)
        runner = recorder.engine.executor.runner
        assert isinstance(runner, CudaRunner)
        assert runner.numerics == " fused tiles/2"
        alone = recorder.run(asked, 1, read=False)
        assert recorder.run(asked, 4, read=False) == alone
        assert recorder.run(asked, 4) == alone
        assert recorder.run(asked, 3) == alone
        seen.append(alone)
    assert seen[0] == seen[1]


@pytest.mark.gpu
@pytest.mark.parametrize("fmt", ["awq", "gptq"])
@pytest.mark.parametrize("kept", ["auto", "decoded"])
def test_files_of_4_bits_say_what_the_cpu_says(fmt: str, kept: Weights, tmp_path: Path) -> None:
    """In fp32, with the same numbers, as far as bf16 goes."""
    folder, _ = stored(tmp_path, FORMATS[fmt], fmt, SIZES)
    expected = make_bench(folder).one(generate("a", PROMPT, 1)).logits[0]
    recorder = recorder_of(folder, kept, tmp_path / "data")
    seen: list[torch.Tensor] = []
    recorder.engine.executor.runner.on_logits = lambda _, logits: seen.append(logits.float().cpu())
    recorder.run({"a": (PROMPT, 1)}, 1)
    assert float((seen[-1][0, : len(expected)] - expected).norm() / expected.norm()) < 0.1
