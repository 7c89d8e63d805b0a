"""Adapters in replicas on a GPU, in bf16 and on bases of few bits: each answer has the bits that it has alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.gpu.exactness import Answered, Recorder
from engine.execution.cuda.runner import CudaRunner
from engine.models.registry import load_model
from engine.options import Quantize
from engine.startup.options import ReplicaOptions
from model_files.adapter_file import pack, read_packed
from tests import adapter_files
from tests.engine.conftest import generate, make_bench, write_model

SHAPES = {
    "self_attn.q_proj": (256, 256),
    "self_attn.k_proj": (128, 256),
    "self_attn.v_proj": (128, 256),
    "self_attn.o_proj": (256, 256),
    "mlp.gate_proj": (512, 256),
    "mlp.up_proj": (512, 256),
    "mlp.down_proj": (256, 512),
}
INVOCATION = [7, 8, 9]
PROMPT = [int(token) for token in np.random.default_rng(0).integers(10, 131, 190)]
CONTENTS = {
    "all": (16, adapter_files.ALL, {}),
    "some": (40, ("self_attn.q_proj", "mlp.down_proj"), {"use_rslora": True}),
    "small": (4, adapter_files.ALL, {}),
    "activated": (64, adapter_files.ALL, {"alora_invocation_tokens": INVOCATION}),
}
"""Adapters by name: rank, targets, fields."""


def content_of(name: str) -> bytes:
    rank, targets, fields = CONTENTS[name]
    matrices = adapter_files.matrices(rank, targets, seed=len(name), shapes=SHAPES)
    factor = 0.3
    made = {key: (value * factor).astype(np.float32) for key, value in matrices.items()}
    return pack(adapter_files.config(rank, targets=targets, **fields), adapter_files.safetensors(made))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(
        tmp_path_factory.mktemp("adapted") / "model", hidden_size=256, intermediate_size=512, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64,
    )  # fmt: skip


def recorder_of(model: Path, data: Path, quantize: Quantize, slots: int) -> Recorder:
    options = ReplicaOptions(
        model, "unix:unused", data, "gpu", b"", device="cuda", dtype="bfloat16", quantize=quantize, context=512,
        kv_memory=16 << 20, swap_share=0.0, max_running=24, max_loras=slots,
    )  # fmt: skip
    return Recorder(options, load_model)


def give(recorder: Recorder, name: str) -> str:
    content = content_of(name)
    store = recorder.engine.adapters
    assert store is not None
    digest = read_packed(content, store.base).digest
    store.take(digest, content)
    return digest


@pytest.mark.gpu
@pytest.mark.parametrize("quantize", ["none", "fp8", "int4"])
def test_bits_are_those_of_a_request_alone(model: Path, tmp_path: Path, quantize: Quantize) -> None:
    """More adapters than slots beside the base, which has the bits of a replica without adapters; cold and warm."""
    recorder = recorder_of(model, tmp_path / "with", quantize, 2)
    assert isinstance(recorder.engine.executor.runner, CudaRunner)
    digests = {name: give(recorder, name) for name in CONTENTS}
    asked: dict[str, Answered] = {}
    adapters: dict[str, str] = {}
    for at, length in enumerate((3, 63, 64, 100, 150, 190)):
        prompt = [*PROMPT[at : at + length], *INVOCATION, *PROMPT[:at]]
        for name in ("base", *CONTENTS):
            asked[f"{name} {length}"] = (prompt, 12 + at)
            if name != "base":
                adapters[f"{name} {length}"] = digests[name]
    alone = recorder.run(asked, 1, read=False, adapters=adapters)
    assert len({tuple(alone[f"{name} 150"]) for name in ("base", *CONTENTS)}) == 1 + len(CONTENTS)
    for together, read in ((24, False), (24, True), (7, True), (1, True)):
        seen = recorder.run(asked, together, read=read, adapters=adapters)
        assert [name for name in asked if seen[name] != alone[name]] == []
    base = {name: request for name, request in asked.items() if name.startswith("base")}
    plain = recorder_of(model, tmp_path / "without", quantize, 0).run(base, 1, read=False)
    assert [name for name in base if plain[name] != alone[name]] == []


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONTENTS)
def test_logits_are_near_those_of_the_cpu(model: Path, tmp_path: Path, name: str) -> None:
    """In fp32, as far as bf16 goes, which the base's own logits show; and further from the base's."""
    prompt = [*PROMPT[:100], *INVOCATION, *PROMPT[:5]]
    stock = make_bench(model, adapters=1)
    assert stock.engine.adapters is not None
    digest = read_packed(content_of(name), "base").digest
    stock.engine.adapters.take(digest, content_of(name))
    expected = stock.one(generate("a", prompt, 1, adapter=digest)).logits[0]
    base = stock.one(generate("base", prompt, 1)).logits[0]
    recorder = recorder_of(model, tmp_path / "data", "none", 1)
    seen: list[torch.Tensor] = []
    recorder.engine.executor.runner.on_logits = lambda _, logits: seen.append(logits.float().cpu())
    recorder.run({"base": (prompt, 1)}, 1)
    rounding = (seen[-1][0, : len(base)] - base).norm()
    recorder.run({"a": (prompt, 1)}, 1, adapters={"a": give(recorder, name)})
    error = (seen[-1][0, : len(expected)] - expected).norm()
    assert float(error / expected.norm()) < 0.05
    assert float(error) < 1.5 * float(rounding)
    assert float(error) < float((base - expected).norm())
