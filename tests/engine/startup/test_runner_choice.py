"""How many requests and tokens a step has where the options leave it open."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine.errors import StartError
from engine.layers.linear import best_tiling
from engine.models.registry import load_model, read_config
from engine.startup import runner_choice
from engine.startup.runner_choice import with_step_sizes
from tests.engine.server.test_replica import make_options


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((0, 0), (64, 512)),
        ((5, 0), (5, 512)),
        ((600, 0), (600, 664)),
        ((0, 128), (64, 128)),
        ((1, 65), (1, 65)),
        ((0, 100), (36, 100)),
        ((0, 65), (1, 65)),
    ],
)
def test_what_is_left_open_suits_the_cpu(
    given: tuple[int, int], expected: tuple[int, int], tmp_path: Path, tiny_model: Path
) -> None:
    like = torch.zeros(())
    model = load_model(tiny_model, read_config(tiny_model), like, best_tiling(like), 256)
    options = make_options(tmp_path, tiny_model, max_running=given[0], token_budget=given[1])
    chosen = with_step_sizes(options, model, like)
    assert (chosen.max_running, chosen.token_budget) == expected


def test_too_few_tokens_are_refused(tmp_path: Path, tiny_model: Path) -> None:
    like = torch.zeros(())
    model = load_model(tiny_model, read_config(tiny_model), like, best_tiling(like), 256)
    with pytest.raises(StartError, match="token_budget: 100 is too small for max_running 40: at least 104"):
        with_step_sizes(make_options(tmp_path, tiny_model, max_running=40, token_budget=100), model, like)


@pytest.mark.parametrize(
    ("gib", "given", "expected"),
    [
        (141, (0, 0), (512, 8_704)),
        (141, (0, 512), (448, 512)),
        (141, (0, 4_096), (512, 4_096)),
        (24, (0, 0), (128, 2_176)),
        (24, (0, 128), (64, 128)),
    ],
)
def test_what_is_left_open_suits_the_gpu(
    gib: int,
    given: tuple[int, int],
    expected: tuple[int, int],
    tmp_path: Path,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    like = torch.zeros(())
    model = load_model(tiny_model, read_config(tiny_model), like, best_tiling(like), 256)
    monkeypatch.setattr(runner_choice, "_is_fused", lambda *_: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=gib << 30))
    options = make_options(tmp_path, tiny_model, max_running=given[0], token_budget=given[1])
    chosen = with_step_sizes(options, model, like)
    assert (chosen.max_running, chosen.token_budget) == expected
