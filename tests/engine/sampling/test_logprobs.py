"""Log probabilities of output and prompt: against a reference, in any company and chunking, honest about the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from protocol.requests import Counts, TokenLogprob
from tests.engine.conftest import VOCABULARY, Bench, generate

Benches = Callable[..., Bench]
LONG = [(11 * i + i * i) % VOCABULARY for i in range(300)]
SHAPED: dict[str, Any] = {"temperature": 1.6, "top_k": 9, "presence_penalty": 1.0, "logit_bias": {3: 5.0}, "seed": 4}


def reference(logits: torch.Tensor, token: int, count: int) -> TokenLogprob:
    values = torch.log_softmax(logits.double(), -1).float()
    best = sorted(range(VOCABULARY), key=lambda other: -values[other].item())[:count]
    return TokenLogprob(values[token].item(), tuple((other, values[other].item()) for other in best))


def same(ours: TokenLogprob, theirs: TokenLogprob) -> bool:
    close = abs(ours.logprob - theirs.logprob) < 1e-6
    tops = all(a[0] == b[0] and abs(a[1] - b[1]) < 1e-6 for a, b in zip(ours.top, theirs.top, strict=True))
    return close and tops


@pytest.mark.parametrize("how", [{}, SHAPED])
def test_of_the_output_by_the_model_alone(bench: Bench, how: dict[str, Any]):
    run = bench.one(generate("a", LONG, 12, logprobs=5, **how))
    assert len(run.logprobs) == 12
    for logits, token, told in zip(run.logits, run.tokens, run.logprobs, strict=True):
        assert same(told, reference(logits, token, 5))


def test_in_any_company_to_the_bit(benches: Benches):
    alone = benches().one(generate("a", LONG, 12, logprobs=3, **SHAPED)).logprobs
    bench = benches(budget=100, running=16)
    for index in range(7):
        bench.add(generate(f"n{index}", LONG[index:], 20, logprobs=index if index % 2 else None, temperature=1.0))
    together = bench.add(generate("a", LONG, 12, logprobs=3, **SHAPED))
    bench.finish()
    assert together.logprobs == alone


def test_of_the_prompt_in_any_chunking(benches: Benches):
    whole = benches(budget=512).one(generate("a", LONG, 3, prompt_logprobs=2))
    assert len(whole.prompt_logprobs) == 299
    tops = {told.top[0][0] for told in whole.prompt_logprobs}
    assert len(tops) > 20
    bench = benches(budget=70, running=4)
    bench.add(generate("n", LONG[5:], 20))
    chunked = bench.add(generate("a", LONG, 3, prompt_logprobs=2))
    bench.finish()
    assert chunked.prompt_logprobs == whole.prompt_logprobs
    assert chunked.tokens == whole.tokens
    for length in (1, 64, 65, 250):
        run = benches().one(generate("x", LONG[:length], 1))
        assert same(whole.prompt_logprobs[length - 1], reference(run.logits[0], LONG[length], 2))


def test_of_the_prompt_nothing_is_read_and_counts_say_so(bench: Bench):
    bench.one(generate("first", LONG, 2))
    run = bench.one(generate("a", LONG, 0, prompt_logprobs=0))
    assert bench.counts("a") == Counts(prompt=300, computed=300)
    assert run.done is not None
    assert run.done.reason == "length"
    assert [told.top for told in run.prompt_logprobs] == [()] * 299
    assert run.began is not None
    assert run.began.misses[0].cause == "no_read"


@pytest.mark.slow
def test_of_the_prompt_once_though_preempted_and_for_several_choices(benches: Benches):
    whole = benches(budget=512).one(generate("a", LONG[:130], 60, prompt_logprobs=1)).prompt_logprobs
    bench = benches(blocks=9, budget=72, running=8)
    for index in range(4):
        bench.add(generate(f"n{index}", LONG[index : index + 60], 100, store="none"))
    run = bench.add(generate("a", LONG[:130], 60, prompt_logprobs=1, choices=2))
    bench.finish()
    assert bench.engine.scheduler.preemptions
    assert run.prompt_logprobs == whole


def test_out_of_range(bench: Bench):
    for name in ("logprobs", "prompt_logprobs"):
        run = bench.one(generate(name, LONG, 2, **{name: 21}))
        assert run.done is not None
        assert run.done.error == f"sampling.{name}: 21 is not at least 0 and at most 20"
    run = bench.one(generate("n", LONG, 2, choices=129))
    assert run.done is not None
    assert run.done.error == "choices: 129 is not within 1..128"
