"""What holds a replica back, by what its heartbeats say."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.fleet.bottlenecks import UNUSABLE, bottleneck
from gateway.fleet.replica_rates import DeviceCosts, rates_between
from protocol.replicas import Capacity, Heartbeat, Hello, Layout, ServedModel, TierLoad

MODEL = ServedModel("tiny", "d", "t", "float32", 10)
HELLO = Hello(10, 1, "replica-0", 1, b"", MODEL, Layout(64, ()), Capacity((100,), 512, 4))
ROOM, FULL = (TierLoad("hbm", 0, 50, 40, 10, 100),), (TierLoad("hbm", 0, 1, 99, 0, 100),)
BEAT = Heartbeat(100, 2, {"standard": 0}, ROOM)
COSTS = DeviceCosts(hour_cost=3.5, watts=1000, power_price=0.1, gigabytes=1000, teraflops=100)
BUSY = {"step_seconds": 9.0, "steps": 900, "output_tokens": 9000, "computed_tokens": 900, "speculation_decodes": 1800}


def rates(seconds: float = 10.0, costs: DeviceCosts = COSTS, **grown: float):  # type: ignore[no-untyped-def]
    last = {f"turnpike_engine_{name}_total": value for name, value in {**BUSY, **grown}.items()}
    return rates_between({}, last, seconds, costs)


def test_rates_are_shares_of_the_devices_limits_and_tokens_have_their_part_of_the_hours_cost() -> None:
    found = rates(moved_bytes=4.5e12, operations=90e12)
    assert (found.busy, found.steps, found.output, found.decodes_of_step) == (0.9, 90.0, 900.0, 2.0)
    assert found.bandwidth == pytest.approx(0.5)
    assert found.arithmetic == pytest.approx(0.1)
    assert found.million_cost == pytest.approx(3.6 / 360 / 9900 * 1e6)  # 10 s are a 360th of an hour
    nothing = rates(costs=DeviceCosts(), moved_bytes=4.5e12, operations=90e12)
    assert (nothing.bandwidth, nothing.arithmetic, nothing.million_cost) == (None, None, None)
    two = rates(costs=replace(COSTS, devices=2), moved_bytes=4.5e12)
    assert two.bandwidth == pytest.approx(0.25)
    assert two.million_cost == pytest.approx(2 * found.million_cost)
    assert rates(moved_bytes=0).bandwidth is None


@pytest.mark.parametrize(
    ("beat", "found", "words"),
    [
        (BEAT, rates(step_seconds=1.0), "Nothing: it is at work 10 %"),
        (replace(BEAT, memory=FULL, waiting={"batch": 3}), rates(), "memory for KV is full: 1 %"),
        (replace(BEAT, memory=FULL), rates(preemptions=5), "30 a minute are preempted"),
        (replace(BEAT, running=4, waiting={"batch": 3}), rates(), "All its 4 places are taken and 3 requests wait"),
        (
            replace(BEAT, waiting={"batch": 2}, metrics={"turnpike_engine_restoring_requests": 2.0}),
            rates(),
            "2 requests wait for KV from host memory or disk",
        ),
        (BEAT, rates(speculation_drafting_seconds=3.0), "Drafters: they hold up steps 30 %"),
        (BEAT, rates(moved_bytes=7e12, operations=9e12), "bandwidth of its memory: 78 %"),
        (BEAT, rates(moved_bytes=1e12, operations=700e12), "device's arithmetic: 78 %"),
        (BEAT, rates(recomputed_tokens=20_000), "Preemptions: 2000 tokens a second"),
        (
            BEAT,
            rates(computed_tokens=100_000, read_tokens=500),
            "computes 10000 of their tokens a second, and reads 50",
        ),
        (BEAT, rates(moved_bytes=1.8e12), "2.0 requests decode in one, with 20 % of the bandwidth used"),
        (BEAT, None, "Nothing is known yet"),
    ],
)
def test_the_first_thing_that_is_true_is_said(beat: Heartbeat, found: object, words: str) -> None:
    said = bottleneck("healthy", HELLO, beat, found)  # type: ignore[arg-type]
    assert words in said
    assert said.endswith(".")
    assert said.count("\n") == 0


@pytest.mark.parametrize("state", sorted(UNUSABLE))
def test_a_replica_that_takes_no_requests(state: str) -> None:
    assert bottleneck(state, None, None, None) == f"{UNUSABLE[state]}."
