"""A request of which tokens had come goes on at another replica: the same answer, byte for byte, and the same bill."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from billing.settlement.lost_attempt_events import attempt_id
from protocol.requests import CONTINUE_VERSION
from tests.fast import only_some
from tests.gateway.fake_replica import Script
from tests.gateway.generation.test_lifecycle import STREAM, TEXT, WHOLE, content, frames
from tests.gateway.recovery.test_retry import (
    assert_books,
    assert_lost_attempt,
    first_replica_first,  # noqa: F401  # a fixture of these tests, too
    identity,
    kill,
    text_of,
    two,
)
from tests.gateway.stack import Stack


def say(stack: Stack, text: str, **script: Any) -> None:
    """Let all replicas answer with this text: one goes on where another one was."""
    for replica in stack.replicas:
        replica.script = Script(tokens=stack.tokens(text), pause=0.02, **script)


async def broken_off(stack: Stack, body: dict[str, Any], at: int) -> Any:
    """The answer to a request whose replica is killed when it has sent so many tokens."""
    asked = asyncio.create_task(stack.post(body))
    await kill(stack, sent=at)
    return await asked


def ends_of(answer: Any) -> list[Any]:
    """What a stream said last: the reason, the usage."""
    return [
        {name: frame[name] for name in ("choices", "usage") if name in frame} if isinstance(frame, dict) else frame
        for frame in frames(answer.text)[-3:]
    ]


async def continuations(stack: Stack) -> dict[tuple[str, str], float]:
    """How many requests went on, by reason and numerics."""
    told = (await stack.http.get("/metrics")).text
    return {
        (sample.labels["reason"], sample.labels["numerics"]): sample.value
        for family in text_string_to_metric_families(told)
        for sample in family.samples
        if sample.name == "turnpike_continuations_total"
    }


@pytest.mark.parametrize("body", [STREAM | {"stream_options": {"include_usage": True}}, WHOLE])
async def test_the_same_answer_and_the_same_bill_as_without_a_death(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, body: dict[str, Any]
) -> None:
    async with two(stocked_sqlite_url, tmp_path, model_folder) as stack:
        say(stack, TEXT)
        whole = await stack.post(body)
        for replica in stack.replicas:
            replica.runs.clear()
            stack.gateway.services.fleet.routing.router("tiny").forget(replica.name)  # so that the first has it again
        (unbroken,) = await stack.settled(1)
        answer = await broken_off(stack, body, 7)
        assert "error" not in answer.text
        if "stream" in body:
            assert content(frames(answer.text)) == content(frames(whole.text)) == TEXT
            assert ends_of(answer) == ends_of(whole)
        else:
            assert answer.json()["choices"] == whole.json()["choices"]
            assert answer.json()["usage"] == whole.json()["usage"]
        (run,) = stack.replicas[1].runs.values()
        (emitted,) = run.generate.emitted
        tokens = stack.tokens(TEXT)
        assert 7 <= len(emitted) < len(tokens)
        assert emitted == tokens[: len(emitted)]
        assert (run.generate.attempt, run.generate.counted.prompt) == (2, len(run.generate.tokens))
        assert await continuations(stack) == {("lost", "same"): 1}
        await stack.replica.restart()
        first, lost, went_on = sorted(await stack.settled(3), key=lambda event: (event.admitted_at, event.attempt))
        assert first.id == unbroken.id
        assert (lost.attempt, lost.cost_pico, lost.output, lost.count_output) == (1, 0, 0, len(emitted))
        assert identity(lost.id) == attempt_id(identity(went_on.id), 1)
        same = ("status", "reason", "cost_pico", "uncached", "output", "count_prompt", "count_computed", "count_output")
        for name in same:
            assert getattr(went_on, name) == getattr(unbroken, name), name
        assert went_on.count_recomputed == len(run.generate.tokens) + len(emitted)
        await assert_books(stack)


@pytest.mark.parametrize("at", only_some(9, of=range(4, 13), every=3))
async def test_a_stop_string_that_spans_the_break(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, at: int
) -> None:
    """The text before it was held back, and characters of several tokens were incomplete."""
    async with two(stocked_sqlite_url, tmp_path, model_folder) as stack:
        say(stack, "Grüße an 東京 🚃 END of it. " + TEXT)
        answer = await broken_off(stack, STREAM | {"stop": ["🚃 END of"]}, at)
        assert "error" not in answer.text
        assert content(frames(answer.text)) == "Grüße an 東京 "
        await stack.replica.restart()
        await assert_lost_attempt(stack)


@pytest.mark.slow
async def test_a_second_loss_ends_the_stream_and_what_was_delivered_is_billed_once(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    """So a request ends two replicas at most, should it be why they die."""
    async with two(stocked_sqlite_url, tmp_path, model_folder, replicas=3) as stack:
        say(stack, TEXT)
        asked = asyncio.create_task(stack.post(STREAM))
        await kill(stack, 0, sent=4)
        await kill(stack, 1, sent=12)
        answer = await asked
        assert frames(answer.text)[-1]["error"]["type"] == "server_error"
        assert not stack.replicas[2].runs
        for replica in stack.replicas[:2]:
            await replica.restart()
        first, second = sorted(await stack.settled(2), key=lambda event: event.attempt)
        assert (first.cost_pico, first.corrects is None) == (0, False)
        assert (second.attempt, second.status, second.replica) == (2, "failed", "replica-1")
        assert 12 <= second.output <= second.count_output < len(stack.tokens(TEXT))
        assert second.uncached == first.count_prompt
        await assert_books(stack)


@pytest.mark.slow
async def test_nothing_is_ever_heard_of_the_second_attempt(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    """Its replica dies before it has begun: what the first one delivered is billed, once."""
    async with two(stocked_sqlite_url, tmp_path, model_folder) as stack:
        say(stack, TEXT)
        stack.replicas[1].script = Script(tokens=[], die_after=-1)
        answer = await broken_off(stack, STREAM, 5)
        assert "error" in frames(answer.text)[-1]
        await stack.replicas[1].stop()
        for replica in stack.replicas:
            await replica.restart()
        events = await stack.settled(2)
        (billed,) = [event for event in events if event.corrects is None]
        assert (billed.status, billed.attempt, billed.output >= 5, billed.uncached > 0) == ("failed", 2, True, True)
        assert sum(event.cost_pico for event in events) == billed.cost_pico > 0


@pytest.mark.slow
async def test_the_journal_of_the_dead_replica_comes_back_when_all_is_over(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    async with two(stocked_sqlite_url, tmp_path, model_folder, replay=0.1) as stack:
        say(stack, TEXT)
        answer = await broken_off(stack, STREAM, 5)
        assert content(frames(answer.text)) == TEXT
        await stack.settled(1)
        await asyncio.sleep(0.3)
        await stack.replica.restart()
        await assert_lost_attempt(stack, source="journal")
        await stack.until(lambda: not stack.replica.journal)


@pytest.mark.slow
async def test_the_only_replica_is_waited_for_and_the_stream_kept_alive(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    async with two(stocked_sqlite_url, tmp_path, model_folder, replicas=1, retry=10.0) as stack:
        say(stack, TEXT)
        asked = asyncio.create_task(stack.post(STREAM))
        await kill(stack, sent=5)
        await asyncio.sleep(0.3)
        assert not asked.done()
        await stack.replica.restart()
        answer = await asked
        assert content(frames(answer.text)) == TEXT
        await assert_lost_attempt(stack)


@pytest.mark.slow
async def test_a_stream_ends_with_an_error_when_no_replica_comes_in_time(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    async with two(stocked_sqlite_url, tmp_path, model_folder, replicas=1, retry=0.3) as stack:
        say(stack, TEXT)
        answer = await broken_off(stack, STREAM, 5)
        assert answer.status_code == 200
        assert frames(answer.text)[-1]["error"]["type"] == "server_error"
        await stack.replica.restart()
        (event,) = await stack.settled(1)
        assert (event.attempt, event.status, event.output >= 5) == (1, "failed", True)
        await assert_books(stack)


async def test_a_replica_that_stops_hands_its_streams_on(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    """Its time to drain is over: it says what it has counted, and another one goes on."""
    async with two(stocked_sqlite_url, tmp_path, model_folder) as stack:
        say(stack, TEXT)
        stack.replica.script = Script(tokens=stack.tokens(TEXT)[:6], pause=0.02, reason="abort")
        answer = await stack.post(STREAM)
        assert content(frames(answer.text)) == TEXT
        assert await continuations(stack) == {("stopped", "same"): 1}
        await assert_lost_attempt(stack)


@pytest.mark.slow
async def test_it_goes_on_under_other_numerics_and_says_so(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    async with two(stocked_sqlite_url, tmp_path, model_folder) as stack:
        await stack.replicas[1].stop()
        stack.replicas[1].numerics = "another"
        await stack.replicas[1].restart()
        await stack.ready(2)
        say(stack, TEXT)
        answer = await broken_off(stack, STREAM, 5)
        assert content(frames(answer.text)) == TEXT
        assert await continuations(stack) == {("lost", "other"): 1}
        await stack.settled(1)
        headers = {"authorization": f"Bearer {stack.admin_key}"}
        path = f"/admin/v1/tenants/demo/requests/{answer.headers['x-request-id']}/waterfall"
        shown = (await stack.http.get(path, headers=headers)).json()
        first, second = shown["attempts"]
        assert (first["replica"], first["after"], first["emitted_tokens"]) == ("replica-0", None, 0)
        assert (second["replica"], second["after"], second["other_numerics"]) == ("replica-1", "lost", True)
        assert second["emitted_tokens"] >= 5
        assert {"lost", "retry"} <= {bar["stage"] for bar in shown["bars"]}


@pytest.mark.slow
@pytest.mark.parametrize("other", ["weights", "older"])
async def test_no_replica_goes_on_that_cannot_give_the_same_answer(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, other: str
) -> None:
    """One with other weights under the same name, or one that is too old to know how."""
    async with two(stocked_sqlite_url, tmp_path, model_folder, retry=0.5) as stack:
        second = stack.replicas[1]
        await second.stop()
        if other == "weights":
            second.model = type(second.model)("tiny", "e" * 64, second.model.text_digest, "float32", 600)
        else:
            second.version = CONTINUE_VERSION - 1
        await second.restart()
        await stack.ready(2)
        say(stack, TEXT)
        answer = await broken_off(stack, STREAM, 5)
        assert "error" in frames(answer.text)[-1]
        assert not second.runs


@pytest.mark.slow
async def test_a_stream_that_its_replica_may_have_died_of_goes_on_there_alone(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    async with two(stocked_sqlite_url, tmp_path, model_folder, alone=True, retry=10.0) as stack:
        say(stack, TEXT)
        asked = asyncio.create_task(stack.post(STREAM))
        await kill(stack, sent=5)
        await asyncio.sleep(0.3)
        assert not stack.replicas[1].runs
        await stack.replica.restart()
        answer = await asked
        assert text_of(STREAM, answer) == TEXT
        assert not stack.replicas[1].runs
        await assert_lost_attempt(stack)


@pytest.mark.slow
async def test_a_client_that_reads_slowly_or_leaves_meanwhile(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    """It leaves in the pause: what it got is billed, and nothing goes on."""
    async with two(stocked_sqlite_url, tmp_path, model_folder, replicas=1, retry=10.0) as stack:
        say(stack, TEXT)
        headers = {"authorization": f"Bearer {stack.key}"}
        async with stack.http.stream("POST", "/v1/chat/completions", json=STREAM, headers=headers) as answer:
            assert answer.status_code == 200
            await kill(stack, sent=5)
            await asyncio.sleep(0.2)
        await asyncio.sleep(0.2)
        sent = len(stack.replica.runs)
        await stack.replica.restart()
        (event,) = await stack.settled(1)
        assert (event.attempt, event.uncached > 0, len(stack.replica.runs)) == (1, True, sent)
        assert event.output <= event.count_output
        await assert_books(stack)
