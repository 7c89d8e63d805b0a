"""E1 and C2: a request's tokens and logits depend on nothing but the request, to the bit (fp32, CPU).

One condition at a time; `test_batch_invariance` has all of them together.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from engine.core.metrics import memory_load
from engine.execution.executor import StepExecutor
from engine.layers.attention_plan import CUTS
from engine.layers.linear import Linear
from engine.options import KvDtype
from engine.scheduling.step_costs import FixedCosts, Rates
from protocol.requests import Generate
from tests.engine.conftest import VOCABULARY, Bench, Families, Run, generate, make_bench, write_model
from tests.fast import only_fast
from tests.machines import MACHINES, become

SERVED = CUTS["cpu"]
# Long enough for three splits of keys as they are cut in these tests, short enough to be quick.
LENGTHS = [1, 3, 63, 64, 65, 127, 129, 200, 256, 270]
OUTPUT = 9
UNLIKE_LLAMA = [
    *("qwen2", "phi3 longrope", "gemma2", "gemma3", "mistral", "qwen3 moe", "gpt-oss", "deepseek v3"),
    *("gemma", "qwen2 moe", "smollm3", "granite", "olmo2", "glm4", "glm4 moe", "starcoder2", "phi"),
]
"""Families whose attention or feed-forward layers are computed in other ways than Llama's."""


def prompt(length: int, seed: int = 0) -> list[int]:
    return [(i * i * 31 + 17 * i + seed * 7 + length) % VOCABULARY for i in range(length)]


def request(id: str, length: int, seeded: bool, **fields: object) -> Generate:
    sampling = {"temperature": 1.3, "top_p": 0.9, "seed": length} if seeded else {}
    return generate(id, prompt(length), OUTPUT, **{**sampling, **fields})


@cache
def alone(folder: Path, length: int, seeded: bool, kv_dtype: KvDtype = "auto") -> Run:
    """The reference: alone, cold, in one chunk."""
    return make_bench(folder, budget=512, kv_dtype=kv_dtype).one(request("alone", length, seeded))


def check(run: Run, expected: Run) -> None:
    assert run.tokens == expected.tokens
    assert len(run.logits) == len(expected.logits)
    for ours, theirs in zip(run.logits, expected.logits, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kv_dtype", only_fast("auto", of=["auto", "fp8"]))
@pytest.mark.parametrize("length", only_fast(600, of=[450, 511, 513, 600, 1100]))
def test_with_keys_cut_as_they_are_when_serving(
    tiny_model: Path, length: int, kv_dtype: KvDtype, short_splits: None, monkeypatch: pytest.MonkeyPatch
):
    """Chunked, warm, decoded beside others whose splits have other lengths."""
    monkeypatch.setitem(CUTS, "cpu", SERVED)
    expected = make_bench(tiny_model, budget=2000, kv_dtype=kv_dtype).one(request("alone", length, True))
    bench = make_bench(tiny_model, budget=165, running=5, many_threads=2, kv_dtype=kv_dtype)
    for other in (30, 130, 520):
        bench.add(generate(f"beside {other}", prompt(other, 1), 40, read=False))
    check(bench.one(request("chunked", length, True)), expected)
    check(bench.one(request("warm", length, True)), expected)
    assert bench.counts("warm").read_hbm == (length - 1) // 64 * 64


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("length", only_fast(65, 200, of=LENGTHS))
def test_chunked_and_warm(tiny_model: Path, length: int, seeded: bool):
    expected = alone(tiny_model, length, seeded)
    bench = make_bench(tiny_model, budget=65, running=1, many_threads=2)
    check(bench.one(request("chunked", length, seeded)), expected)
    warm = bench.one(request("warm", length, seeded))
    check(warm, expected)
    assert bench.counts("warm").read_hbm == (length - 1) // 64 * 64
    # The whole answer as a prompt reads blocks that decode steps wrote.
    if not seeded:
        longer = generate("longer", prompt(length) + expected.tokens[:-1], 1)
        run = bench.one(longer)
        assert run.tokens == expected.tokens[-1:]
        assert torch.equal(run.logits[0], expected.logits[-1])


@pytest.mark.parametrize("length", only_fast(129, of=[65, 129, 270]))
@pytest.mark.parametrize("family", UNLIKE_LLAMA)
def test_every_family_chunked_and_warm(family_folders: Families, family: str, length: int):
    folder = family_folders(family)
    expected = alone(folder, length, True)
    bench = make_bench(folder, budget=65, running=1)
    check(bench.one(request("chunked", length, True)), expected)
    check(bench.one(request("warm", length, True)), expected)
    assert bench.counts("warm").read_hbm == (length - 1) // 64 * 64


@pytest.mark.parametrize("family", only_fast("llama", of=["llama", "gemma3", "gpt-oss", "deepseek v3"]))
def test_with_kv_in_fp8_too(family_folders: Families, family: str):
    """What is computed is read back in fp8 as well, so a warm prompt meets the same values."""
    folder, length = family_folders(family), 270
    expected = alone(folder, length, True, "fp8")
    assert not torch.equal(expected.logits[0], alone(folder, length, True).logits[0])
    bench = make_bench(folder, budget=65, running=1, kv_dtype="fp8")
    check(bench.one(request("chunked", length, True)), expected)
    check(bench.one(request("warm", length, True)), expected)
    assert bench.counts("warm").read_hbm == (length - 1) // 64 * 64


def check_tokens_and_last_logits(run: Run, expected: Run) -> None:
    assert run.tokens == expected.tokens
    for ours, theirs in zip(run.logits, expected.logits, strict=True):
        assert torch.equal(ours, theirs)


def preempting(folder: Path, length: int, swap: int, **fields: object) -> Bench:
    """Two requests that fit at first, and not when their outputs have grown."""
    bench = make_bench(folder, blocks=7, budget=200, running=4, swap=swap)
    bench.add(generate("old", prompt(length), 100))
    bench.add(generate("young", prompt(length, 1), 100, read=False, **fields))
    bench.finish()
    assert bench.engine.scheduler.preemptions > 0
    return bench


@pytest.mark.slow
@pytest.mark.parametrize(
    ("swap", "store"),
    only_fast((0, "all"), (9, "none"), of=[(0, "all"), (2, "all"), (9, "none"), (9, "hbm"), (0, "none")]),
)
def test_after_preemption_by_recompute(tiny_model: Path, swap: int, store: str):
    """Without a swap space, without room in it, or where the KV must not leave the device."""
    expected = make_bench(tiny_model).one(generate("x", prompt(130, 1), 100))
    bench = preempting(tiny_model, 130, swap, store=store)
    check_tokens_and_last_logits(bench.runs["young"], expected)
    counts = bench.counts("young")
    assert counts.recomputed > 0
    assert (counts.prompt, counts.computed, counts.output) == (130, 130, 100)
    assert bench.counts("old").recomputed == 0
    assert bench.engine.scheduler.tiers.dram.swaps == 0


@pytest.mark.parametrize("family", only_fast(None, of=[None, "gemma3", "gpt-oss", "deepseek v3"]))
def test_after_preemption_by_swap(tiny_model: Path, family_folders: Families, family: str | None):
    """What was swapped in is neither computed again nor read: its counts are those of the first time."""
    folder = tiny_model if family is None else family_folders(family)
    expected = make_bench(folder).one(generate("x", prompt(130, 1), 100))
    bench = preempting(folder, 130, 9)
    check(bench.runs["young"], expected)
    counts = bench.counts("young")
    assert (counts.prompt, counts.computed, counts.read, counts.recomputed, counts.output) == (130, 130, 0, 0, 100)
    assert bench.engine.scheduler.tiers.dram.swaps > 0
    assert memory_load(bench.engine)[-1].referenced == 0


def test_whoever_is_aborted_while_swapped_out_leaves_nothing(tiny_model: Path):
    bench = make_bench(tiny_model, blocks=7, budget=200, running=4, swap=9)
    bench.add(generate("old", prompt(130), 100))
    bench.add(generate("young", prompt(130, 1), 100, read=False))
    while not bench.engine.scheduler.tiers.dram.swaps:
        bench.step()
    assert memory_load(bench.engine)[-1].referenced > 0
    assert bench.engine.abort("young")
    assert memory_load(bench.engine)[-1].referenced == 0
    bench.finish()
    assert bench.counts("young").output == len(bench.runs["young"].tokens)


@pytest.mark.parametrize(("copied", "kept"), only_fast((1.0, 1), of=[(1.0, 1), (1e9, 0)]))
def test_the_cheaper_of_copying_and_computing_again_is_done(tiny_model: Path, copied: float, kept: int):
    bench = make_bench(tiny_model, blocks=7, budget=200, running=4, swap=9)
    bench.engine.scheduler.costs = FixedCosts(Rates(copied=copied))
    bench.add(generate("old", prompt(130), 100))
    bench.add(generate("young", prompt(130, 1), 100, read=False))
    bench.finish()
    assert min(1, bench.engine.scheduler.tiers.dram.swaps) == kept


def test_continued_elsewhere(tiny_model: Path):
    """Emitted tokens are context, and positions go on counting for the seed."""
    expected = alone(tiny_model, 129, True)
    half = expected.tokens[:4]
    run = make_bench(tiny_model).one(
        generate("b", prompt(129), OUTPUT, temperature=1.3, top_p=0.9, seed=129, emitted=(half,))
    )
    assert half + run.tokens == expected.tokens


@pytest.mark.slow
@pytest.mark.parametrize("name", MACHINES)
def test_on_any_machine_in_any_company(tiny_model: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    """Whatever its kernels make of the number of rows, once the self-test has found it out."""
    become(name, monkeypatch)
    expected = make_bench(tiny_model, budget=512).one(request("alone", 200, True))
    bench = make_bench(tiny_model, budget=165, running=5, many_threads=2)
    for other in (30, 130):
        bench.add(generate(f"beside {other}", prompt(other, 1), 40, read=False))
    check(bench.one(request("chunked", 200, True)), expected)
    check(bench.one(request("warm", 200, True)), expected)


@pytest.mark.parametrize("heads", [2, 3])
def test_one_query_head_for_each_of_few_kv_heads(heads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without the fused operation, in company: no step fails."""
    folder = write_model(tmp_path / "model", num_attention_heads=heads, num_key_value_heads=heads, head_dim=16)
    monkeypatch.setattr(StepExecutor, "_each_alone", lambda *_: pytest.fail("a step failed"))

    def unfused() -> Bench:
        bench = make_bench(folder)
        bench.engine.executor.runner.fused_attention = False
        return bench

    expected = unfused().one(request("alone", 20, False))
    bench = unfused()
    runs = [bench.add(request(str(number), 20, False, read=False)) for number in range(3)]
    bench.finish()
    for run in runs:
        check(run, expected)


@pytest.mark.parametrize("family", ["mixtral", "gpt-oss", "deepseek v3"])
def test_rows_come_in_few_counts(family: str, family_folders: Families, monkeypatch: pytest.MonkeyPatch):
    """By construction, not by the luck of this machine's kernels: no product, nor an expert's, has another."""
    met: set[int] = set()
    multiply = Linear._product

    def listen(product: Linear, x: torch.Tensor, plus: torch.Tensor | None) -> torch.Tensor:
        met.add(len(x))
        return multiply(product, x, plus)

    bench = make_bench(family_folders(family), budget=150)
    monkeypatch.setattr(Linear, "_product", listen)
    for length in (1, 3, 21, 77, 90):
        bench.add(generate(str(length), [length + at % 50 for at in range(length)], 5))
    bench.finish()
    # A token may be sent to several experts, but no expert has more rows than there are tokens.
    counts = set(bench.engine.executor.runner.tiling.counts(150))
    assert met <= counts
    assert len(met) >= min(4, len(counts)), "several were tried, unless this machine has fewer"
