"""The background writer: what is evicted next is in host memory before its place is needed, at nobody's cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from benchmarks.fairness_policies import FirstComeFirstServed
from engine.scheduling.request import Request
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_costs import FixedCosts, Rates
from engine.scheduling.step_work import Step
from engine.scheduling.token_sequence import TokenSequence
from prompt_cache.kv.grouped_pool import GroupedPool
from prompt_cache.tiers.identity import ScopeAccess
from protocol.requests import Sampling

RATES = Rates(step=5000.0, uncached=20.0, row=20.0, batch=16, copied=170.0)
PROMPT = 40
"""Blocks of a long prompt."""
LAG = 1
"""So many steps later it is heard that copies are done."""


class Device:
    """A scheduler whose steps compute at once, and whose copies take until a later step."""

    def __init__(
        self, blocks: int = 120, host: int = 240, clean: int = PROMPT + 1, depth: float | None = 1000.0
    ) -> None:
        self.pool = GroupedPool([(blocks, 0)], attention_tokens=depth, block_bytes=[1])
        self.dram = GroupedPool([(host, 0)], attention_tokens=depth, block_bytes=[1])
        self.scheduler = Scheduler(
            self.pool, 256, 16, FirstComeFirstServed(), costs=FixedCosts(RATES), dram=self.dram, clean=clean
        )
        for scope in "ab":
            self.introduce(scope, 3600.0)
        self.steps: list[Step] = []
        self.copying: deque[tuple[int, Step]] = deque()
        self.ended: list[Request] = []
        self.now = 1.0

    def introduce(self, scope: str, retention: float) -> None:
        self.scheduler.tiers.dram.introduce(ScopeAccess(scope, scope.encode() * 32, retention))

    def add(self, seed: int, blocks: int = PROMPT, output: int = 1, scope: str = "a", store: str = "all") -> Request:
        tokens = [seed] * (blocks * 64 + 1)
        request = Request(
            id=str(seed),
            attempt=1,
            arrival=len(self.ended) * 1000 + len(self.scheduler.running) + self.scheduler.waiting,
            tokens=TokenSequence(tokens),
            prompt=len(tokens),
            segments=((len(tokens), scope.encode(), scope),),
            root=b"model",
            sampling=Sampling(output),
            max_output=output,
            credit=1 << 30,
            store=store,  # type: ignore[arg-type]
        )
        self.scheduler.add(request)
        return request

    def step(self) -> Step:
        self.now += 0.005
        while self.copying and self.copying[0][0] + LAG < len(self.steps):
            self.scheduler.copied(self.copying.popleft()[1], [])
        step = self.scheduler.schedule(self.now)
        if step.copies:
            self.copying.append((len(self.steps), step))
        while self.copying and (not step.work or step.needs_copies):
            self.scheduler.copied(self.copying.popleft()[1], [])
        self.scheduler.commit(step.work, [1 if work.samples else None for work in step.work])
        for work in step.work:
            if work.samples and work.request.output >= work.request.max_output:
                self.scheduler.remove(work.request)
                self.ended.append(work.request)
        self.scheduler.check()
        self.pool.check()
        self.steps.append(step)
        return step

    def run(self, request: Request) -> Request:
        while request not in self.ended:
            self.step()
        return request

    def rest(self) -> None:
        """Until nothing is left to do."""
        for _ in range(1000):
            if not self.scheduler.busy and not self.copying:
                return
            self.step()
        raise AssertionError("it does not come to rest")

    def held(self, request: Request) -> list[bool]:
        """Which of the blocks of a prompt are in host memory."""
        return [self.dram.pools[0].holds(key) for key in request.keys]

    def evicted_with_a_copy(self, first: int) -> int:
        """Blocks that were copied out since this step because their places were needed."""
        return sum(len(step.out) - step.ahead for step in self.steps[first:])

    @property
    def written(self) -> int:
        writer = self.scheduler.tiers.writer
        return 0 if writer is None else writer.written


def restored_beside_decodes(clean: int, quiet_steps: int) -> tuple[Device, list[Step]]:
    """A prompt is computed, pushed out by others, and comes back beside requests that decode; its last steps."""
    device = Device(clean=clean)
    for seed in range(1, 5):
        device.run(device.add(seed))
    for seed in range(10, 18):
        device.add(seed, blocks=2, output=200)
    for _ in range(20 + quiet_steps):
        device.step()
    first = len(device.steps)
    again = device.run(device.add(1))
    counts = again.counts()
    assert (counts.read_dram, counts.read_hbm) == (PROMPT * 64, 0)
    return device, device.steps[first:]


def test_a_prompt_is_admitted_to_a_full_device_without_a_copy_out():
    device, steps = restored_beside_decodes(clean=PROMPT + 1, quiet_steps=20)
    assert sum(len(step.out) - step.ahead for step in steps) == 0
    assert all(
        len(step.out) <= 8 for step in device.steps if step.work and all(work.count == 1 for work in step.work)
    ), "more than a quarter of a decode step"


def test_without_the_writer_all_are_copied_out_when_it_is_admitted():
    device, steps = restored_beside_decodes(clean=0, quiet_steps=20)
    assert len(steps[0].out) >= PROMPT
    assert device.written == 0


def test_what_is_written_ahead_is_found_on_the_device_and_then_in_host_memory():
    device = Device(blocks=100)
    prompts = [device.run(device.add(seed)) for seed in (1, 2)]
    device.rest()
    assert 20 <= sum(sum(device.held(prompt)) for prompt in prompts) <= 45, "as many as are wanted, and a few more"
    for seed in (2, 1):
        assert device.run(device.add(seed)).counts().read_hbm == PROMPT * 64
    device.rest()
    first = len(device.steps)
    device.run(device.add(3))
    assert device.evicted_with_a_copy(first) == 0
    device.run(device.add(4))
    assert device.run(device.add(1)).counts().read == PROMPT * 64


def test_nothing_is_written_while_enough_is_free():
    device = Device()
    device.run(device.add(1))
    device.rest()
    assert device.written == 0
    assert not device.scheduler.busy


@pytest.mark.parametrize("what", ["store", "retention", "limit", "reserve"])
def test_what_host_memory_may_not_hold_is_not_written(what: str):
    device = Device(blocks=100, host=30 if what == "reserve" else 200)
    if what == "retention":
        device.introduce("a", 0.0)
    if what == "limit":
        device.dram.set_share("a", (0, 5))
    if what == "reserve":
        for seed in range(11, 17):
            device.run(device.add(seed, scope="b", blocks=30))
        device.rest()
        assert device.dram.pools[0].held_by("b") == 30
        device.dram.set_share("b", (30, 30))
        device.pool.forget("b")
    before = device.written
    for seed in (1, 2):
        device.run(device.add(seed, store="hbm" if what == "store" else "all"))
    device.rest()
    assert device.written - before == (5 if what == "limit" else 0), "it makes room for itself"
    assert device.pool.pools[0].evictions == (81 if what == "reserve" else 0), "of what is to be written, none"
    assert device.dram.pools[0].held_by("a") == (5 if what == "limit" else 0)


@pytest.mark.parametrize("clean", [0, PROMPT + 1])
def test_an_eviction_does_not_take_the_reserve_of_another_scope_in_host_memory(clean: int):
    device = Device(blocks=100, host=40, clean=clean)
    for seed in range(11, 19):
        device.run(device.add(seed, scope="b", blocks=36))
    device.rest()
    assert device.dram.pools[0].held_by("b") == 40
    device.dram.set_share("b", (30, 40))
    for seed in range(1, 8):
        device.run(device.add(seed))
    device.rest()
    assert device.dram.pools[0].held_by("b") == 30
    assert device.dram.pools[0].held_by("a") == 10
    for seed in range(21, 26):
        device.run(device.add(seed, scope="b", blocks=36))
    assert device.dram.pools[0].held_by("b") >= 30, "its own blocks may make room for its own"


def test_the_kv_of_a_preempted_request_does_not_take_a_reserve_in_host_memory():
    device = Device(blocks=100, host=40, clean=0)
    for seed in range(11, 19):
        device.run(device.add(seed, scope="b", blocks=36))
    device.dram.set_share("b", (35, 40))
    for request in [device.add(seed, blocks=24, output=300) for seed in range(1, 5)]:
        device.run(request)
    assert device.scheduler.preemptions, "they did not need more than there is"
    assert device.dram.pools[0].held_by("b") >= 35


def test_what_is_used_again_is_the_first_to_go_from_host_memory():
    device = Device(blocks=100, host=60)

    def flood(until: Callable[[], bool]) -> None:
        while not until():
            device.run(device.add(len(device.ended) + 100, blocks=6, scope="b"))

    flood(lambda: device.dram.pools[0].free_blocks == 0)
    used = device.run(device.add(1))
    flood(lambda: sum(device.held(used)) >= 5)
    written = sum(device.held(used))
    first = len(device.steps)
    device.add(1, output=1 << 20)
    device.step()
    assert device.scheduler.tiers.dram.on_device(used.keys[-1]), "it was not evicted yet"
    flood(lambda: not any(device.held(used)))
    assert device.scheduler.tiers.dram.on_device(used.keys[-1])
    # All else in host memory has been there for longer.
    assert sum(len(step.out) for step in device.steps[first:]) <= written + 8


def test_what_was_written_ahead_does_not_make_room_for_more_of_it():
    """It would be written again, and so on for ever."""
    device = Device(blocks=100, host=40)
    for seed in range(11, 19):
        device.run(device.add(seed, scope="b", blocks=36))
    device.rest()
    device.dram.set_share("b", (36, 36))
    assert device.dram.pools[0].held_by("b") == 36, "others find four blocks"
    device.pool.forget("b")
    before = device.written
    for seed in (1, 2):
        device.run(device.add(seed))
    device.add(3, blocks=15, output=250)
    for _ in range(200):
        device.step()
    assert device.dram.pools[0].held_by("a") == 4
    assert device.written - before == 4


def being_written(device: Device) -> list[Request]:
    """Prompts of which blocks are being copied ahead beside a request that decodes, so that nobody waits for them."""
    prompts = [device.add(seed) for seed in (1, 2)]
    device.add(3, blocks=1, output=150, scope="b")
    while any(prompt not in device.ended for prompt in prompts) or not device.copying:
        device.step()
    assert device.written
    assert any(device.held(prompts[0]) + device.held(prompts[1]))
    return prompts


@pytest.mark.parametrize("whole", [False, True], ids=["some keys", "the scope"])
def test_what_is_purged_while_it_is_written_is_in_no_tier(whole: bool):
    device = Device(blocks=100)
    prompts = being_written(device)
    if whole:
        device.scheduler.forget("a")
    else:
        device.scheduler.purge("a", [key for prompt in prompts for key in prompt.keys])
    device.rest()
    assert not any(any(device.held(prompt)) for prompt in prompts)
    assert device.dram.pools[0].free_blocks == device.dram.pools[0].total, "its memory is not given back"
    assert device.run(device.add(1)).counts().read == 0


def test_what_is_evicted_while_it_is_written_is_copied_once():
    device = Device(blocks=100)
    being_written(device)
    device.run(device.add(4))
    device.rest()
    copied = [host for step in device.steps for _, host in step.out]
    assert len(copied) == device.written + device.scheduler.tiers.dram.entered
    assert device.run(device.add(1)).counts().read == PROMPT * 64
