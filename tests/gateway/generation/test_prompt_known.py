"""What is told of a prompt's KV: what a replica plans to read is no fact before the first token."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from gateway.generation.delivery import Started
from gateway.limits.permit import AskedPermit
from gateway.served_models.served_model import ServedModel, load_served_model
from protocol.requests import Began, Counts, Done, PromptRead, Tokens
from tests.gateway.generation.task_harness import PROMPT, TaskHarness

PLANNED = Counts(prompt=4, computed=1, read_nvme=3)
CAME = Counts(prompt=4, computed=3, read_nvme=1)


class Settled:
    """A permit that remembers what counted."""

    def __init__(self) -> None:
        self.uncached: list[int] = []

    def began(self, part: object, conversation: bytes, prompt_tokens: int, uncached: int) -> None:
        self.uncached.append(uncached)

    async def ended(self, part: object, output_tokens: int) -> None:
        """Its places are free."""


@pytest.fixture
def model(model_folder: Any) -> ServedModel:
    return load_served_model(model_folder)


async def running(model: ServedModel, began: Counts) -> tuple[TaskHarness, Settled]:
    """A streamed request that has begun."""
    settled: Any = Settled()
    harness = TaskHarness(model, permit=AskedPermit(settled))
    await harness.settle()
    await harness.happen("hold ok")
    say(harness, Began, began)
    await harness.settle()
    return harness, settled


def say(harness: TaskHarness, kind: type[Began], counts: Counts) -> None:
    assert harness.stream is not None
    harness.said_began = True
    harness.stream.hear(kind(harness.stream.request_id, harness.stream.attempt, counts))


def token(harness: TaskHarness, read: PromptRead | None) -> None:
    stream = harness.stream
    assert stream is not None
    tokens = harness.model.tokenizer.content("a")[:1]
    harness.sent_tokens[0] = 1
    stream.hear(Tokens(stream.request_id, stream.attempt, 0, tokens, prompt=read))


async def started(harness: TaskHarness) -> Started:
    item = await harness.task.delivery.next(0)
    assert isinstance(item, Started)
    return item


async def test_a_start_is_told_at_once_and_where_kv_came_from_with_the_first_token(model: ServedModel) -> None:
    harness, settled = await running(model, PLANNED)
    assert (await started(harness)).counts is None
    assert settled.uncached == [], "limits are not settled by what may not come"
    token(harness, PromptRead(CAME))
    await harness.settle()
    told = harness.task.delivery.started
    assert told is not None
    assert told.counts is not None
    assert (told.counts.read_nvme, told.counts.computed) == (1, 3)
    assert settled.uncached == [len(PROMPT)], "too little was read to count"
    await harness.finish()


async def test_an_older_replica_s_plan_is_no_fact_before_the_end(model: ServedModel) -> None:
    """It does not say with its first token what came."""
    harness, settled = await running(model, PLANNED)
    token(harness, None)
    await harness.settle()
    assert (await started(harness)).counts is None
    assert settled.uncached == []
    await harness.happen("leave")
    stream = harness.stream
    assert stream is not None
    stream.hear(Done(stream.request_id, stream.attempt, "abort", structs.replace(CAME, output=1), 1))
    await harness.settle()
    assert settled.uncached == [len(PROMPT)]
    await harness.finish()


async def test_what_lies_on_the_device_is_told_at_once(model: ServedModel) -> None:
    harness, settled = await running(model, Counts(prompt=4, computed=1, read_hbm=3))
    told = await started(harness)
    assert told.counts is not None
    assert told.counts.read_hbm == 3
    assert len(settled.uncached) == 1
    token(harness, PromptRead(Counts(prompt=4, computed=1, read_hbm=3)))
    await harness.finish()
    assert len(set(settled.uncached)) == 1


async def test_a_request_that_ends_before_its_first_token_counts_what_was_done(model: ServedModel) -> None:
    harness, settled = await running(model, PLANNED)
    await harness.happen("leave")
    stream = harness.stream
    assert stream is not None
    stream.hear(Done(stream.request_id, stream.attempt, "abort", Counts(prompt=2, computed=2), 1))
    await harness.settle()
    assert settled.uncached == [2]
    await harness.finish()


async def test_the_start_of_a_promise_that_was_refused_is_never_told(model: ServedModel) -> None:
    """Its client hears that nothing is cached, and no start before that; nor do limits."""
    settled: Any = Settled()
    harness = TaskHarness(model, promised=True, permit=AskedPermit(settled))
    await harness.settle()
    await harness.happen("hold ok")
    await harness.happen("cached yes")
    say(harness, Began, PLANNED)
    token(harness, None)
    await harness.settle()
    await harness.happen("promise broken")
    stream = harness.stream
    assert stream is not None
    stream.hear(Done(stream.request_id, stream.attempt, "abort", structs.replace(CAME, output=1), 1))
    await harness.settle()
    assert settled.uncached == []
    assert harness.task.delivery.started is None
    await harness.finish()
    assert harness.ends == [("failed", "NotCached", "not_cached")]
