"""A start computes little, whatever the model is; how long that takes depends on the machine."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from engine.layers.linear import Linear
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from tests.engine.conftest import Bench, generate, write_model

LAYERS = 6
PRODUCTS = 4
"""Of a layer of the tiny model: queries with keys and values, output, gate with up, down."""


def test_few_layers_and_few_logits_are_computed_before_a_replica_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = write_model(tmp_path / "model", num_hidden_layers=LAYERS)
    made: list[Linear] = []
    rows: Counter[int] = Counter()
    make, multiply = Linear.__init__, Linear._product

    def making(self: Linear, *given: object, **named: object) -> None:
        make(self, *given, **named)  # type: ignore[arg-type]
        made.append(self)

    def counting(self: Linear, x: torch.Tensor, plus: torch.Tensor | None) -> torch.Tensor:
        rows[made.index(self)] += len(x)
        return multiply(self, x, plus)

    monkeypatch.setattr(Linear, "__init__", making)
    monkeypatch.setattr(Linear, "_product", counting)
    options = ReplicaOptions(folder, "unix:x", tmp_path, "r", b"", device="cpu", kv_memory=1 << 21)
    assembled = assemble(options)
    assert len(made) == LAYERS * PRODUCTS + 1
    (head,) = (
        number for number, product in enumerate(made) if product is assembled.engine.executor.runner.model.head.linear
    )
    layers = [number for number in range(len(made)) if number != head]
    last_layer = layers[-PRODUCTS:]
    assert not any(rows[number] for number in last_layer), "steps of all layers"
    # A decode batch is 64 rows and a chunk 512: a few of the one, and not each row of the other. Of steps that verify
    # drafts, up to 256 rows of each size, each row counts; whatever of that a slow machine leaves out.
    assert 64 < rows[head] < 1500 + 3 * 620
    bench = Bench(assembled.engine)
    bench.one(generate("a", [5, 6, 7], 3))
    assert all(rows[number] for number in last_layer)
