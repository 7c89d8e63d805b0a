"""Requests with adapters in an engine: alone as in company, cold as warm, preempted, beside base rows; and whose KV."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.speculation.ngram_drafter import NgramDrafter
from model_files.adapter_file import pack, read_packed
from protocol.requests import Segment
from tests import adapter_files
from tests.engine.conftest import Bench, Run, generate, make_bench

PROMPT = [int(token) for token in np.random.default_rng(0).integers(2, 131, 200)]
OTHER = [int(token) for token in np.random.default_rng(1).integers(2, 131, 150)]

Benches = Callable[..., Bench]


def give(bench: Bench, rank: int = 8, seed: int = 1, **fields: object) -> str:
    """Give the bench's engine an adapter; returns its digest."""
    content = pack(
        adapter_files.config(rank, **fields), adapter_files.safetensors(adapter_files.matrices(rank, seed=seed))
    )
    digest = read_packed(content, "base").digest
    assert bench.engine.adapters is not None
    bench.engine.adapters.take(digest, content)
    return digest


def same(one: Run, other: Run) -> None:
    assert one.tokens == other.tokens
    assert len(one.logits) == len(other.logits) > 0
    assert all(torch.equal(a, b) for a, b in zip(one.logits, other.logits, strict=True))


def test_a_base_request_beside_adapters_has_the_bits_of_a_base_engine(benches: Benches) -> None:
    plain = benches().one(generate("base", PROMPT))
    bench = benches(adapters=4)
    runs = [bench.add(generate("base", PROMPT))]
    for seed in range(3):
        bench.add(generate(f"adapted{seed}", PROMPT, adapter=give(bench, seed=seed + 1, rank=8 << seed)))
    bench.finish()
    same(plain, runs[0])


@pytest.mark.parametrize("rank", [8, 16, 64])
def test_an_adapted_request_is_alone_as_in_company(benches: Benches, rank: int) -> None:
    bench = benches(adapters=4)
    alone = bench.one(generate("alone", PROMPT, adapter=give(bench, rank=rank)))
    assert alone.tokens != benches().one(generate("base", PROMPT)).tokens
    bench = benches(adapters=4, budget=128)
    digest = give(bench, rank=rank)
    company = [
        generate("a", OTHER),
        generate("b", OTHER, adapter=give(bench, seed=5, rank=32)),
        generate("c", OTHER[:70], adapter=digest),
    ]
    for request in company:
        bench.add(request)
    bench.step()
    run = bench.add(generate("d", PROMPT, adapter=digest))
    bench.finish()
    same(alone, run)


def test_an_adapted_request_is_warm_as_cold(benches: Benches) -> None:
    bench = benches(adapters=2)
    digest = give(bench)
    cold = bench.one(generate("cold", PROMPT, adapter=digest))
    warm = bench.one(generate("warm", PROMPT, adapter=digest))
    same(cold, warm)
    assert warm.done is not None
    assert warm.done.counts.read_hbm == 192


def test_kv_of_one_adapter_is_neither_anothers_nor_the_bases(benches: Benches) -> None:
    bench = benches(adapters=4)
    first = give(bench)
    # the same tensors under another alpha are another adapter
    digests = ["", first, give(bench, alpha=17), give(bench, seed=2), give(bench, use_rslora=True)]
    assert len(set(digests)) == 5
    reads = [
        bench.one(generate(f"request{at}", PROMPT, adapter=digest)).done.counts.read  # type: ignore[union-attr]
        for at, digest in enumerate(digests)
    ]
    assert reads == [0] * 5
    again = bench.one(generate("again", PROMPT, adapter=first))
    assert again.done is not None
    assert again.done.counts.read == 192


def test_a_preempted_adapted_request_goes_on_with_the_same_bits(benches: Benches) -> None:
    bench = benches(adapters=2, blocks=9, running=4)
    digest = give(bench)
    alone = bench.one(generate("alone", PROMPT, 100, adapter=digest))
    crowd = benches(adapters=2, blocks=9, running=4)
    give(crowd)
    runs = [crowd.add(generate(f"one{at}", PROMPT[at:], 100, adapter=digest, store="none")) for at in range(3)]
    crowd.finish()
    assert crowd.engine.scheduler.preemptions > 0
    same(alone, runs[0])


def test_drafts_change_nothing_of_an_adapted_request(benches: Benches, tiny_model: Path) -> None:
    repeated = PROMPT[:20] * 8
    plain = benches(adapters=2)
    digest = give(plain)
    expected = plain.one(generate("plain", repeated, 40, adapter=digest))
    drafting = make_bench(tiny_model, adapters=2, drafters=[NgramDrafter()])
    give(drafting)
    run = drafting.one(generate("drafted", repeated, 40, adapter=digest, prediction=tuple(expected.tokens)))
    assert run.tokens == expected.tokens


def test_choices_of_an_adapted_request_are_all_adapted(benches: Benches) -> None:
    bench = benches(adapters=2)
    digest = give(bench)
    alone = bench.one(generate("alone", PROMPT, adapter=digest))
    several = bench.one(generate("several", PROMPT, adapter=digest, choices=3))
    assert list(several.choices.values()) == [alone.tokens] * 3


def test_an_unknown_adapter_is_refused_for_a_while_and_one_is_refused_where_none_are_computed(benches: Benches) -> None:
    unknown = benches(adapters=1).one(generate("a", PROMPT, adapter="00"))
    assert unknown.done is not None
    assert (unknown.done.reason, unknown.done.invalid) == ("rejected", None)
    assert unknown.done.refusal is not None
    without = benches().one(generate("a", PROMPT, adapter="00"))
    assert without.done is not None
    assert (without.done.reason, without.done.invalid) == ("rejected", "adapter")


def test_more_adapters_than_slots_are_all_served(benches: Benches) -> None:
    bench = benches(adapters=2, running=4)
    runs = {}
    for at in range(12):
        digest = give(bench, seed=at % 6 + 1)
        runs[at] = bench.add(generate(f"request{at}", PROMPT[:80], 4, adapter=digest, flow=f"flow{at % 3}"))
    base = bench.add(generate("base", PROMPT[:80], 4))
    bench.finish()
    for at in range(6):
        same(runs[at], runs[at + 6])
    assert base.done is not None
    assert len(bench.engine.scheduler.adapters.resident) <= 2


def test_a_request_in_flight_keeps_an_adapter_that_is_dropped(benches: Benches) -> None:
    bench = benches(adapters=2)
    digest = give(bench)
    alone = bench.one(generate("alone", PROMPT, 20, adapter=digest))
    run = bench.add(generate("dropped", PROMPT, 20, adapter=digest))
    bench.step()
    bench.step()
    bench.engine.drop_adapter(digest)
    late = bench.add(generate("late", PROMPT, 20, adapter=digest))
    bench.finish()
    same(alone, run)
    assert late.done is not None
    assert late.done.reason == "rejected"


def test_an_adapter_goes_with_the_last_scope_that_named_it(benches: Benches) -> None:
    bench = benches(adapters=2)
    digest = give(bench)
    assert bench.engine.adapters is not None
    for name in ("project", "other"):
        bench.one(generate(name, PROMPT, adapter=digest, segments=(Segment(len(PROMPT), name),)))
    bench.engine.forget("project")
    assert bench.engine.adapters.find(digest) is not None
    bench.engine.forget("other")
    assert bench.engine.adapters.find(digest) is None
    assert bench.engine.scheduler.adapters.resident == ()


# ---------------------------------------------------------------- activated adapters

INVOCATION = (7, 8, 9)


def test_an_activated_adapter_reads_the_bases_conversation_and_answers_as_if_cold(tiny_model: Path) -> None:
    bench = make_bench(tiny_model, adapters=2, blocks=128)
    chance = np.random.default_rng(3)
    conversation = [int(token) for token in chance.integers(10, 131, 1900)]
    base = bench.one(generate("base", conversation, 8))
    prompt = conversation + base.tokens + list(INVOCATION)
    digest = give(bench, alora_invocation_tokens=list(INVOCATION))
    warm = bench.one(generate("warm", prompt, 12, adapter=digest))
    assert warm.done is not None
    assert warm.done.counts.read >= len(prompt) - 64 - len(INVOCATION)
    fresh = make_bench(tiny_model, adapters=2, blocks=128)
    give(fresh, alora_invocation_tokens=list(INVOCATION))
    cold = fresh.one(generate("cold", prompt, 12, adapter=digest))
    same(cold, warm)
    assert cold.tokens != fresh.one(generate("base", prompt, 12)).tokens


def test_base_requests_do_not_read_what_an_activated_adapter_computed(benches: Benches) -> None:
    bench = benches(adapters=2)
    digest = give(bench, alora_invocation_tokens=list(INVOCATION))
    prompt = [token for token in PROMPT if token not in INVOCATION][:130] + list(INVOCATION) + OTHER
    adapted = bench.one(generate("adapted", prompt, adapter=digest))
    base = bench.one(generate("base", prompt))
    assert base.done is not None
    assert base.done.counts.read == 128  # the blocks before that of the invocation are the base model's
    same(base, benches().one(generate("alone", prompt)))
    again = bench.one(generate("again", prompt, adapter=digest))
    same(adapted, again)
    assert again.done is not None
    assert again.done.counts.read == (len(prompt) - 1) // 64 * 64


def test_the_last_invocation_counts_and_one_must_be_there(benches: Benches) -> None:
    bench = benches(adapters=2)
    digest = give(bench, alora_invocation_tokens=list(INVOCATION))
    assert bench.engine.adapters is not None
    adapter = bench.engine.adapters.find(digest)
    assert adapter is not None
    assert adapter.acts_from([1, *INVOCATION, 2, 7, *INVOCATION, 7, 8]) == 6
    assert adapter.acts_from([7, 8]) is None
    refused = bench.one(generate("refused", [5] * 70, adapter=digest))
    assert refused.done is not None
    assert (refused.done.reason, refused.done.invalid) == ("rejected", "adapter")
