"""Responses in the background: resumed, cancelled and taken over, on whichever worker their client asks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, update

from gateway.errors import Unavailable
from gateway.kept_responses.waiting import wait_until_it_begins
from response_store import store
from response_store.running import Orphan, Progress, RunningResponses, Standing
from response_store.store import ResponseStore
from response_store.tables import stored_response
from storage.database.database import DatabaseUnavailable
from tests.gateway.endpoints.test_rate_limits import set_limits
from tests.gateway.stack import Stack, running_stack

SAID = "The quick brown fox jumps over the lazy dog."


@asynccontextmanager
async def second_worker(stack: Stack, folder: Path, model_folder: Path) -> AsyncIterator[Stack]:
    """Another worker on the same database."""
    folder.mkdir()  # noqa: ASYNC240  # a test may wait
    url = f"sqlite:///{stack.database.engine.url.database}"
    async with running_stack(url, folder, model_folder, name="gateway-b") as other:
        yield other


async def until_ended(client: Any, name: str) -> Any:
    for _ in range(3000):
        response = await client.responses.retrieve(name)
        if response.status not in ("queued", "in_progress"):
            return response
        await asyncio.sleep(0.02)
    raise AssertionError(f"it is still {response.status}")


async def events_of(client: Any, name: str, **options: Any) -> list[Any]:
    return [event async for event in await client.responses.retrieve(name, stream=True, **options)]


async def test_a_response_in_the_background_is_read_on_any_worker(
    stack: Stack, tmp_path: Path, model_folder: Path
) -> None:
    stack.say(SAID, pause=0.01)
    async with second_worker(stack, tmp_path / "b", model_folder) as other, stack.openai() as here:
        queued = await here.responses.create(model="tiny", input="Say it.", background=True)
        assert (queued.status, queued.output, queued.background) == ("queued", [], True)
        async with other.openai(stack.key) as there:
            events = await events_of(there, queued.id)
            assert [event.sequence_number for event in events] == list(range(len(events)))
            kinds = [event.type for event in events]
            assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
            assert kinds[-1] == "response.completed"
            final = await until_ended(there, queued.id)
            assert (final.output_text, final.id, final.usage.output_tokens > 0) == (SAID, queued.id, True)
            assert events[-1].response.to_dict() == final.to_dict()
            for after in range(-1, len(events)):
                options = {} if after < 0 else {"starting_after": after}
                rest = await events_of(there, queued.id, **options)
                assert [event.sequence_number for event in rest] == list(range(after + 1, len(events)))
            cancelled = await there.responses.cancel(queued.id)
            assert cancelled.status == "completed"
    await stack.settled(1)


async def test_a_client_that_streams_and_leaves_does_not_cancel(stack: Stack) -> None:
    stack.say(SAID, pause=0.01)
    async with stack.openai() as client:
        stream: Any = await client.responses.create(model="tiny", input="Say it.", background=True, stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        name, known = "", event.sequence_number
        listed = (await stack.http.get("/v1/responses", headers={"authorization": f"Bearer {stack.key}"})).json()
        name = listed["data"][0]["id"]
        rest = await events_of(client, name, starting_after=known)
        assert [event.sequence_number for event in rest] == list(range(known + 1, known + 1 + len(rest)))
        assert rest[-1].type == "response.completed"
        assert (await client.responses.retrieve(name)).output_text == SAID


async def test_who_waits_for_events_does_not_read_the_content_again_and_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its input may be 8 MB, which each waiting stream would open twice a second."""
    opened = 0
    open_row = store._opened

    def counting(*arguments: Any) -> Any:
        nonlocal opened
        opened += 1
        return open_row(*arguments)

    monkeypatch.setattr(store, "_opened", counting)
    monkeypatch.setattr("gateway.kept_responses.event_feeds._STANDING_S", 0.0)
    stack.say(SAID, queued=0.3)
    async with stack.openai() as client:
        queued = await client.responses.create(model="tiny", input="Say it.", background=True)
        events = await events_of(client, queued.id)
        assert (events[-1].type, opened) == ("response.completed", 1)  # to see that it can be read
        await client.responses.cancel(queued.id)


@pytest.mark.alone  # queries of a second are counted
async def test_streams_that_wait_cost_as_many_queries_as_one(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def noted(of: Any, name: str) -> None:
        method = getattr(of, name)

        def noting(*args: Any) -> Any:
            looked.append(name)
            return method(*args)

        monkeypatch.setattr(of, name, noting)

    noted(RunningResponses, "events")
    noted(RunningResponses, "take_over")
    noted(ResponseStore, "listed")
    stack.say(SAID, queued=2.5, pause=0.01)
    async with stack.openai() as client:
        queued = await client.responses.create(model="tiny", input="Say it.", background=True)
        streams = [asyncio.create_task(events_of(client, queued.id)) for _ in range(11)]
        streams.append(asyncio.create_task(events_of(client, queued.id, starting_after=1_000_000)))
        streams.append(asyncio.create_task(events_of(client, queued.id, starting_after=1)))
        await asyncio.sleep(1.0)
        looked.clear()
        await asyncio.sleep(1.0)
        assert 1 <= len(looked) <= 8, "of thirteen streams"
        await until_ended(client, queued.id)
        *all_events, none, rest = await asyncio.gather(*streams)
        numbers = [event.sequence_number for event in all_events[0]]
        assert numbers == list(range(len(numbers)))
        assert all_events[0][-1].type == "response.completed"
        assert all(one == all_events[0] for one in all_events)
        assert none == []
        assert [event.sequence_number for event in rest] == numbers[2:]


async def test_who_joins_later_or_leaves_changes_nothing_for_others(stack: Stack) -> None:
    stack.say(SAID * 4, queued=0.3, pause=0.02)
    async with stack.openai() as client:
        queued = await client.responses.create(model="tiny", input="Say it.", background=True)
        ahead = asyncio.create_task(events_of(client, queued.id, starting_after=1_000_000))
        stays = asyncio.create_task(events_of(client, queued.id))
        leaves: Any = await client.responses.retrieve(queued.id, stream=True)
        async for event in leaves:
            if event.type == "response.output_text.delta":
                break
        await leaves.close()
        joins = await events_of(client, queued.id)
        resumed = await events_of(client, queued.id, starting_after=event.sequence_number)
        numbers = [one.sequence_number for one in await stays]
        assert numbers == list(range(len(numbers))) == [one.sequence_number for one in joins]
        assert [one.sequence_number for one in resumed] == numbers[event.sequence_number + 1 :]
        assert await ahead == []
        assert stack.gateway.event_feeds is not None
        await stack.until(lambda: not stack.gateway.event_feeds._feeds)


async def test_a_response_is_cancelled_on_another_worker(stack: Stack, tmp_path: Path, model_folder: Path) -> None:
    stack.say(SAID * 8, pause=0.05)
    async with second_worker(stack, tmp_path / "b", model_folder) as other, stack.openai() as here:
        queued = await here.responses.create(model="tiny", input="Say it.", background=True)
        await asyncio.sleep(0.3)
        async with other.openai(stack.key) as there:
            cancelled = await there.responses.cancel(queued.id)
            assert cancelled.status == "cancelled"
            assert (await there.responses.cancel(queued.id)).status == "cancelled"
            events = await events_of(there, queued.id)
            assert events[-1].response.status == "cancelled"
    (event,) = await stack.settled(1)
    assert event.status == "cancelled"


@pytest.mark.parametrize("told", [False, True])
async def test_a_silent_workers_response_is_taken_over(
    stack: Stack, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    """The worker goes on, as one that is cut off from the database does, and what it writes later counts no more."""
    monkeypatch.setattr("gateway.kept_responses.background_run.BEAT_S", 600.0)
    stack.say(SAID, pause=0.2 if told else 0.0, queued=0.0 if told else 600.0)
    async with second_worker(stack, tmp_path / "b", model_folder) as other, stack.openai() as here:
        other.say("Another says it.")
        queued = await here.responses.create(model="tiny", input="Say it.", background=True)
        if told:
            await stack.until(lambda: any(run.sent > 1 for run in stack.replica.runs.values()))
            await asyncio.sleep(0.8)
        background = stack.gateway.background_responses
        assert background is not None
        for run in list(background._tasks):
            run.cancel()
        await asyncio.sleep(0)
        monkeypatch.setattr("gateway.kept_responses.background.SILENT_S", 0.2)
        monkeypatch.setattr("gateway.kept_responses.event_feeds._STANDING_S", 0.1)
        monkeypatch.setattr("gateway.kept_responses.background_run.BEAT_S", 1.0)
        await asyncio.sleep(0.3)
        async with other.openai(stack.key) as there:
            events = await events_of(there, queued.id)
            assert [event.sequence_number for event in events] == list(range(len(events)))
            final = await until_ended(there, queued.id)
            if told:
                assert (final.status, final.error.code) == ("failed", "server_error")
                assert events[-1].type == "response.failed"
            else:
                assert (final.status, final.output_text) == ("completed", "Another says it.")
                assert [event.type for event in events].count("response.created") == 1


async def test_a_response_that_is_deleted_ends(stack: Stack) -> None:
    stack.say(SAID * 8, pause=0.05)
    async with stack.openai() as client:
        queued = await client.responses.create(model="tiny", input="Say it.", background=True)
        await asyncio.sleep(0.2)
        await client.responses.delete(queued.id)
    (event,) = await stack.settled(1)
    assert event.status == "cancelled"
    assert await stack.rows("SELECT first FROM stored_response_events") == []


async def test_a_worker_that_stops_hands_over_what_has_not_begun(
    stack: Stack, tmp_path: Path, model_folder: Path
) -> None:
    stack.say(SAID, queued=600.0)
    async with second_worker(stack, tmp_path / "b", model_folder) as other, stack.openai() as here:
        other.say("Another says it.")
        queued = await here.responses.create(model="tiny", input="Say it.", background=True)
        await stack.gateway.requests.drain(0.1)
        async with other.openai(stack.key) as there:
            await events_of(there, queued.id)
            final = await until_ended(there, queued.id)
            assert (final.status, final.output_text) == ("completed", "Another says it.")


async def die(stack: Stack, name: str) -> Orphan:
    """Let the worker's runs end as if it had died, and say whose response is left."""
    background = stack.gateway.background_responses
    assert background is not None
    for run in list(background._tasks):
        run.cancel()
    await stack.until(lambda: not background._tasks)
    await stack.until(lambda: not stack.gateway.requests._running)
    return Orphan(UUID(name.removeprefix("resp_")), stack.tenant.id, stack.project.id)


async def adopt(stack: Stack, orphan: Orphan) -> None:
    assert stack.gateway.background_responses is not None
    await stack.gateway.background_responses.adopt(orphan, -1.0)


async def runs(stack: Stack, count: int) -> None:
    await stack.until(lambda: len(stack.replica.runs) >= count)
    assert len(stack.replica.runs) == count


async def until_it_beats(stack: Stack) -> None:
    """Until the one response that there is has said again that it waits, so that nobody else takes it over."""
    (before,) = await stack.rows("SELECT beat_at FROM stored_response")
    for _ in range(3000):
        (now,) = await stack.rows("SELECT beat_at FROM stored_response")
        if now.beat_at > before.beat_at:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("who waits is silent")


async def test_a_worker_that_was_silent_does_not_take_its_own_response_over(stack: Stack) -> None:
    """As after a database that was away: two runs of one worker would write under one name."""
    stack.say(SAID, queued=600.0)
    async with stack.openai() as client:
        queued = await client.responses.create(model="tiny", input="Say it.", background=True)
        await runs(stack, 1)
        await adopt(stack, Orphan(UUID(queued.id.removeprefix("resp_")), stack.tenant.id, stack.project.id))
        assert [row.taken_over for row in await stack.rows("SELECT taken_over FROM stored_response")] == [0]
        assert (await client.responses.cancel(queued.id)).status == "cancelled"
    await runs(stack, 1)


async def test_what_was_answered_with_an_error_is_not_run_later(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row was kept, and the database went away before its first event was."""
    background = stack.gateway.background_responses
    assert background is not None
    stack.say(SAID, queued=600.0)

    async def away(*_: object) -> None:
        raise DatabaseUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(background._running, "write", away)
        answer = await stack.http.post(
            "/v1/responses",
            headers={"authorization": f"Bearer {stack.key}"},
            json={"model": "tiny", "input": "Say it.", "background": True},
        )
    assert answer.status_code == 503
    await stack.until(lambda: not stack.gateway.requests._running)
    begun = len(stack.replica.runs)
    async with stack.database.reading() as session:
        kept: UUID = (await session.execute(select(stored_response.c.id))).scalar_one()
    await adopt(stack, Orphan(kept, stack.tenant.id, stack.project.id))
    (row,) = await stack.rows("SELECT status, worker FROM stored_response")
    assert (row.status, row.worker) == ("failed", None)
    assert len(stack.replica.runs) == begun


async def test_a_revoked_key_has_nothing_run_anew(stack: Stack) -> None:
    stack.say(SAID, queued=600.0)
    other = await stack.tenancy.create_key(stack.tenant.id, stack.project.id)
    async with stack.openai() as client, stack.openai(other.key) as colleague:
        queued = await client.responses.create(model="tiny", input="Say it.", background=True)
        await runs(stack, 1)
        orphan = await die(stack, queued.id)
        (key,) = [one for one in await stack.tenancy.list_keys(stack.tenant.id) if one.public_id in stack.key]
        await stack.tenancy.revoke(key.public_id)
        await adopt(stack, orphan)
        ended = await until_ended(colleague, queued.id)
        assert (ended.status, "revoked" in ended.error.message) == ("failed", True)
    await runs(stack, 1)


@pytest.mark.parametrize(("place", "name"), [("_store", "save"), ("_running", "write")])
async def test_what_was_answered_with_an_error_is_not_billed(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, place: str, name: str
) -> None:
    """Its money was held, and the model read its prompt."""
    stack.say(SAID, prefill=600.0)

    async def away(*_: object) -> None:
        await stack.until(lambda: any(run.counts.prompt for run in stack.replica.runs.values()))
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(getattr(stack.gateway.background_responses, place), name, away)
    answer = await stack.http.post(
        "/v1/responses",
        headers={"authorization": f"Bearer {stack.key}"},
        json={"model": "tiny", "input": "Say it.", "background": True},
    )
    assert answer.status_code == 503
    (event,) = await stack.settled(1)
    assert (event.status, event.cost_pico) == ("failed", 0)


async def bills_one_answer(stack: Stack) -> None:
    """Of two runs of one response the second is billed, and the first is our failure."""
    first, second = await stack.settled(2)
    assert (first.status, first.cost_pico, first.output) == ("failed", 0, 0)
    assert (second.status, second.cost_pico > 0, second.output > 0) == ("ok", True, True)


@pytest.mark.parametrize("pause", [0.0, 0.05], ids=["generated", "generating"])
async def test_what_no_client_can_read_is_not_billed(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    """The database goes away for good before any output is written; then the response is run anew."""
    monkeypatch.setattr("gateway.kept_responses.background._DATABASE_TIMEOUT_S", 0.0)
    background = stack.gateway.background_responses
    assert background is not None
    write = background._running.write

    async def away(progress: Progress, seal: Any) -> Standing:
        if progress.first:
            raise DatabaseUnavailable("away")
        return await write(progress, seal)

    stack.say(SAID, pause=pause)
    async with stack.openai() as client:
        with monkeypatch.context() as patch:
            patch.setattr(background._running, "write", away)
            queued = await client.responses.create(model="tiny", input="Say it.", background=True)
            await stack.until(lambda: not background._tasks and not stack.gateway.requests._running)
        (run,) = stack.replica.runs.values()
        assert not any(credit.delivered for credit in run.credits), "a worker that dies now is our failure, too"
        stack.say(SAID)
        await adopt(stack, Orphan(UUID(queued.id.removeprefix("resp_")), stack.tenant.id, stack.project.id))
        final = await until_ended(client, queued.id)
        assert (final.status, final.output_text) == ("completed", SAID)
    await bills_one_answer(stack)


async def test_a_worker_that_awakes_after_its_response_was_taken_over_bills_nothing(
    stack: Stack, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep, awake = asyncio.Event(), asyncio.Event()
    background = stack.gateway.background_responses
    assert background is not None
    write = background._running.write

    async def slow(progress: Progress, seal: Any) -> Standing:
        if progress.first:
            asleep.set()
            await awake.wait()
        return await write(progress, seal)

    monkeypatch.setattr(background._running, "write", slow)
    stack.say(SAID)
    async with second_worker(stack, tmp_path / "b", model_folder) as other, stack.openai() as here:
        other.say(SAID)
        queued = await here.responses.create(model="tiny", input="Say it.", background=True)
        await asleep.wait()
        await adopt(other, Orphan(UUID(queued.id.removeprefix("resp_")), stack.tenant.id, stack.project.id))
        async with other.openai(stack.key) as there:
            final = await until_ended(there, queued.id)
            assert (final.status, final.output_text) == ("completed", SAID)
        awake.set()
        await bills_one_answer(stack)


async def test_what_kills_its_workers_is_not_run_for_ever(stack: Stack) -> None:
    stack.say(SAID, queued=600.0)
    async with stack.openai() as client:
        queued = await client.responses.create(model="tiny", input="Say it.", background=True)
        for taken in range(1, 4):
            await runs(stack, taken)
            await adopt(stack, await die(stack, queued.id))
        await runs(stack, 4)
        await adopt(stack, await die(stack, queued.id))
        final = await until_ended(client, queued.id)
        assert (final.status, final.error.code) == ("failed", "taken_over_too_often")
        assert "4 workers" in final.error.message
        assert (await events_of(client, queued.id))[-1].type == "response.failed"
    await runs(stack, 4)


async def test_a_response_that_is_taken_over_waits_for_its_limits(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.kept_responses.waiting.BEAT_S", 0.05)
    await set_limits(stack, concurrent_requests=1)
    stack.say(SAID, queued=600.0)
    async with stack.openai() as client:
        queued = await client.responses.create(model="tiny", input="Say it.", background=True)
        await runs(stack, 1)
        orphan = await die(stack, queued.id)
        other = asyncio.create_task(stack.post({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}))
        await runs(stack, 2)
        await adopt(stack, orphan)
        await until_it_beats(stack)
        await runs(stack, 2)
        stack.say("At last.")
        other.cancel()
        final = await until_ended(client, queued.id)
        assert (final.status, final.output_text) == ("completed", "At last.")


@pytest.mark.parametrize("end", ["replica", "cancelled", "timeout"])
async def test_a_response_that_is_taken_over_waits_for_a_replica(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """As after a restart of all on one machine, where a gateway is there before its replica."""
    monkeypatch.setattr("gateway.kept_responses.waiting.BEAT_S", 0.05)
    monkeypatch.setattr("gateway.kept_responses.waiting.BEGIN_TIMEOUT_S", 0.0 if end == "timeout" else 600.0)
    stack.say(SAID, queued=600.0)
    async with stack.openai() as client:
        queued = await client.responses.create(model="tiny", input="Say it.", background=True)
        await runs(stack, 1)
        orphan = await die(stack, queued.id)
        await stack.replica.stop()
        await stack.until(lambda: not stack.gateway.services.fleet.healthy("tiny"))
        await adopt(stack, orphan)
        if end == "timeout":
            final = await until_ended(client, queued.id)
            assert (final.status, final.error.code) == ("failed", "server_error")
            assert "No replica" in final.error.message
            return
        await until_it_beats(stack)
        assert (await client.responses.retrieve(queued.id)).status == "queued"
        if end == "cancelled":
            assert (await client.responses.cancel(queued.id)).status == "cancelled"
            return
        stack.say("At last.")
        await stack.replica.start()
        final = await until_ended(client, queued.id)
        assert (final.status, final.output_text) == ("completed", "At last.")


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_response_that_waits_for_its_limits_ends(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    monkeypatch.setattr("gateway.kept_responses.waiting.BEAT_S", 0.05)
    monkeypatch.setattr("gateway.kept_responses.waiting.BEGIN_TIMEOUT_S", 600.0 if cancelled else 0.0)
    await set_limits(stack, requests_per_minute=1)
    stack.say(SAID, queued=600.0)
    async with stack.openai() as client:
        queued = await client.responses.create(model="tiny", input="Say it.", background=True)
        await runs(stack, 1)
        await adopt(stack, await die(stack, queued.id))
        if cancelled:
            assert (await client.responses.cancel(queued.id)).status == "cancelled"
        else:
            final = await until_ended(client, queued.id)
            assert (final.status, final.error.code) == ("failed", "rate_limit_exceeded")
            assert "Please try again in" in final.error.message
    await runs(stack, 1)


async def test_what_a_request_said_of_cache_and_cost_holds_when_it_is_run_anew(stack: Stack) -> None:
    stack.say(SAID, queued=600.0)
    body = {"model": "tiny", "input": "Say it.", "background": True, "max_cost": "0.0002"}
    headers = {"authorization": f"Bearer {stack.key}", "cache-control": "no-store"}
    queued = (await stack.http.post("/v1/responses", json=body, headers=headers)).json()
    await runs(stack, 1)
    (first,) = stack.replica.runs.values()
    await adopt(stack, await die(stack, queued["id"]))
    await runs(stack, 2)
    *_, second = stack.replica.runs.values()
    assert second.generate.store == first.generate.store == "hbm"
    assert second.generate.sampling.max_tokens == first.generate.sampling.max_tokens < 200, "as its max_cost allows"
    async with stack.openai() as client:
        assert (await client.responses.cancel(queued["id"])).status == "cancelled"


async def taken_over(stack: Stack) -> list[int]:
    return [row.taken_over for row in await stack.rows("SELECT taken_over FROM stored_response")]


async def test_after_a_database_was_away_others_are_given_time_to_say_that_they_live(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a worker writes does not arrive either while the database is away, and the one that asks first would win."""
    monkeypatch.setattr("gateway.kept_responses.background.SILENT_S", 600.0)
    background = stack.gateway.background_responses
    assert background is not None

    async def away(*_: object) -> None:
        raise DatabaseUnavailable("away")

    stack.say(SAID, queued=600.0)
    async with stack.openai() as client:
        queued = await client.responses.create(model="tiny", input="Say it.", background=True)
        await runs(stack, 1)
        orphan = await die(stack, queued.id)
        with monkeypatch.context() as patch:
            patch.setattr(background._running, "orphans", away)
            with pytest.raises(DatabaseUnavailable):
                await background.sweep()
        async with stack.database.transaction() as session:
            await session.execute(update(stored_response).values(beat_at=1))
        await background.sweep()
        await background.adopt(orphan)
        assert await taken_over(stack) == [0]
        monkeypatch.setattr("gateway.kept_responses.background.SILENT_S", 0.0)  # that time has passed
        await background.sweep()
        assert await taken_over(stack) == [1]
        assert (await client.responses.cancel(queued.id)).status == "cancelled"


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_worker_that_prepares_a_response_says_that_it_lives(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    """A long input is rendered and tokenized again, and its hold may wait for others."""
    monkeypatch.setattr("gateway.kept_responses.waiting.BEAT_S", 0.05)
    background = stack.gateway.background_responses
    assert background is not None
    prepare, go_on = background._admission.prepare, asyncio.Event()

    async def slow(*arguments: Any) -> Any:
        await go_on.wait()
        return await prepare(*arguments)

    stack.say(SAID, queued=600.0)
    async with stack.openai() as client:
        queued = await client.responses.create(model="tiny", input="Say it.", background=True)
        await runs(stack, 1)
        orphan = await die(stack, queued.id)
        stack.say("At last.")
        monkeypatch.setattr(background._admission, "prepare", slow)
        await adopt(stack, orphan)
        await until_it_beats(stack)
        await until_it_beats(stack)
        if cancelled:
            assert (await client.responses.cancel(queued.id)).status == "cancelled"
        go_on.set()
        final = await until_ended(client, queued.id)
        assert (final.status, final.output_text) == (("cancelled", "") if cancelled else ("completed", "At last."))
    await runs(stack, 1 if cancelled else 2)


async def test_all_that_a_response_waits_for_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.kept_responses.waiting.BEAT_S", 0.01)
    told: list[float] = []

    async def begin(end: float) -> str:
        told.append(end)
        if len(told) < 3:
            raise Unavailable("No replica.", retry_after=0)
        return "begun"

    assert await wait_until_it_begins(lambda: None, begin) == "begun"
    assert (len(told), len(set(told))) == (3, 1)
