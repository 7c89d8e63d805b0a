"""What a replica with the fused kernels does before there are requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime.errors import OutOfResources

from engine.execution.cuda import start
from engine.execution.cuda.model import unsupported
from engine.execution.cuda.probe import Probe
from engine.execution.cuda.runner import CudaRunner
from engine.execution.cuda.start import cuda_runner
from engine.execution.model_runner import Sizes
from engine.layers.activation import gelu_times
from engine.layers.decoder_layer import DecoderLayer
from engine.layers.loader import Loader
from engine.layers.moe import MixtureOfExperts, Router, TopExperts
from engine.layers.self_attention import AttentionVariant
from engine.models.decoder import Decoder
from engine.models.llama import llama_layer
from engine.models.registry import FAMILIES, load_model, read_config
from engine.scheduling.step_work import DeviceFailed
from tests.engine.conftest import write_model
from tests.gpu.execution.fused_bench import fused_bench, plain_tiling, small_model
from tests.gpu.execution.tally_model import TallyModel
from tests.gpu.kernels.interpreter import DEVICE

TOKENS = 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("start") / "model")


@pytest.mark.parametrize("running", [4, 64, 65, 100, 200, 300, 400])
def test_steps_are_tried_at_every_count_of_rows_for_any_number_of_requests(model: Path, running: int) -> None:
    runner = fused_bench(model, running=running, budget=running + 64).engine.executor.runner
    assert isinstance(runner, CudaRunner)
    tally = TallyModel(runner)
    probe = Probe(runner, TOKENS)
    probe.prefill([0])
    expected = torch.tensor(tally.expected(probe.tokens.tolist(), 1))
    assert runner.steps.counts[-1] >= running
    for count in (1, runner.steps.counts[-1]):
        logits = probe.decode(np.full(count, TOKENS - 1, np.int32))
        assert torch.equal(logits.argmax(-1).cpu(), expected.expand(count))


def runner_of(folder: Path) -> CudaRunner | None:
    like = torch.zeros((), device=DEVICE)
    tiling = plain_tiling()
    model = load_model(folder, read_config(folder), like, tiling, 256)
    return cuda_runner(model, (), like, tiling, sizes=Sizes(4, 128, 256, [8] * len(model.groups)))


def out_of_resources(_runner: CudaRunner) -> bool:
    raise OutOfResources(110_592, 101_376, "shared memory")


@pytest.mark.parametrize(
    ("test", "reason"),
    [(lambda _: False, "rows have other bits in other batches"), (out_of_resources, "OutOfResources: .*shared memory")],
)
def test_kernels_that_do_not_stand_the_test_are_not_taken(
    model: Path,
    test: Callable[[CudaRunner], bool],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(start, "rows_keep_their_bits", lambda _: True)
    assert runner_of(model) is not None
    monkeypatch.setattr(start, "rows_keep_their_bits", test)
    assert runner_of(model) is None
    assert re.search(f"stock operations compute the steps.*{reason}|{reason}.*stock operations", caplog.text)


@pytest.mark.parametrize("error", [DeviceFailed("an illegal memory access"), torch.OutOfMemoryError("no memory")])
def test_a_device_that_fails_or_is_full_is_not_for_other_operations_either(
    model: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_runner: CudaRunner) -> bool:
        raise RuntimeError("CUDA error") if isinstance(error, DeviceFailed) else error

    def check(_runner: CudaRunner) -> None:
        raise error

    monkeypatch.setattr(start, "rows_keep_their_bits", failing)
    monkeypatch.setattr(CudaRunner, "check_device", check)
    with pytest.raises(type(error)):
        runner_of(model)


@dataclass(frozen=True)
class ChunkedAttention(AttentionVariant):
    """Attention with an option that no kernel knows."""

    chunk: int = 0


def with_norms_behind(load: Loader, index: int, variant: AttentionVariant) -> DecoderLayer:
    layer = llama_layer(load, index, variant)
    layer.out_norms, layer.fused_sums = (layer.attention_norm, layer.mlp_norm), False
    return layer


def with_shared_experts(load: Loader, index: int, variant: AttentionVariant) -> DecoderLayer:
    layer = llama_layer(load, index, variant)
    layer.shared = layer.mlp
    return layer


def with_another_activation(load: Loader, index: int, variant: AttentionVariant) -> DecoderLayer:
    layer = llama_layer(load, index, variant)
    layer.mlp.activation = gelu_times
    return layer


def with_experts(router: Router, factor: float = 1.0) -> Callable[[Loader, int, AttentionVariant], DecoderLayer]:
    def build(load: Loader, index: int, variant: AttentionVariant) -> DecoderLayer:
        layer = llama_layer(load, index, variant)
        layer.factor = factor
        layer.mlp, layer.fused_sums = MixtureOfExperts(layer.attention.output, router, [layer.mlp]), False
        return layer

    return build


def with_sums_apart(load: Loader, index: int, variant: AttentionVariant) -> DecoderLayer:
    layer = llama_layer(load, index, variant)
    layer.fused_sums = False
    return layer


def with_a_factor(load: Loader, index: int, variant: AttentionVariant) -> DecoderLayer:
    layer = with_sums_apart(load, index, variant)
    layer.factor = 0.5
    return layer


@pytest.mark.parametrize(
    ("layer", "variant", "reason"),
    [
        (llama_layer, AttentionVariant(window=8, scale=0.5, soft_cap=30.0), None),
        (llama_layer, ChunkedAttention(), None),
        (llama_layer, ChunkedAttention(chunk=8), "attention has the option chunk"),
        (with_norms_behind, AttentionVariant(), None),
        (with_sums_apart, AttentionVariant(), None),
        (with_a_factor, AttentionVariant(), None),
        (with_shared_experts, AttentionVariant(), "layers add up their parts otherwise"),
        (with_another_activation, AttentionVariant(), "the activation is neither SiLU nor GELU by tanh"),
        (with_experts(lambda x: (x, x)), AttentionVariant(), "experts are chosen in another way"),
        (with_experts(TopExperts(1, normalize=True)), AttentionVariant(), None),
        (with_experts(TopExperts(1, normalize=True), 0.5), AttentionVariant(), "layers add up their parts otherwise"),
    ],
)
def test_what_the_kernels_would_pass_over_is_left_to_stock_operations(
    model: Path,
    layer: Callable[[Loader, int, AttentionVariant], DecoderLayer],
    variant: AttentionVariant,
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build(load: Loader) -> Decoder:
        return Decoder(load, (layer(load, index, variant) for index in range(load.config.layers)))

    monkeypatch.setitem(FAMILIES, "llama", replace(FAMILIES["llama"], build=build))
    like = torch.zeros((), device=DEVICE)
    loaded = load_model(model, read_config(model), like, plain_tiling(), 256)
    assert unsupported(loaded, like.device) == reason


@pytest.mark.parametrize(
    "options", [{"quantize": "fp8", "weights": "packed"}, {"kv_dtype": "fp8"}], ids=["weights", "kv"]
)
def test_e4m3_is_left_to_stock_operations_where_the_device_has_none(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(
        tmp_path, hidden_size=128, intermediate_size=128, head_dim=64, num_attention_heads=2, num_key_value_heads=1
    )
    like = torch.zeros((), dtype=torch.bfloat16)
    capability = 9, 0
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    for plain in (True, False):
        model = load_model(folder, read_config(folder), like, plain_tiling(), 256, **({} if plain else options))
        for capability in ((9, 0), (8, 9), (8, 0), (12, 0)):
            reason = unsupported(model, torch.device("cuda", 0))
            refused = not plain and capability == (8, 0)
            assert reason == ("the device does not compute in e4m3" if refused else None)
