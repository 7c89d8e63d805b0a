"""Identical prompts that come together are computed once, and all get the tokens that each would get alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.conftest import Bench, generate, make_bench
from tests.engine.families import write_family

PROMPT = [(7 * i + 3) % 97 for i in range(300)]
WHOLE = 4 * 64
"""Tokens of the prompt's whole blocks that may be read."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family("llama", tmp_path_factory.mktemp("llama"))


def bench_of(folder: Path) -> Bench:
    return make_bench(folder, blocks=200, budget=128 + 16, running=16)


def test_eight_at_once_compute_one_prompt(folder: Path) -> None:
    alone = bench_of(folder).one(generate("x", PROMPT))
    bench = bench_of(folder)
    runs = [bench.add(generate(f"r{number}", PROMPT)) for number in range(8)]
    bench.finish()
    counts = [run.done.counts for run in runs if run.done]
    assert [run.tokens for run in runs] == [alone.tokens] * 8
    assert sorted(count.read_hbm for count in counts) == [0, *[WHOLE] * 7]
    assert sum(count.computed for count in counts) == len(PROMPT) + 7 * (len(PROMPT) - WHOLE)


def test_one_that_leaves_hands_the_work_on(folder: Path) -> None:
    alone = bench_of(folder).one(generate("x", PROMPT))
    bench = bench_of(folder)
    runs = [bench.add(generate(f"r{number}", PROMPT)) for number in range(3)]
    bench.step()
    bench.engine.abort("r0")
    bench.finish()
    assert [run.tokens for run in runs[1:]] == [alone.tokens] * 2
    counts = [run.done.counts for run in runs if run.done]
    assert sum(count.read_hbm for count in counts[1:]) >= WHOLE


def test_those_that_share_nothing_do_not_wait(folder: Path) -> None:
    bench = bench_of(folder)
    private = [bench.add(generate(f"p{number}", PROMPT, store="none")) for number in range(2)]
    unread = bench.add(generate("u", PROMPT, read=False))
    bench.finish()
    assert [run.done.counts.computed for run in (*private, unread) if run.done] == [len(PROMPT)] * 3
