"""A request's life: any sequence of events comes to one outcome, and to one end of its hold."""

from __future__ import annotations

import asyncio
from typing import Any, get_args
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from billing.usage import Status
from gateway.errors import Interrupted
from gateway.fleet.replica_stream import ReplicaStream
from gateway.generation.answer_parts import AnswerParts
from gateway.generation.choices import Choices
from gateway.generation.request_state import (
    TRANSITIONS,
    Event,
    InvalidTransition,
    Outcome,
    Phase,
    RequestState,
)
from gateway.served_models.served_model import ServedModel
from tests.fast import examples
from tests.gateway.generation.task_harness import MAX_TOKENS, PROMPT, SLICE, TaskHarness

GRAVITY: tuple[Status, ...] = ("ok", "cancelled", "failed")
CARRIED: dict[Event, tuple[Status, ...]] = {
    "stop_string": ("ok",),
    "money_ended": ("ok",),
    "client_left": ("cancelled",),
    "reader_failed": ("failed",),
    "interrupted": ("failed",),
    "timed_out": ("failed",),
    "replica_lost": ("failed",),
    "no_replica": ("failed",),
    "answered": ("ok", "failed"),
    "input_refused": ("failed",),
    "failed": ("failed",),
}
"""The outcomes that events carry; the others carry none."""


class AnyEvents(RuleBasedStateMachine):
    """Events in any order, with what they carry."""

    def __init__(self) -> None:
        super().__init__()
        self.state = RequestState()
        self.recordings = 0

    @rule(event=st.sampled_from(get_args(Event)), choice=st.integers(0, 1))
    def move(self, event: Event, choice: int) -> None:
        statuses = CARRIED.get(event)
        status = statuses[choice % len(statuses)] if statuses else None
        outcome = None if status is None else Outcome(status, "", Interrupted("x") if status == "failed" else None)
        phase, earlier = self.state.phase, self.state.outcome
        try:
            changed = self.state.move(event, outcome)
        except InvalidTransition:
            assert event not in ("client_left", "reader_failed", "interrupted"), "these may come at any time"
            assert (self.state.phase, self.state.outcome) == (phase, earlier), "nothing happened"
            return
        assert changed == (self.state.phase != phase)
        self.recordings += changed and self.state.phase == "recording"
        if self.state.outcome != earlier:
            assert self.state.outcome is not None
            assert phase != "ended"
            assert earlier is None or GRAVITY.index(self.state.outcome.status) >= GRAVITY.index(earlier.status)

    @invariant()
    def there_is_an_outcome_when_there_must_be(self) -> None:
        if self.state.phase in ("reserving", "retrying"):
            return
        ending = self.state.phase in ("stopping", "delivering", "recording", "ended")
        assert (self.state.outcome is not None) or not ending
        assert self.state.phase != "running" or self.state.outcome is None
        assert self.recordings <= 1


TestAnyEvents = AnyEvents.TestCase
TestAnyEvents.settings = settings(max_examples=50)


def test_the_table_leads_everywhere_and_to_the_end() -> None:
    reached: set[Phase] = {"reserving"}
    for _ in get_args(Phase):
        reached |= {to for row in TRANSITIONS.values() for phase, to in row.items() if phase in reached}
    assert reached == set(get_args(Phase))
    assert TRANSITIONS.keys() == set(get_args(Event))
    assert not any("ended" in row for row in TRANSITIONS.values()), "nothing comes after the end"
    assert set(TRANSITIONS["failed"]) == reached - {"ended"}, "anything may fail"


# ---------------------------------------------------------------- every end, event by event

Ended = tuple[Any, ...]
OK, GONE = "finished", ("gone",)


def _used(status: str, reason: str, prompt: int, output: int, attempt: int = 1, sequence: int = 1) -> Ended:
    return ("use", status, reason, (prompt, output), attempt, sequence)


P = len(PROMPT)
BEGUN = ["hold ok", "began"]
TEXT = "tokens 0 abc"
UNAVAILABLE = ("failed", "Unavailable", "service_unavailable")
INTERRUPTED = ("failed", "Interrupted", "interrupted")
TIMED_OUT = ("failed", "TimedOut", "request_timeout")
INVALID = ("failed", "InvalidRequest", "invalid_value")
NOT_CACHED = ("failed", "NotCached", "not_cached")
ENDS: dict[str, tuple[list[str], Ended, Ended]] = {
    "finished": ([*BEGUN, TEXT, "read", "done stop"], _used("ok", "stop", P, 3), (OK, ("stop",))),
    "length": ([*BEGUN, TEXT, "read", "done length"], _used("ok", "length", P, 3), (OK, ("length",))),
    "stop string": ([*BEGUN, "tokens 0 aENDb", "read", "done abort"], _used("ok", "stop", P, 4), (OK, ("stop",))),
    "stop string, replica lost": (
        [*BEGUN, "tokens 0 aEND", "read", "link lost", "time over"],
        _used("ok", "stop", P, 4, sequence=0),
        (OK, ("stop",)),
    ),
    "refused before it began": (["hold refused"], (), ("failed", "Unaffordable", "insufficient_quota")),
    "database away": (["hold away"], ("once", "not admitted"), UNAVAILABLE),
    "a defect while the hold is made": (["hold odd"], ("once", "not admitted"), INTERRUPTED),
    "database late": (
        ["overdue", "hold ok"],
        ("release", "ended before it began"),
        UNAVAILABLE,
    ),
    "left before the hold": (["leave", "hold ok"], ("release", "ended before it began"), GONE),
    "left while it is asked whether it is cached": (
        ["hold ok", "leave", "cached yes"],
        ("release", "ended before it began"),
        GONE,
    ),
    "stopped while it is asked whether it is cached": (
        ["hold ok", "stop", "cached yes"],
        ("release", "ended before it began"),
        UNAVAILABLE,
    ),
    "not cached": (["hold ok", "cached no"], ("release", "not cached"), NOT_CACHED),
    "not cached after all": (
        ["hold ok", "cached yes", "began", TEXT, "promise broken", "done abort"],
        _used("failed", "abort", 0, 0),
        NOT_CACHED,
    ),
    "cached as promised": (
        ["hold ok", "cached yes", "began", TEXT, "promise kept", "read", "done stop"],
        _used("ok", "stop", P, 3),
        (OK, ("stop",)),
    ),
    "no replica": (["disk full", "hold ok"], ("release", "no replica"), UNAVAILABLE),
    "left while queued": (["hold ok", "leave", "done abort"], _used("cancelled", "abort", 0, 0), GONE),
    "left after some text": ([*BEGUN, TEXT, "read", "leave", "done abort"], _used("cancelled", "abort", P, 3), GONE),
    "left after a stop string": (
        [*BEGUN, "tokens 0 aEND", "leave", "done stop"],
        _used("cancelled", "stop", P, 0),
        GONE,
    ),
    "left when all was said": ([*BEGUN, TEXT, "done length", "leave"], _used("cancelled", "length", P, 0), GONE),
    "left, and the replica lost": (
        [*BEGUN, "leave", "link lost", "time over"],
        _used("cancelled", "lost", P, 0, sequence=0),
        GONE,
    ),
    "deadline": (
        [*BEGUN, TEXT, "read", "time over", "done abort"],
        _used("failed", "abort", P, 3),
        TIMED_OUT,
    ),
    "deadline, by the replica": (
        [*BEGUN, "done deadline"],
        _used("failed", "deadline", 0, 0),
        TIMED_OUT,
    ),
    "deadline, and no answer": (
        ["hold ok", "time over", "time over"],
        ("release", "lost"),
        TIMED_OUT,
    ),
    "deadline while the disk is full": (
        [*BEGUN, TEXT, "read", "disk full", "time over", "time over", "disk ok", "done abort"],
        _used("failed", "abort", P, 3),
        TIMED_OUT,
    ),
    "refused by the replica": (
        ["hold ok", "done rejected"],
        ("release", "rejected"),
        UNAVAILABLE,
    ),
    "grammar refused": (
        ["hold ok", "done rejected grammar"],
        ("release", "rejected"),
        INVALID,
    ),
    "grammar refused on the way": (
        [*BEGUN, TEXT, "read", "done error grammar"],
        _used("failed", "error", P, 3),
        INVALID,
    ),
    "replica failed": ([*BEGUN, "done error"], _used("failed", "error", 0, 0), INTERRUPTED),
    "replica lost before any text, none other": (
        [*BEGUN, "link lost", "replica none", "link back", "done crash"],
        _used("failed", "crash", 0, 0),
        UNAVAILABLE,
    ),
    "replica lost after text": (
        [*BEGUN, TEXT, "read", "link lost", "replica none", "link back", "done crash"],
        _used("failed", "crash", P, 3),
        INTERRUPTED,
    ),
    "replica lost for good": (
        [*BEGUN, TEXT, "read", "link lost", "replica none", "time over"],
        _used("failed", "lost", P, 3, sequence=0),
        INTERRUPTED,
    ),
    "tried again": (
        [*BEGUN, "link lost", "replica one", "began", TEXT, "read", "done stop"],
        _used("ok", "stop", P, 3, attempt=2),
        (OK, ("stop",)),
    ),
    "handed on by a replica that stops": (
        [*BEGUN, "done abort", "replica one", "began", TEXT, "read", "done stop"],
        _used("ok", "stop", P, 3, attempt=2, sequence=2),
        (OK, ("stop",)),
    ),
    "tried again and lost again": (
        [*BEGUN, "link lost", "replica one", "began", "link lost", "link back", "done crash"],
        _used("failed", "crash", 0, 0, attempt=2),
        UNAVAILABLE,
    ),
    "goes on after text": (
        [*BEGUN, TEXT, "read", "link lost", "replica one", "began", "tokens 0 def", "read", "done stop"],
        _used("ok", "stop", P, 4, attempt=2),
        (OK, ("stop",)),
    ),
    "goes on from a replica that stops": (
        [*BEGUN, TEXT, "read", "done abort", "replica one", "began", "tokens 0 de", "read", "done length"],
        _used("ok", "length", P, 4, attempt=2, sequence=2),
        (OK, ("length",)),
    ),
    "goes on with nothing left to say": (
        [*BEGUN, TEXT, "read", "link lost", "replica one", "done stop"],
        _used("ok", "stop", P, 3, attempt=2),
        (OK, ("stop",)),
    ),
    "goes on within a stop string": (
        [*BEGUN, "tokens 0 aE", "read", "link lost", "replica one", "began", "tokens 0 NDb", "read", "done abort"],
        _used("ok", "stop", P, 4, attempt=2),
        (OK, ("stop",)),
    ),
    "goes on and is lost again": (
        [
            *BEGUN,
            TEXT,
            "read",
            "link lost",
            "replica one",
            "began",
            "tokens 0 d",
            "read",
            "link lost",
            "link back",
            "done crash",
        ],
        _used("failed", "crash", P, 4, attempt=2),
        INTERRUPTED,
    ),
    "is to go on and is refused": (
        [*BEGUN, TEXT, "read", "link lost", "replica one", "done rejected", "replica none"],
        _used("failed", "rejected", P, 3, attempt=2, sequence=0),
        INTERRUPTED,
    ),
    "left while a replica to go on at is waited for": (
        [*BEGUN, TEXT, "read", "link lost", "leave", "link back", "done crash"],
        _used("failed", "crash", P, 3),
        GONE,
    ),
    "left while a replica is waited for": (
        [*BEGUN, "link lost", "leave", "link back", "done crash"],
        _used("failed", "crash", 0, 0),
        GONE,
    ),
    "stopped while a replica is waited for": (
        [*BEGUN, "link lost", "stop", "link back", "done crash"],
        _used("failed", "crash", 0, 0),
        UNAVAILABLE,
    ),
    "stopped": (
        [*BEGUN, TEXT, "read", "stop", "done abort"],
        _used("failed", "abort", P, 3),
        UNAVAILABLE,
    ),
    "left, then stopped": ([*BEGUN, TEXT, "leave", "stop", "done abort"], _used("failed", "abort", 0, 0), GONE),
    "reader failed": ([*BEGUN, TEXT, "abandon", "done abort"], _used("failed", "abort", 0, 0), GONE),
    "reader failed after some text": (
        [*BEGUN, TEXT, "read", "abandon", "done abort"],
        _used("failed", "abort", P, 3),
        GONE,
    ),
    "reader failed before the hold": (["abandon", "hold ok"], ("release", "ended before it began"), GONE),
    "reader failed when all was said": ([*BEGUN, TEXT, "done stop", "abandon"], _used("failed", "", 0, 0), GONE),
    "left, then reader failed": (
        [*BEGUN, TEXT, "leave", "abandon", "done abort"],
        _used("cancelled", "abort", P, 0),
        GONE,
    ),
    "stopped before the hold": (
        ["stop", "hold ok"],
        ("release", "ended before it began"),
        UNAVAILABLE,
    ),
    "stopped when all was said": (
        [*BEGUN, TEXT, "done stop", "stop", "read"],
        _used("ok", "stop", P, 3),
        (OK, ("stop",)),
    ),
    "nonsense counts": (
        [*BEGUN, TEXT, "read", "done stop nonsense"],
        ("release", "what the replica counted makes no sense"),
        INTERRUPTED,
    ),
    "spool that is late": (
        [*BEGUN, TEXT, "read", "spool slow", "done stop", "spool ok"],
        _used("ok", "stop", P, 3),
        INTERRUPTED,
    ),
}


async def _run(harness: TaskHarness, events: list[str]) -> None:
    await harness.settle()
    for event in events:
        if event == "read":
            await harness.read(confirm=True)
        else:
            assert await harness.happen(event), f"{event} cannot happen now"
    await harness.finish()


@pytest.mark.parametrize("name", list(ENDS))
async def test_every_end(model: ServedModel, name: str) -> None:
    events, record, told = ENDS[name]
    harness = TaskHarness(model, grammar="grammar" in name, promised="cached" in name)
    await _run(harness, events)
    assert harness.records[:1] == ([record] if record else [])
    assert harness.ends == [told]
    assert harness.task.state.phase == "ended"


async def test_no_money_for_the_next_slice(model: ServedModel) -> None:
    harness = TaskHarness(model, sliced=True)
    await _run(harness, [*BEGUN, "tokens 0 " + "a b c " * MAX_TOKENS, "slice refused", "read", "done abort"])
    assert harness.aborts == [("budget", None, 1)]
    assert harness.records == [_used("ok", "budget", P, SLICE)]
    assert harness.ends == [(OK, ("budget",))]


@pytest.mark.parametrize("after", [["link lost", "time over"], ["time over"]], ids=["link lost", "silent replica"])
async def test_an_answer_that_the_money_ended_is_whole_without_the_replica(
    model: ServedModel, after: list[str]
) -> None:
    harness = TaskHarness(model, sliced=True)
    await _run(harness, [*BEGUN, "tokens 0 " + "a b c " * MAX_TOKENS, "slice refused", "read", *after])
    assert harness.records == [_used("ok", "budget", P, SLICE, sequence=0)]
    assert harness.ends == [(OK, ("budget",))]


async def test_choices_end_each_for_its_own_reason(model: ServedModel) -> None:
    harness = TaskHarness(model, choices=2)
    await _run(harness, [*BEGUN, "tokens 0 aEND", "tokens 1 abc", "read", "done length"])
    assert harness.aborts == [("stop", 0, 1)]
    assert harness.records == [_used("ok", "length", P, 7)]
    assert harness.ends == [(OK, ("stop", "length"))]


async def test_a_cancelled_task_is_left_to_recovery(model: ServedModel) -> None:
    harness = TaskHarness(model)
    await harness.settle()
    for event in (*BEGUN, TEXT):
        await harness.happen(event)
    harness.running.cancel()
    await asyncio.gather(harness.running, return_exceptions=True)
    assert not harness.records
    assert harness.task.state.outcome is not None
    assert (harness.task.state.phase, harness.task.state.outcome.reason) == ("ended", "abandoned")
    assert harness.aborts == [], "it says no more, as if it were killed"
    while not harness.ends:
        await harness.read(confirm=True)
    assert harness.ends == [INTERRUPTED], "a reader that waits is told"


async def test_a_fault_inside_the_gateway_stops_the_replica(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = TaskHarness(model)
    await harness.settle()
    for event in BEGUN:
        await harness.happen(event)
    monkeypatch.setattr(Choices, "take", Mock(side_effect=RuntimeError("a defect")))
    await harness.happen(TEXT)
    await harness.read(confirm=True)
    assert harness.aborts == [("abandoned", None, 1)], "it works for nobody"
    assert harness.ends == [INTERRUPTED]
    await harness.running


@pytest.mark.parametrize("where", [(AnswerParts, "admitted"), (ReplicaStream, "__init__")])
async def test_a_fault_between_hold_and_replica_releases_the_hold(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch, where: tuple[type, str]
) -> None:
    """Nobody else would: no replica has heard of it, and this gateway lives."""
    monkeypatch.setattr(*where, Mock(side_effect=RuntimeError("a defect")))
    harness = TaskHarness(model)
    await harness.settle()
    await harness.happen("hold ok")
    await harness.read(confirm=True)
    assert harness.records == [("release", "a fault before it was sent")]
    assert harness.ends == [INTERRUPTED]
    await harness.running


async def test_a_fault_while_it_is_sent_stops_the_replica_and_keeps_the_hold(
    model: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReplicaStream, "pay", Mock(side_effect=RuntimeError("a defect")))
    harness = TaskHarness(model, sliced=True)
    await harness.settle()
    await harness.happen("hold ok")
    await harness.running
    assert harness.stream is not None
    assert harness.aborts == [("abandoned", None, 1)], "it works for nobody"
    assert not harness.records, "what it says later is billed"


async def test_what_ended_before_it_was_sent_reaches_no_replica(model: ServedModel) -> None:
    for ends in ("leave", "stop", "abandon"):
        harness = TaskHarness(model, promised=True)
        await _run(harness, ["hold ok", ends, "cached yes"])
        assert harness.stream is None
        assert not harness.sent


# ---------------------------------------------------------------- any events

EVENTS = [
    *dict.fromkeys(event for events, _, _ in ENDS.values() for event in events),
    *("take", "tokens 1 abc", "tokens 1 aEND", "tokens 0 E", "slice ok", "slice refused", "database back"),
]


@settings(max_examples=examples(400))
@given(
    events=st.lists(st.sampled_from(EVENTS), max_size=25),
    prefix=st.sampled_from([[], ["hold ok"], BEGUN, [*BEGUN, TEXT], ["hold ok", "cached yes"]]),
    streamed=st.booleans(),
    choices=st.integers(1, 2),
    sliced=st.booleans(),
    grammar=st.booleans(),
    promised=st.booleans(),
)
def test_any_events_come_to_one_end(  # what a request can be
    model: ServedModel,
    events: list[str],
    prefix: list[str],
    streamed: bool,
    choices: int,
    sliced: bool,
    grammar: bool,
    promised: bool,
) -> None:
    async def live() -> None:
        asked: dict[str, Any] = {"sliced": sliced, "grammar": grammar, "promised": promised}
        harness = TaskHarness(model, streamed=streamed, choices=choices, **asked)
        await harness.settle()
        for event in (*prefix, *events):
            if event in ("read", "take"):
                await harness.read(confirm=event == "read")
            else:
                await harness.happen(event)
        await harness.finish()
        _check(harness)

    asyncio.run(live())


def _check(harness: TaskHarness) -> None:
    state = harness.task.state
    assert state.phase == "ended"
    assert state.outcome is not None
    ended = [record for record in harness.records if record[0] != "once"]
    assert len(ended) == harness.held, "a hold is used or released, exactly once"
    assert ended[:1] != [("release", "a fault before it was sent")], "no sequence of events is a fault"
    assert len(harness.ends) == 1, "the reader is told one end"
    for attempt in (1, 2):
        whole = [why for why, choice, to in harness.aborts if choice is None and to == attempt]
        assert sum(why not in ("link lost", "budget") for why in whole) <= 1, "a replica is asked to stop once"
    for event in harness.events:
        assert event.usage.output <= event.counts.output
        assert event.status == state.outcome.status
        assert event.status != "failed" or harness.task.delivery.delivered or event.cost_pico == 0
    (end,) = harness.ends
    if state.outcome.status == "ok":
        assert end == ("gone",) or (end[0] == "finished") != harness.told_late
    else:
        assert end[0] != "finished", "nobody is told a good end that is not recorded"
