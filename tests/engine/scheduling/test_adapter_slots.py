"""Slots for adapters' weights: who gets one, who waits, and that nobody waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from engine.scheduling.adapter_slots import MOST_OVERTAKES, AdapterSlots
from engine.scheduling.request import Request
from engine.scheduling.token_sequence import TokenSequence
from protocol.requests import Sampling


@dataclass(frozen=True)
class Named:
    name: str
    fails: bool = False

    def load(self) -> object:
        if self.fails:
            raise MemoryError(self.name)
        return f"weights of {self.name}"


class Bench:
    """Slots whose loads run when the test says so."""

    def __init__(self, most: int, *, at_once: bool = True) -> None:
        self.loads: list[Callable[[], None]] = []
        self.slots = AdapterSlots(most, (lambda load: load()) if at_once else self.loads.append)
        self.arrivals = 0

    def request(self, digest: str, flow: str = "", *, fails: bool = False) -> Request:
        self.arrivals += 1
        return Request(
            id=str(self.arrivals), attempt=1, arrival=self.arrivals, tokens=TokenSequence([1]), prompt=1, segments=(),
            root=b"", sampling=Sampling(1), max_output=1, credit=1, flow=flow or digest,
            adapter=Named(digest, fails) if digest else None,
        )  # fmt: skip

    def add(self, digest: str, flow: str = "") -> tuple[Request, bool]:
        request = self.request(digest, flow)
        return request, self.slots.delay(request)


def test_base_requests_never_wait() -> None:
    bench = Bench(0)
    assert bench.add("")[1] is False


def test_the_longest_unused_slot_goes_first() -> None:
    bench = Bench(2)
    for digest in ("a", "b", "a"):
        request, waits = bench.add(digest)
        assert not waits
        bench.slots.leave(request)
    bench.add("c")
    assert set(bench.slots.resident) == {"a", "c"}
    assert bench.slots.loads == 3


def test_slots_in_use_are_kept_and_the_next_waits_for_one() -> None:
    bench = Bench(2)
    (a, _), (_b, _) = bench.add("a"), bench.add("b")
    c, waits = bench.add("c")
    assert waits
    assert bench.slots.take_ready() == []
    bench.slots.leave(a)
    assert bench.slots.has_news
    assert bench.slots.take_ready() == [c]
    assert c.weights == "weights of c"
    assert a.weights == "weights of a"
    assert not bench.slots.has_news


def test_loads_run_beside_and_wake_the_engine() -> None:
    bench = Bench(1, at_once=False)
    woken: list[int] = []
    bench.slots.wake = lambda: woken.append(1)
    request, waits = bench.add("a")
    other, also_waits = bench.add("a")
    assert waits
    assert also_waits
    assert not bench.slots.has_news
    assert len(bench.loads) == 1
    bench.loads.pop()()
    assert woken == [1]
    assert bench.slots.take_ready() == [request, other]


def test_a_request_that_waits_can_leave() -> None:
    bench = Bench(1)
    bench.add("a")
    request, waits = bench.add("b")
    assert waits
    assert bench.slots.leave(request)
    assert bench.slots.waiting == 0


def test_weights_that_cannot_be_made_fail_their_requests_and_are_tried_again() -> None:
    bench = Bench(1)
    request = bench.request("a", fails=True)
    assert not bench.slots.delay(request)
    assert isinstance(request.weights, MemoryError)
    bench.slots.leave(request)
    assert bench.slots.resident == ()


def test_a_deleted_adapter_gives_its_slot_back_when_its_last_request_ends() -> None:
    bench = Bench(2)
    (first, _), (second, _) = bench.add("a"), bench.add("a")
    bench.slots.forget("a")
    bench.slots.leave(first)
    assert bench.slots.resident == ("a",), "it is in use"
    bench.slots.leave(second)
    assert bench.slots.resident == ()
    assert not any(one.ready for one in bench.slots.residency.report()), "nobody pays for it any more"
    again, waits = bench.add("a")
    assert not waits
    bench.slots.leave(again)
    assert bench.slots.resident == ("a",), "what is uploaded again stays"


def test_an_adapter_that_is_deleted_while_its_weights_are_made_keeps_no_slot() -> None:
    bench = Bench(2, at_once=False)
    request, _ = bench.add("a")
    bench.slots.forget("a")
    bench.slots.leave(request)
    bench.loads.pop()()
    other, waits = bench.add("b")
    assert waits
    assert bench.slots.resident == ("b",)
    bench.loads.pop()()
    assert bench.slots.take_ready() == [other]


def test_a_flow_gets_half_of_the_slots() -> None:
    bench = Bench(4)
    for digest in ("a", "b"):
        assert not bench.add(digest, "greedy")[1]
    _, waits = bench.add("c", "greedy")
    assert waits
    assert not bench.add("d", "modest")[1]
    assert not bench.add("e", "modest")[1]


@pytest.mark.parametrize("most", [1, 3])
def test_nobody_waits_for_ever_for_busy_adapters(most: int) -> None:
    """Adapters that are there have traffic without a gap; a request of another one still gets its slot."""
    bench = Bench(most)
    running = [bench.add(f"busy{at}")[0] for at in range(most)]
    waiting, waits = bench.add("late")
    assert waits
    later: list[Request] = []
    for turn in range(2 * MOST_OVERTAKES + 8 * most):
        request, delayed = bench.add(f"busy{turn % most}")
        (later if delayed else running).append(request)
        bench.slots.leave(running.pop(0)) if running else None
        running += bench.slots.take_ready()
        if waiting in running:
            break
    assert waiting in running
    for _ in range(1000):
        if not running:
            break
        bench.slots.leave(running.pop(0))
        running += bench.slots.take_ready()
    assert bench.slots.waiting == 0
    assert all(request.weights is not None for request in later)
