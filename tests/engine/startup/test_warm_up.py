"""After the warm-up no step meets a matrix product of a shape and count of rows that did not run before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.layers.linear import Linear
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from tests.engine.conftest import VOCABULARY, Bench, Families, generate


@pytest.mark.slow
@pytest.mark.parametrize("family", [None, "mixtral", "deepseek v3"])
def test_nothing_is_compiled_while_serving(
    tiny_model: Path, family_folders: Families, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str | None
):
    folder = tiny_model if family is None else family_folders(family)
    met: set[tuple[int, int, int]] = set()
    product = Linear._product

    def noting(self: Linear, x: torch.Tensor, plus: torch.Tensor | None) -> torch.Tensor:
        y = product(self, x, plus)
        met.add((*x.shape, y.shape[1]))
        return y

    monkeypatch.setattr(Linear, "_product", noting)
    options = ReplicaOptions(
        folder, "unix:x", tmp_path, "r", b"", device="cpu", kv_memory=1 << 21, max_running=13, token_budget=200
    )
    assembled = assemble(options)
    bench = Bench(assembled.engine)
    for _ in assembled.warm_up:
        pass
    at_start = set(met)
    for number, length in enumerate([3, 7, 20, 33, 64, 90, 130, 199, 300, 1, 1, 5, 150]):
        bench.add(generate(str(number), [(number + 3 * i) % VOCABULARY for i in range(length)], 2 + 2 * number))
        bench.step()
    bench.finish()
    assert len({rows for rows, *_ in met}) > 5
    assert met == at_start
