"""How many threads steps use follows what the steps took, and asking costs little."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import pytest
import torch

from engine.execution.cpu_threads import Choice, Threads
from tests.engine.conftest import Bench, generate


def drive(choice: Choice, steps: int, took: Callable[[int, int], float], rows: Callable[[int], int]) -> list[int]:
    """Which numbers of threads the steps used; `took` says how long by number of threads and step."""
    used = []
    for step in range(steps):
        count = choice.next(rows(step))
        used.append(count)
        choice.took(took(count, step))
    return used


def test_the_faster_is_taken_within_a_hundred_steps():
    choice = Choice(1, 2)
    drive(choice, 100, lambda count, _: {1: 10, 2: 8}[count], lambda _: 8)
    assert choice.best == 2


@pytest.mark.parametrize("ratio", [0.97, 1.0, 5.0])
def test_what_is_no_faster_is_seldom_tried(ratio: float):
    choice = Choice(1, 2)
    used = drive(choice, 10_000, lambda count, _: 10 if count == 1 else 10 * ratio, lambda _: 8)
    assert choice.best == 1
    assert used.count(2) < 130
    assert used[-1024:].count(2) <= 8


def test_it_follows_the_machine():
    """Free cores, then something else on one of them."""
    choice = Choice(1, 2)
    drive(choice, 1000, lambda count, _: 10 / count, lambda _: 1)
    assert choice.best == 2
    drive(choice, 3000, lambda count, _: 10 * count, lambda _: 1)
    assert choice.best == 1


def test_one_slow_moment_changes_nothing():
    choice = Choice(1, 2)
    drive(choice, 5000, lambda count, step: 100 if step % 97 == 0 else 10 + 0.1 * count, lambda _: 1)
    assert choice.best == 1


def test_what_takes_several_times_as_long_is_given_up_at_its_second_step():
    choice = Choice(1, 2)
    used = drive(choice, 10_000, lambda count, _: 10 if count == 1 else 50, lambda _: 8)
    assert choice.best == 1
    assert max(len(list(steps)) for count, steps in groupby(used) if count == 2) == 2


@pytest.mark.parametrize("elements", [1, 7_000_000, 500_000_000])
def test_what_steps_begin_with_is_guessed_and_then_learnt(elements: int, monkeypatch: pytest.MonkeyPatch):
    """However wrong the guess: within a few dozen steps of a size, and without a step before there is work."""
    monkeypatch.setattr("engine.execution.cpu_threads.all_threads", lambda: 2)
    before = torch.get_num_threads()
    try:
        for faster in (1, 2):
            threads = Threads.guessed(elements)
            assert threads.counts == (1, 2)
            for _ in range(60):
                for rows in (1, 64):
                    threads.begin(rows)
                    threads.ended(1.0 if torch.get_num_threads() == faster else 1.5)
            for rows in (1, 64):
                threads.use(rows)
                assert torch.get_num_threads() == faster
    finally:
        torch.set_num_threads(before)


def test_one_core_has_nothing_to_compare(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("engine.execution.cpu_threads.all_threads", lambda: 1)
    assert Threads.guessed(1 << 30).counts == (1,)


def test_steps_of_different_rows_are_not_compared():
    choice = Choice(1, 2)
    assert set(drive(choice, 1000, lambda count, _: 10 / count, lambda step: 5 + step % 2)) == {1}


def test_each_size_of_step_learns_for_itself():
    threads = Threads(1, 1, (1, 2))
    before = torch.get_num_threads()
    try:
        for _ in range(200):
            for rows, faster in ((2, 1), (256, 2)):
                threads.begin(rows)
                threads.ended(1.0 if torch.get_num_threads() == faster else 2.0)
        counts = []
        for rows in (2, 256, 1, 40):
            threads.use(rows)
            counts.append(torch.get_num_threads())
        assert counts == [1, 2, 1, 1]
        threads.fix(1)
        threads.use(256)
        assert torch.get_num_threads() == 1
        assert threads.counts == (1,)
    finally:
        torch.set_num_threads(before)


def test_decodes_that_are_padded_to_as_many_rows_are_compared(
    benches: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
):
    """Else nothing is learnt where requests come and go at every few steps."""
    asked: list[int] = []
    monkeypatch.setattr(Threads, "begin", lambda self, rows: asked.append(rows))
    bench = benches(blocks=256, running=16)
    for number in range(16):
        bench.add(generate(str(number), [number + 2] * 9, 2 * number + 4))
    bench.finish()
    assert {rows for rows in asked if 8 < rows <= 16} == {16}
