"""Where a row's bits depend on its batch whatever is tried, a replica serves, says so, and shares no prefix (C2)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.core.metrics import engine_metrics
from engine.layers.moe import MixtureOfExperts
from engine.models.decoder import Decoder
from engine.models.registry import load_model
from engine.startup.assembly import AssembledEngine, assemble
from engine.startup.options import ReplicaOptions
from tests.engine.conftest import Bench, Families, generate

PROMPT = [(7 * i * i + 3 * i) % 131 for i in range(200)]
SHARED = "turnpike_engine_publishes_blocks"


@dataclass
class BatchDependent:
    """A layer, or a part of one, by a library that takes another kernel for many rows."""

    layer: Any
    attention = mlp = None

    def __call__(self, x: torch.Tensor, *given: Any, **named: Any) -> Any:
        result = self.layer(x, *given, **named)
        return result * (1 + 1e-6) if len(x) > 24 else result


def load_batch_dependent(*given: Any, **named: Any) -> Decoder:
    model = load_model(*given, **named)
    model.layers = [BatchDependent(layer) for layer in model.layers]
    return model


def load_batch_dependent_experts(*given: Any, **named: Any) -> Decoder:
    model = load_model(*given, **named)
    layers: list[Any] = [layer for layer in model.layers if isinstance(vars(layer)["mlp"], MixtureOfExperts)]
    assert layers
    assert layers[0] is not model.layers[0]
    for layer in layers:
        layer.mlp = BatchDependent(layer.mlp)
    return model


def assembled(folder: Path, data: Path, **options: Any) -> AssembledEngine:
    load = options.pop("load", load_model)
    return assemble(ReplicaOptions(folder, "unix:x", data, "r", b"", device="cpu", kv_memory=1 << 21, **options), load)


@pytest.mark.slow
def test_no_prefix_is_shared(tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    disk = {"dram_memory": 1 << 20, "disk_folder": tmp_path / "disk", "disk_bytes": 1 << 24}
    engine = assembled(tiny_model, tmp_path / "a", load=load_batch_dependent, **disk).engine
    assert "kernels depend on the batch" in caplog.text
    assert engine_metrics(engine)[SHARED] == 0
    bench = Bench(engine)
    first, again = (bench.one(generate(id, PROMPT, 4)) for id in ("first", "again"))
    assert again.tokens == first.tokens
    assert bench.counts("again").read == 0
    assert engine.pool.cached_blocks == 0
    assert not engine.tiers
    # The choices of one request share its prompt, which is computed once, and leave nothing.
    choices = bench.one(generate("choices", PROMPT, 4, choices=2, temperature=1.0))
    assert len(choices.choices) == 2
    assert bench.counts("choices").computed < 2 * len(PROMPT)
    assert bench.one(generate("after", PROMPT, 4)).tokens == first.tokens
    assert bench.counts("after").read == 0


def test_prefixes_are_shared_where_the_test_holds(tiny_model: Path, tmp_path: Path):
    engine = assembled(tiny_model, tmp_path).engine
    assert engine_metrics(engine)[SHARED] == 1
    bench = Bench(engine)
    for id in ("first", "again"):
        bench.one(generate(id, PROMPT, 4))
    assert bench.counts("again").read == 192


@pytest.mark.slow
def test_experts_behind_a_dense_layer_are_tested(family_folders: Families, tmp_path: Path):
    folder = family_folders("deepseek v3")
    assert assembled(folder, tmp_path / "a").engine.input_processor.publishes
    assert not assembled(folder, tmp_path / "b", load=load_batch_dependent_experts).engine.input_processor.publishes
