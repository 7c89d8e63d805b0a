"""Fetch or recompute: what is planned, and what is learnt."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prompt_cache.placement.fetch_or_recompute import (
    ComputeRate,
    FetchOrRecompute,
    Missing,
    Place,
    TierRate,
)
from tests.fast import examples

BLOCK_BYTES = 1 << 20
COMPUTE = ComputeRate(1e-4)
"""6.4 ms a block."""


def chooser(dram: float = 1e16, nvme: float = 1e9, fixed_s: float = 0.0) -> FetchOrRecompute:
    return FetchOrRecompute({"dram": TierRate(fixed_s, dram), "nvme": TierRate(fixed_s, nvme)}, COMPUTE)


def missing(*runs: tuple[Place, int]) -> Missing:
    return Missing(0, runs, 64, BLOCK_BYTES)


def test_a_quick_tier_is_fetched_whole_and_a_slow_one_not_at_all() -> None:
    quick = chooser().plan(missing(("dram", 100)), 0.0)
    assert (quick.compute, quick.fetch) == (0, 100)
    slow = chooser(nvme=1e6).plan(missing(("nvme", 100)), 0.0)
    assert (slow.compute, slow.fetch) == (100, 0)
    assert slow.seconds == pytest.approx(0.64)


def test_what_the_steps_copy_themselves_is_not_computed_meanwhile() -> None:
    """A copy and a computation of as long: one after the other, either way takes the same, and so does a mixture."""
    plan = chooser(dram=BLOCK_BYTES / 3.2e-3).plan(missing(("dram", 100)), 0.0)
    assert (plan.compute, plan.fetch) == (0, 100)
    assert plan.seconds == pytest.approx(0.32)
    slower = chooser(dram=BLOCK_BYTES / 12.8e-3).plan(missing(("dram", 100)), 0.0)
    assert (slower.compute, slower.fetch) == (100, 0)
    both = chooser(dram=BLOCK_BYTES / 1e-3, nvme=BLOCK_BYTES / 6.4e-3).plan(missing(("nvme", 100)), 0.0)
    assert both.fetch == pytest.approx(54, abs=1)
    assert both.seconds == pytest.approx((100 - both.fetch) * 6.4e-3 + both.fetch * 1e-3, rel=0.02)


def test_where_both_take_as_long_each_does_half() -> None:
    plan = chooser(nvme=BLOCK_BYTES / 6.4e-3).plan(missing(("nvme", 100)), 0.0)
    assert (plan.compute, plan.fetch) == (50, 50)
    assert plan.seconds == pytest.approx(0.32)


def test_a_short_prompt_does_not_pay_the_fixed_time() -> None:
    slow_to_start = chooser(fixed_s=0.1)
    assert slow_to_start.plan(missing(("nvme", 4)), 0.0).fetch == 0
    assert slow_to_start.plan(missing(("nvme", 400)), 0.0).fetch > 300
    assert slow_to_start.pays_from("nvme", 64, BLOCK_BYTES) == 19 * 64
    assert chooser(nvme=1e6).pays_from("nvme", 64, BLOCK_BYTES) is None


def test_a_deep_prompt_is_fetched_where_a_flat_one_is_computed() -> None:
    deep = ComputeRate(1e-4, context_s=1e-8)
    tiers: dict[Place, TierRate] = {"nvme": TierRate(0.0, BLOCK_BYTES / 20e-3)}
    flat = FetchOrRecompute(tiers, deep).plan(Missing(0, (("nvme", 8),), 64, BLOCK_BYTES), 0.0)
    far = FetchOrRecompute(tiers, deep).plan(Missing(100_000, (("nvme", 8),), 64, BLOCK_BYTES), 0.0)
    assert flat.fetch < 4 < far.fetch


def test_others_who_read_and_compute_count() -> None:
    alone = chooser(nvme=BLOCK_BYTES / 6.4e-3)
    plan = alone.plan(missing(("nvme", 100)), 0.0)
    for _ in range(9):
        alone.begin("nvme", 100 * BLOCK_BYTES, 0.0)
    crowded = alone.plan(missing(("nvme", 100)), 0.0)
    assert crowded.fetch < plan.fetch / 3
    busy = chooser(nvme=BLOCK_BYTES / 6.4e-3).plan(missing(("nvme", 100)), 0.0, waiting_tokens=100_000, sharers=9)
    assert busy.fetch > 85


def test_a_throttled_disk_is_noticed_while_it_reads_and_tried_again_later() -> None:
    disk = chooser(nvme=1e9)
    wanted = missing(("nvme", 100))
    assert disk.plan(wanted, 0.0).fetch > 80
    piece = disk.begin("nvme", 16 * BLOCK_BYTES, 0.0)  # 17 ms are expected
    assert disk.plan(wanted, 2.0, reading={"nvme": 16 * BLOCK_BYTES}).fetch < 20, "it is 100 times slower than it was"
    disk.end("nvme", piece, 2.0)
    assert disk.plan(wanted, 2.1).fetch < 40
    for second in range(3, 9):
        piece = disk.begin("nvme", 16 * BLOCK_BYTES, second)
        disk.end("nvme", piece, second + 2.0)
    assert disk.plan(wanted, 11.0).fetch < 10
    assert disk.plan(wanted, 300.0).fetch > 60, "what was not used for long is tried again"


def test_a_short_pause_says_nothing_of_a_disk() -> None:
    """The first of many reads waits for its thread, and a step of the engine holds the interpreter meanwhile."""
    disk = chooser(nvme=4e9)
    for _ in range(60):
        disk.begin("nvme", BLOCK_BYTES, 0.0)
    assert disk.plan(missing(("nvme", 15)), 0.0055, reading={"nvme": 15 * BLOCK_BYTES}).compute == 0
    assert disk.plan(missing(("nvme", 15)), 0.1, reading={"nvme": 15 * BLOCK_BYTES}).fetch == 0


def test_a_front_that_saves_little_is_not_computed() -> None:
    """Others have a use for the device: a twelfth of the prompt computed would save as much of the time."""
    plan = chooser(nvme=11 * BLOCK_BYTES / 6.4e-3).plan(missing(("nvme", 100)), 0.0)
    assert (plan.compute, plan.fetch) == (0, 100)


def test_a_failed_read_teaches_nothing() -> None:
    disk = chooser()
    before = disk.plan(missing(("nvme", 100)), 0.0)
    disk.end("nvme", disk.begin("nvme", 1, 0.0), 50.0, failed=True)
    assert disk.plan(missing(("nvme", 100)), 50.0) == before
    assert not disk.pieces("nvme")


def test_slower_computing_is_learnt() -> None:
    machine = chooser(nvme=BLOCK_BYTES / 6.4e-3)
    for _ in range(30):
        machine.computed(0, 64, 3 * 6.4e-3)
    assert machine.plan(missing(("nvme", 100)), 0.0).fetch == pytest.approx(75, abs=2)


def test_a_tier_that_is_not_there_is_not_fetched_from() -> None:
    alone = FetchOrRecompute({}, COMPUTE)
    plan = alone.plan(missing(("nvme", 10)), 0.0)
    assert (plan.compute, plan.fetch) == (10, 0)
    assert plan.seconds == pytest.approx(0.064)


def expected_seconds(
    machine: FetchOrRecompute, disk: FetchOrRecompute, wanted: Missing, compute: int, waiting: int, sharers: int
) -> float:
    """With so many blocks computed: the disk is read meanwhile, copies from host memory take their turn."""
    fetched = wanted.blocks - compute
    in_memory = Missing(wanted.start, (("dram", fetched),), 64, BLOCK_BYTES)
    from_disk = Missing(wanted.start, (("nvme", wanted.tail(fetched).get("nvme", 0)),), 64, BLOCK_BYTES)
    copies = machine.fetch_seconds(in_memory, fetched, 0.0)
    reads = disk.fetch_seconds(from_disk, from_disk.blocks, 0.0)
    return max(machine.compute_seconds(wanted, compute, waiting, sharers) + copies, reads)


RUNS = st.lists(st.tuples(st.sampled_from(["dram", "nvme"]), st.integers(1, 300)), min_size=1, max_size=4)


@settings(max_examples=examples(200))
@given(
    RUNS,
    st.floats(1e6, 1e11),
    st.floats(1e6, 1e11),
    st.floats(0, 0.05),
    st.integers(0, 100_000),
    st.integers(0, 20_000),
    st.integers(0, 8),
)
def test_no_plan_is_expected_to_be_worse_than_the_better_pure_one(
    runs: list[tuple[Place, int]],
    dram: float,
    nvme: float,
    fixed_s: float,
    start: int,
    waiting: int,
    sharers: int,
) -> None:
    machine = chooser(dram, nvme, fixed_s)
    disk = FetchOrRecompute({"nvme": TierRate(fixed_s, nvme)}, COMPUTE)
    wanted = Missing(start, tuple(runs), 64, BLOCK_BYTES)
    plan = machine.plan(wanted, 0.0, waiting_tokens=waiting, sharers=sharers)
    assert plan.compute + plan.fetch == wanted.blocks
    assert min(plan.compute, plan.fetch) >= 0
    pure = (
        machine.fetch_seconds(wanted, wanted.blocks, 0.0),
        machine.compute_seconds(wanted, wanted.blocks, waiting, sharers),
    )
    assert plan.seconds <= min(pure) * (1 + 1e-9)
    best = min(expected_seconds(machine, disk, wanted, count, waiting, sharers) for count in range(wanted.blocks + 1))
    # A mixture that saves less than a tenth is left to others.
    assert plan.seconds <= best * 1.1001
    assert math.isfinite(plan.late_s)
    assert plan.late_s > plan.seconds


@pytest.mark.parametrize("true", [1.0, 10.0], ids=["as calibrated", "throttled"])
@pytest.mark.parametrize("readers", [1, 2])
def test_many_reads_that_wait_for_each_other_teach_how_quick_the_tier_is(true: float, readers: int) -> None:
    """A prompt's blocks are asked for at once, and the last of them waits for all others."""
    disk, piece_s = chooser(nvme=1e9), true * BLOCK_BYTES / 1e9
    pieces = [disk.begin("nvme", BLOCK_BYTES, 0.0) for _ in range(200)]
    for number, piece in enumerate(pieces):
        disk.end("nvme", piece, readers * piece_s * (number // readers + 1))
        waiting = Missing(0, (("nvme", 199 - number),), 64, BLOCK_BYTES)
        if number > 20 and waiting.blocks:
            left = disk.fetch_seconds(
                waiting,
                waiting.blocks,
                readers * piece_s * (number // readers + 1),
                reading={"nvme": BLOCK_BYTES * (199 - number)},
            )
            assert left == pytest.approx(waiting.blocks * piece_s, rel=0.25)
    wanted = missing(("nvme", 100))
    assert disk.fetch_seconds(wanted, 100, 200 * piece_s) == pytest.approx(100 * piece_s, rel=0.1)
