"""The same engine on a GPU, by the kernels that the demo model fits, against itself on the CPU."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.core.engine import Engine
from engine.options import Device, Dtype
from engine.scheduling.step_costs import FixedCosts, Rates
from engine.startup.assembly import assemble
from engine.startup.options import ReplicaOptions
from gateway.generation_request import Text, Turn
from gateway.served_models.served_model import load_served_model
from protocol.replicas import Scope
from protocol.requests import Done, Generate, Sampling, Segment, Tokens

pytestmark = pytest.mark.gpu

DEMO_MODEL = Path(__file__).resolve().parents[2] / "models" / "stdlib-qa"
SCOPES = {"project": Scope("project", b"root" * 8, b"key".ljust(32), retention=3600.0)}
PROMPTS = [
    [4091, 4093, *((17 * i * (n + 1) + 3) % 4000 for i in range(length)), 4095, 4094]
    for n, length in enumerate((5, 70, 400, 1500))
]


def engine(tmp_path: Path, device: Device, dtype: Dtype, kv_memory: int = 1 << 29, **options: Any) -> Engine:
    return assemble(
        ReplicaOptions(
            DEMO_MODEL, "unix:unused", tmp_path, "gpu", b"", device=device, dtype=dtype, kv_memory=kv_memory, **options
        )
    ).engine


def questions() -> list[list[int]]:
    """What the model knows the answers of, so that a rounding does not change them."""
    model = load_served_model(DEMO_MODEL)
    asked = (
        "What does textwrap.dedent do?",
        "What does os.path.join do?",
        "What does math.gcd do?",
        "What is a deque?",
    )
    system = Turn("system", (Text("You answer questions about Python's standard library. " * 8, "system"),))
    return [list(model.prompt((system, Turn("user", (Text(text, "user"),)))).tokens) for text in asked]


def run(on: Engine, prompts: list[list[int]], max_tokens: int, name: str = "r") -> list[list[int]]:
    for index, prompt in enumerate(prompts):
        sampling = Sampling(max_tokens, temperature=0.0)
        segments = (Segment(len(prompt), "project"),)
        on.add(Generate(f"{name}{index}", 1, segments, prompt, sampling, credit=1 << 20), SCOPES)
    output: dict[str, list[int]] = {f"{name}{index}": [] for index in range(len(prompts))}
    open_requests = set(output)
    while open_requests:
        for event in on.step().events:
            if isinstance(event, Tokens):
                output[event.id] += event.tokens
            elif isinstance(event, Done):
                assert event.reason == "length", event
                event.counts.check()
                open_requests.discard(event.id)
        on.pool.check()
    return [output[f"{name}{index}"] for index in range(len(prompts))]


def test_fp32_on_the_gpu_says_what_the_cpu_says(tmp_path: Path) -> None:
    expected = run(engine(tmp_path, "cpu", "float32"), PROMPTS, 48)
    assert run(engine(tmp_path, "cuda", "float32"), PROMPTS, 48) == expected


def test_bf16_agrees_at_the_beginning(tmp_path: Path) -> None:
    expected = run(engine(tmp_path, "cpu", "float32"), PROMPTS, 16)
    got = run(engine(tmp_path, "cuda", "bfloat16"), PROMPTS, 16)
    same = sum(a == b for want, have in zip(expected, got, strict=True) for a, b in zip(want, have, strict=True))
    assert same >= 0.5 * 16 * len(PROMPTS), (same, expected, got)


def test_a_warm_prefix_is_read_on_the_gpu(tmp_path: Path) -> None:
    on = engine(tmp_path, "cuda", "float32")
    cold = run(on, PROMPTS, 24, "cold")
    read = on.outputs.totals["read"]
    assert run(on, PROMPTS, 24, "warm") == cold
    assert on.outputs.totals["read"] - read >= 1500 // 64 * 64


FEW_BITS: dict[str, Any] = {"kv_dtype": "fp8", "quantize": "fp8", "weights": "packed"}


def test_kv_and_weights_in_few_bits(tmp_path: Path) -> None:
    assert_few_bits_say_the_same(tmp_path, "cuda")


def assert_few_bits_say_the_same(tmp_path: Path, device: Device) -> None:
    prompts = questions()
    expected = run(engine(tmp_path, "cpu", "float32", 8 << 20, **FEW_BITS), prompts, 12)
    on = engine(tmp_path, device, "float32", 8 << 20, **FEW_BITS)
    cold = run(on, prompts, 12, "cold")
    read = on.outputs.totals["read"]
    warm = run(on, prompts, 12, "warm")
    whole = sum((len(prompt) - 1) // 64 * 64 for prompt in prompts)
    assert on.outputs.totals["read"] - read >= (whole if on.input_processor.publishes else 0)
    for got in (cold, warm):
        same = sum(a == b for want, have in zip(expected, got, strict=True) for a, b in zip(want, have, strict=True))
        assert same >= 0.75 * 12 * len(prompts), (same, expected, got)


def test_what_does_not_fit_is_swapped(tmp_path: Path) -> None:
    assert_swapped(tmp_path, "cuda")


def assert_swapped(tmp_path: Path, device: Device) -> None:
    expected = run(engine(tmp_path, "cpu", "float32"), PROMPTS[:2] * 4, 200)
    on = engine(tmp_path, device, "float32", 6 << 20, swap_share=2.0, context=512)
    # The fused kernels compute so small a model's KV in less time than it takes to copy it.
    on.scheduler.costs = FixedCosts(Rates(copied=0.01))
    assert run(on, PROMPTS[:2] * 4, 200) == expected
    assert on.scheduler.preemptions > 0
    assert on.scheduler.tiers.dram.swaps > 0
    assert on.scheduler.tiers.dram.pool is not None
    while on.busy:  # the background writer goes on
        on.step()
    assert on.scheduler.tiers.dram.pool.referenced_blocks == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_speed_is_reported(tmp_path: Path, dtype: Dtype, record_property: Callable[[str, object], None]) -> None:
    """No bar yet: the figure is printed, for the notes."""
    on = engine(tmp_path, "cuda", dtype)
    run(on, PROMPTS[:1], 8, "warm-up")
    figures = {}
    for batch in (1, 8, 64):
        started = time.perf_counter()
        run(on, [[4091, 4093, index + 5, 4095, 4094] for index in range(batch)], 64, f"b{batch}-")
        figures[batch] = round(batch * 64 / (time.perf_counter() - started))
    print(json.dumps({"dtype": dtype, "tokens_per_s": figures}))
    record_property("tokens_per_s", json.dumps(figures))
    assert all(figures.values())


@pytest.mark.parametrize("raises", [False, True])
def test_stock_operations_take_the_place_of_kernels_that_fail_their_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    """With the memory that those had: most of the device's is for KV, which does not fit twice."""
    from engine.execution.cuda import start  # Triton, on a GPU alone
    from engine.execution.cuda.runner import CudaRunner

    def test(_runner: CudaRunner) -> bool:
        if raises:
            raise RuntimeError("out of resource: shared memory")
        return False

    prompts = questions()
    expected = run(engine(tmp_path / "fused", "cuda", "float32"), prompts, 20)
    monkeypatch.setattr(start, "rows_keep_their_bits", test)
    stock = engine(tmp_path / "stock", "cuda", "float32", kv_memory=0, swap_share=0.0)
    assert not isinstance(stock.executor.runner, CudaRunner)
    assert run(stock, prompts, 20) == expected
