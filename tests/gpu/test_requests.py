"""Requests of tiny models on a device get in fp32 what they get on the CPU: however they draw, in whatever memory."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.sampling.request_state import SamplingState
from engine.sampling.sampler import logprobs_of, sample
from protocol.requests import TokenLogprob
from tests.engine.conftest import Families, Run, generate, make_bench
from tests.engine.modes import MODES, bench_of, preempt, request
from tests.engine.sampling import test_sampler
from tests.engine.tiny_tokenizer import text_of

# Attention over everything, with windows and soft caps, with windows and sinks, over latents; and mixtures of experts.
FAMILIES = ["llama", "gemma2", "gemma3", "gpt-oss", "deepseek v3", "smollm3", "olmo2", "glm4", "starcoder2", "phi"]
PROMPT = [(7 * i * i + 3 * i) % 131 for i in range(200)]


def distance(run: Run, expected: Run) -> float:
    """How far the logits are from those expected, as a share of these."""
    ours, theirs = torch.stack(run.logits), torch.stack(expected.logits)
    return float((ours - theirs).norm() / theirs.norm())


def assert_equal(run: Run, expected: Run) -> None:
    """The same output; logits and log probabilities but for what two devices round differently."""
    assert run.done is not None
    assert expected.done is not None
    assert (run.done.reason, run.done.reasons) == (expected.done.reason, expected.done.reasons)
    assert run.choices == expected.choices
    assert distance(run, expected) < 1e-4
    for ours, theirs in ((run.logprobs, expected.logprobs), (run.prompt_logprobs, expected.prompt_logprobs)):
        assert told(ours) == pytest.approx(told(theirs), abs=1e-3)


def told(logprobs: Sequence[TokenLogprob]) -> list[float]:
    """Of each token its own log probability, then those of the likeliest."""
    return [value for one in logprobs for value in (one.logprob, *(likely for _, likely in one.top))]


@pytest.mark.parametrize("mode", test_sampler.MODES)
def test_the_sampler_draws_the_same(device: str, mode: str):
    how: dict[str, Any] = {"seed": 3, **test_sampler.MODES[mode]}
    state = test_sampler.row(0, test_sampler.PROMPT, test_sampler.OUTPUT, **how)
    rows: list[SamplingState] = []
    for position in range(200):
        rows.append(copy(state))
        rows[-1].position = position
    # Beside each other on the device, each alone on the CPU.
    drawn = sample(test_sampler.LOGITS.to(device).repeat(len(rows), 1), rows)
    assert drawn == [sample(test_sampler.LOGITS[None], [row])[0] for row in rows]
    assert len(set(drawn)) > 3


def test_log_probabilities_are_the_same_however_many_rows_are_told(device: str):
    """Of near certain tokens above all, whose log probabilities are what a sum's last bits say."""
    logits = torch.randn(64, 4_096, generator=torch.Generator().manual_seed(0)).to(device)
    tokens = [(37 * row) % 4_096 for row in range(64)]
    for row, token in enumerate(tokens):
        logits[row, token] = 22.0 + row / 7
    expected = logprobs_of(logits, tokens, [3] * 64)
    for count in (1, 2, 3, 5, 8, 17, 33):
        assert logprobs_of(logits[:count], tokens[:count], [3] * count) == expected[:count], count


def test_every_mode_beside_the_others(tiny_model: Path, tokenizer: Path, device: str):
    alone = {mode: bench_of(tiny_model, tokenizer).one(request("alone", 129, mode)) for mode in MODES}
    bench = bench_of(tiny_model, tokenizer, device=device, budget=150, running=20)
    together = {mode: bench.add(request(mode, 129, mode)) for mode in MODES}
    bench.finish()
    assert len({tuple(run.tokens) for run in together.values()}) == len(MODES)
    for mode, run in together.items():
        assert_equal(run, alone[mode])


@pytest.mark.parametrize("mode", sorted(MODES.keys() - {"of the prompt"}))
def test_a_request_goes_on_where_another_replica_died(tiny_model: Path, tokenizer: Path, device: str, mode: str):
    """After five random amounts of its output, of each choice another one: the same tokens follow."""
    dice = random.Random(mode)
    whole = bench_of(tiny_model, tokenizer, device=device, budget=512).one(request("whole", 129, mode))
    assert whole.done is not None
    bench = bench_of(tiny_model, tokenizer, device=device, budget=150, running=20)
    for number in range(5):
        told = {choice: dice.randint(1, len(tokens) - 1) for choice, tokens in whole.choices.items()}
        emitted = tuple(whole.choices[choice][: told[choice]] for choice in sorted(told))
        run = bench.one(request(str(number), 129, mode, emitted=emitted, read=number % 2 == 0))
        for choice, tokens in whole.choices.items():
            assert emitted[choice] + run.choices[choice] == tokens
        assert run.done is not None
        assert (run.done.reason, run.done.counts.output) == (whole.done.reason, whole.done.counts.output)


@pytest.mark.parametrize("swap", [0, 9], ids=["recomputed", "swapped"])
@pytest.mark.parametrize("mode", ["grammar", "penalties"])
def test_preempted_in_the_middle_of_its_output(tiny_model: Path, tokenizer: Path, device: str, mode: str, swap: int):
    preempted = preempt(tiny_model, tokenizer, mode, swap, device=device)
    assert_equal(preempted.run, preempted.alone)
    assert any(output > 10 for output in preempted.written)
    assert (preempted.recomputed > 0) == (swap == 0)
    if mode == "grammar":
        assert len(json.loads(text_of(tokenizer, preempted.run.tokens))) == 25


@pytest.mark.parametrize(
    ("family", "kv_dtype"),
    [("llama", "fp8"), ("gemma2", "auto"), ("gemma3", "fp8"), ("gpt-oss", "auto"), ("deepseek v3", "fp8")],
)
def test_swapped_out_and_back_in_every_kind_of_memory(
    family_folders: Families, tokenizer: Path, device: str, family: str, kv_dtype: str
):
    preempted = preempt(family_folders(family), tokenizer, "top-p", 9, device=device, kv_dtype=kv_dtype)
    assert_equal(preempted.run, preempted.alone)
    assert preempted.written
    assert preempted.recomputed == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_the_same_model(family_folders: Families, device: str, family: str):
    """Full KV to what rounding leaves; in fp8 an element or two may be rounded to a neighbour, and no more."""
    for kv_dtype, bound in (("auto", 1e-4), ("fp8", 1e-2)):
        benches = [make_bench(family_folders(family), kv_dtype=kv_dtype, device=each) for each in ("cpu", device)]
        expected, run = (bench.one(generate("a", PROMPT, 1)) for bench in benches)
        assert distance(run, expected) < bound
        warm = benches[1].one(generate("warm", PROMPT, 1))
        assert benches[1].counts("warm").read_hbm == 192
        assert distance(warm, run) < bound


def test_a_neighbour_that_is_aborted_while_swapped_out_leaves_nothing(tiny_model: Path, tokenizer: Path, device: str):
    alone = bench_of(tiny_model, tokenizer).one(request("x", 130, "greedy", output=70))
    bench = bench_of(tiny_model, tokenizer, blocks=6, budget=200, running=4, swap=9, device=device)
    old = bench.add(request("old", 130, "greedy", output=70))
    bench.add(request("young", 129, "penalties", output=100, lane="batch"))
    while not bench.engine.scheduler.preemptions:
        bench.step()
    assert bench.engine.abort("young")
    bench.finish()
    assert_equal(old, alone)
    assert bench.engine.pool.referenced_blocks == 0
    swap = bench.engine.scheduler.tiers.dram.pool
    assert swap is not None
    assert swap.referenced_blocks == 0
