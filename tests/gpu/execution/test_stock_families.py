"""Families that our kernels do not compute, assembled as a replica assembles them: on a GPU by stock operations.

Either the self-test at start holds, and then cold equals warm and no neighbour matters, bit by bit; or no prefix is
shared.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest
import torch

from engine.core.engine import Engine
from engine.models.registry import load_model
from engine.options import Dtype
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from tests.engine.conftest import Bench, Families, Run, generate
from tests.engine.families import write_family

PROMPT = [(7 * i * i + 3 * i) % 131 for i in range(200)]
FAMILIES = ["mixtral", "deepseek v3", "qwen2 moe"]
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
STEPS = 12


def engine(folder: Path, data: Path, device: str, dtype: Dtype) -> Engine:
    options = ReplicaOptions(folder, "unix:x", data, "r", b"", device=device, dtype=dtype, kv_memory=1 << 22)  # type: ignore[arg-type]
    return assemble(options, load_model).engine


def assert_same_bits(run: Run, expected: Run) -> None:
    assert run.tokens == expected.tokens
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(run.logits, expected.logits, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_cold_equals_warm_or_nothing_is_shared(
    family_folders: Families, tmp_path: Path, device: str, family: str, dtype: Dtype
) -> None:
    on = engine(family_folders(family), tmp_path, device, dtype)
    bench = Bench(on)
    cold = bench.one(generate("cold", PROMPT, 6))
    warm = bench.one(generate("warm", PROMPT, 6))
    assert_same_bits(warm, cold)
    assert bench.counts("warm").read == (192 if on.input_processor.publishes else 0)
    assert (on.pool.cached_blocks > 0) == on.input_processor.publishes
    for number in range(20):
        bench.add(generate(f"neighbour {number}", PROMPT[number:], 6, read=False))
    beside = bench.one(generate("beside", PROMPT, 6))
    if on.input_processor.publishes:
        assert_same_bits(beside, cold)


@pytest.mark.gpu
def test_steps_cost_what_the_start_expects(tmp_path: Path) -> None:
    """Of a deep mixture of experts, of which the start times a few layers."""
    folder = write_family("mixtral", tmp_path / "model", num_hidden_layers=32)
    on = engine(folder, tmp_path, "cuda", "bfloat16")
    expected = on.costs.step_time(0, 1)
    bench = Bench(on)
    bench.add(generate("one", PROMPT[:20], 2 * STEPS))
    took = []
    while on.busy:
        began = time.perf_counter()
        bench.step()
        took.append((time.perf_counter() - began) * 1e6)
    assert expected > statistics.median(took) / 3
