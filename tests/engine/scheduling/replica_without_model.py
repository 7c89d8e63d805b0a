"""Requests and a replica without a model, for tests of the scheduling core."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.scheduling.policy import Policy
from engine.scheduling.request import Request
from engine.scheduling.scheduler import TOKEN_TARGETS, Scheduler
from engine.scheduling.step_costs import FixedCosts, Rates
from engine.scheduling.step_work import Step
from engine.scheduling.token_sequence import TokenSequence
from prompt_cache.kv.grouped_pool import GroupedPool
from protocol.requests import Lane, Sampling

SMALL_POOL = 512
RATES = Rates(step=1000.0, uncached=10.0, cached=0.1, row=20.0, batch=16)


def request(number: int, prompt: int = 64, output: int = 8, **fields: object) -> Request:
    """A request with arrival `number`; equal `prefix` fields make equal tokens."""
    prefix = fields.pop("prefix", number)
    given = {
        "id": str(number),
        "attempt": 1,
        "arrival": number,
        "tokens": TokenSequence([hash(prefix) % 1000] * prompt),
        "prompt": prompt,
        "segments": ((prompt, b"root", "scope"),),
        "root": b"model",
        "sampling": Sampling(output),
        "max_output": output,
        "credit": 1 << 30,
        **fields,
    }
    return Request(**given)  # type: ignore[arg-type]


@dataclass
class Replica:
    """A scheduler whose steps take what the rates say. `now` is in µs.

    `windows`: (blocks, window) of layer groups beside the one that attends to everything.
    """

    policy: Policy
    blocks: int = 4096
    running: int = 16
    budget: int = 512
    rates: Rates = RATES
    now: float = 0.0
    ends: dict[str, int] = field(default_factory=dict)
    """After how many output tokens a request ends, where that is before its limit."""
    finished: list[Request] = field(default_factory=list)
    max_kv: Callable[[Step], None] | None = None
    windows: Sequence[tuple[int, int]] = ()
    targets: Mapping[Lane, float] = field(default_factory=lambda: TOKEN_TARGETS)
    steps: int = 0

    def __post_init__(self) -> None:
        self.pool = GroupedPool([(self.blocks, 0), *self.windows])
        self.scheduler = Scheduler(
            self.pool, self.budget, self.running, self.policy, costs=FixedCosts(self.rates), targets=self.targets
        )

    def add(self, *requests: Request) -> None:
        for each in requests:
            self.scheduler.add(each)

    def step(self) -> Step:
        step = self.scheduler.schedule(self.now / 1e6)
        decodes = sum(work.count == 1 for work in step.work)
        self.now += self.rates.step_time(sum(work.count for work in step.work) - decodes, decodes)
        if self.max_kv is not None:
            self.max_kv(step)
        self.scheduler.commit(step.work, [1 if work.samples else None for work in step.work])
        for work in step.work:
            if work.samples:
                ended = self.ends.get(work.request.id, work.request.max_output)
                if work.request.output >= ended:
                    self.scheduler.remove(work.request)
                    self.finished.append(work.request)
        self.scheduler.check()
        self.steps += 1
        # A look at every block of a large pool would be most of a long run's time.
        if self.blocks <= SMALL_POOL or self.steps % 64 == 0:
            self.pool.check()
        return step

    def finish(self, steps: int = 100_000) -> None:
        for _ in range(steps):
            if not self.scheduler.busy:
                return
            self.step()
        raise AssertionError("the replica does not come to an end")
