"""A request whose replica is lost before any token has come is tried once more, and the first attempt is ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from billing.replica_journals.comparison import JournalReport
from billing.settlement.lost_attempt_events import attempt_id
from billing.verification import audit
from billing.verification.reconciliation import reconcile
from gateway.fleet import router
from gateway.services import GatewayOptions
from protocol.requests import ATTEMPT_VERSION
from tests.fast import only_fast
from tests.gateway.fake_replica import Script
from tests.gateway.generation.test_lifecycle import STREAM, TEXT, WHOLE, content, frames
from tests.gateway.stack import Stack, quick_timeouts, running_stack


@pytest.fixture(autouse=True)
def first_replica_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """New conversations go to the replica whose name comes first."""
    monkeypatch.setattr(router, "rendezvous", lambda key, replica: replica.encode())


@asynccontextmanager
async def two(
    url: str, folder: Path, model: Path, replicas: int = 2, *, alone: bool = False, **timeouts: float
) -> AsyncIterator[Stack]:
    """A gateway with replicas of which the first gets a new conversation. `alone`: no other gateway has
    requests there."""
    options = GatewayOptions(timeouts=quick_timeouts(**{"replay": 20.0, **timeouts}))
    async with running_stack(url, folder, model, options=options, replicas=replicas) as stack:
        if not alone:
            for replica in stack.replicas:
                replica.busy = 3
            links = stack.gateway.services.fleet.links
            await stack.until(lambda: all(link.others for link in links))
        yield stack


async def kill(stack: Stack, number: int = 0, sent: int = 0) -> None:
    """Kill a replica when it has a request, of which it has sent so much."""
    replica = stack.replicas[number]
    await stack.until(lambda: any(run.sent >= sent for run in replica.runs.values()))
    await asyncio.sleep(0.05)
    await replica.stop()


def text_of(body: dict[str, Any], answer: Any) -> str:
    if body is STREAM:
        return content(frames(answer.text))
    return str(answer.json()["choices"][0]["message"]["content"])


def identity(stored: Any) -> UUID:
    """An id as a raw query gives it."""
    return UUID(bytes=stored) if isinstance(stored, bytes) else UUID(str(stored))


async def assert_books(stack: Stack) -> None:
    """Every check of the books, and the events against what each replica's journal counted."""
    assert await audit.audit_money(stack.database) == []
    journals = [
        JournalReport(replica.name, len(replica.done), len(replica.journal), replica.identity)
        for replica in stack.replicas
    ]
    period = (await stack.events())[0].period
    report = await reconcile(stack.database, period, journals)
    assert report.clean, report
    for replica in stack.replicas:
        counted = sum(done.counts.output for done in replica.done)
        events = [event for event in await stack.events() if event.replica == replica.name]
        assert sum(event.count_output for event in events) == counted
        assert {event.sequence for event in events} == {done.sequence for done in replica.done}


async def assert_lost_attempt(stack: Stack, source: str = "gateway") -> None:
    """The first attempt's event belongs to the request, counts and costs nothing; the second one's is billed."""
    first, second = sorted(await stack.settled(2), key=lambda event: event.attempt)
    assert (first.attempt, second.attempt) == (1, 2)
    assert identity(first.id) == attempt_id(identity(second.id), 1)
    assert identity(first.corrects) == identity(second.id)
    assert (first.status, first.cost_pico, first.output, first.uncached) == ("failed", 0, 0, 0)
    assert (first.replica, first.source, first.count_prompt > 0) == ("replica-0", source, True)
    assert (second.status, second.cost_pico > 0, second.corrects) == ("ok", True, None)
    rows = await stack.rows("SELECT sum(requests) AS requests FROM rollup_hour")
    assert rows[0].requests == 1, "the tenant asked once"
    await assert_books(stack)


@pytest.mark.parametrize("body", [STREAM, WHOLE])
@pytest.mark.parametrize("where", only_fast("prefilling", of=["queued", "prefilling"]))
async def test_a_lost_replica_with_another_beside_it(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, body: dict[str, Any], where: str
) -> None:
    async with two(stocked_sqlite_url, tmp_path, model_folder) as stack:
        waiting = {"queued": 60.0} if where == "queued" else {"prefill": 60.0}
        stack.say(TEXT, **waiting)
        stack.replicas[1].script = Script(tokens=stack.tokens(TEXT))
        asked = asyncio.create_task(stack.post(body))
        await kill(stack)
        answer = await asked
        assert answer.status_code == 200
        assert text_of(body, answer) == TEXT
        assert "error" not in answer.text
        (run,) = stack.replicas[1].runs.values()
        assert run.generate.attempt == 2
        await stack.replica.restart()
        if where == "queued":
            (event,) = await stack.settled(1)
            assert (event.attempt, event.status) == (2, "ok")
            await assert_books(stack)
        else:
            await assert_lost_attempt(stack)
            await stack.until(lambda: not stack.replica.journal)


@pytest.mark.slow
@pytest.mark.parametrize("body", [STREAM, WHOLE])
async def test_the_only_replica_is_waited_for(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, body: dict[str, Any]
) -> None:
    async with two(stocked_sqlite_url, tmp_path, model_folder, replicas=1) as stack:
        stack.say(TEXT, prefill=60.0)
        asked = asyncio.create_task(stack.post(body))
        await kill(stack)
        await asyncio.sleep(0.3)
        assert not asked.done()
        stack.say(TEXT)
        await stack.replica.restart()
        answer = await asked
        assert answer.status_code == 200
        assert text_of(body, answer) == TEXT
        await assert_lost_attempt(stack)


@pytest.mark.slow
@pytest.mark.parametrize(("body", "sent"), [(STREAM, 0), (WHOLE, 0), (WHOLE, 5)])
async def test_no_replica_comes_back_in_time(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, body: dict[str, Any], sent: int
) -> None:
    async with two(stocked_sqlite_url, tmp_path, model_folder, replicas=1, retry=0.3) as stack:
        stack.say(TEXT, pause=0.02, prefill=0.0 if sent else 60.0)
        asked = asyncio.create_task(stack.post(body))
        await kill(stack, sent=sent)
        answer = await asked
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        await stack.replica.restart()
        (event,) = await stack.settled(1)
        assert (event.attempt, event.status, event.cost_pico, event.sequence) == (1, "failed", 0, 1)
        await assert_books(stack)


@pytest.mark.slow
async def test_both_attempts_are_lost(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> None:
    async with two(stocked_sqlite_url, tmp_path, model_folder) as stack:
        for replica in stack.replicas:
            replica.script = Script(tokens=stack.tokens(TEXT), prefill=60.0)
        asked = asyncio.create_task(stack.post(WHOLE))
        await kill(stack, 0)
        await kill(stack, 1)
        answer = await asked
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        for replica in stack.replicas:
            await replica.restart()
        first, second = sorted(await stack.settled(2), key=lambda event: event.attempt)
        assert (first.cost_pico, second.cost_pico) == (0, 0)
        assert (first.replica, second.replica) == ("replica-0", "replica-1")
        await assert_books(stack)


@pytest.mark.slow
async def test_a_client_that_leaves_meanwhile_owes_nothing(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    async with two(stocked_sqlite_url, tmp_path, model_folder, replicas=1) as stack:
        stack.say(TEXT, prefill=60.0)
        asked = asyncio.create_task(stack.post(WHOLE))
        await kill(stack)
        await asyncio.sleep(0.2)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await asyncio.sleep(0.2)
        await stack.replica.restart()
        (event,) = await stack.settled(1)
        assert (event.attempt, event.cost_pico) == (1, 0)
        await assert_books(stack)


@pytest.mark.slow
async def test_a_journal_that_comes_back_late_is_booked_from_the_event(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    """Nobody waits for it any more, and a gateway that is started anew knows nothing of the first attempt either."""
    async with two(stocked_sqlite_url, tmp_path, model_folder, replay=0.1) as stack:
        stack.say(TEXT, prefill=60.0)
        stack.replicas[1].script = Script(tokens=stack.tokens(TEXT))
        asked = asyncio.create_task(stack.post(WHOLE))
        await kill(stack)
        assert (await asked).status_code == 200
        await stack.settled(1)
        await asyncio.sleep(0.3)
        await stack.replica.restart()
        await assert_lost_attempt(stack, source="journal")
        await stack.until(lambda: not stack.replica.journal)


@pytest.mark.slow
async def test_a_journal_that_comes_back_while_the_second_attempt_runs(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    async with two(stocked_sqlite_url, tmp_path, model_folder, replay=0.1) as stack:
        stack.say(TEXT, prefill=60.0)
        stack.replicas[1].script = Script(tokens=stack.tokens(TEXT), pause=0.02)
        asked = asyncio.create_task(stack.post(WHOLE))
        await kill(stack)
        await stack.until(lambda: stack.replicas[1].runs)
        await asyncio.sleep(0.2)
        await stack.replica.restart()
        await asyncio.sleep(0.5)
        assert not asked.done()
        answer = await asked
        assert answer.status_code == 200
        assert text_of(WHOLE, answer) == TEXT
        await assert_lost_attempt(stack, source="journal")


@pytest.mark.slow
@pytest.mark.parametrize("reason", ["rejected", "abort"])
async def test_a_replica_that_stops_hands_its_requests_on(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, reason: str
) -> None:
    """As in a rolling restart: the first refuses what is new, and ends what takes too long."""
    async with two(stocked_sqlite_url, tmp_path, model_folder) as stack:
        stack.replica.script = Script(tokens=[], reason=reason)
        stack.replicas[1].script = Script(tokens=stack.tokens(TEXT))
        answer = await stack.post(WHOLE)
        assert answer.status_code == 200
        assert text_of(WHOLE, answer) == TEXT
        if reason == "rejected":
            await stack.settled(1)
            await assert_books(stack)
        else:
            await assert_lost_attempt(stack)


# ------------------------------------------------ a request of which its replica may have died


async def ask_alone(stack: Stack) -> asyncio.Task[Any]:
    """A request, alone on the first replica, which dies while it computes the prompt."""
    stack.say(TEXT, prefill=60.0)
    stack.replicas[1].script = Script(tokens=stack.tokens(TEXT))
    asked = asyncio.create_task(stack.post(WHOLE))
    await kill(stack)
    return asked


@pytest.mark.slow
async def test_a_request_alone_on_the_replica_that_died_is_sent_to_no_other(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    """It goes to the same one again: should it be the cause, no other one dies of it."""
    async with two(stocked_sqlite_url, tmp_path, model_folder, alone=True, retry=10.0) as stack:
        asked = await ask_alone(stack)
        await asyncio.sleep(0.5)
        assert not asked.done()
        assert not stack.replicas[1].runs
        stack.say(TEXT)
        await stack.replica.restart()
        answer = await asked
        assert (answer.status_code, text_of(WHOLE, answer)) == (200, TEXT)
        assert not stack.replicas[1].runs
        await assert_lost_attempt(stack)


@pytest.mark.slow
async def test_a_request_whose_replica_died_of_it_twice_is_given_up(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    async with two(stocked_sqlite_url, tmp_path, model_folder, alone=True, retry=10.0) as stack:
        asked = await ask_alone(stack)
        stack.replica.runs.clear()
        await stack.replica.restart()
        await kill(stack)
        assert (await asked).status_code == 503
        assert not stack.replicas[1].runs
        await stack.replica.restart()
        await stack.settled(1)


@pytest.mark.slow
async def test_a_request_whose_dead_replica_does_not_come_back_is_given_up(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    async with two(stocked_sqlite_url, tmp_path, model_folder, alone=True, retry=0.5) as stack:
        asked = await ask_alone(stack)
        answer = await asked
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert not stack.replicas[1].runs
        await stack.replica.restart()
        await stack.settled(1)


@pytest.mark.slow
@pytest.mark.parametrize("in_prefill", [1, 2])
async def test_those_that_were_put_out_already_are_not_what_a_replica_died_of(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, in_prefill: int
) -> None:
    """The one that had put out nothing is suspected. Where there are two, neither is more likely than the other."""
    async with two(stocked_sqlite_url, tmp_path, model_folder, alone=True, retry=10.0) as stack:
        first, second = stack.replicas
        second.busy = 10
        links = stack.gateway.services.fleet.links
        await stack.until(lambda: any(link.beat is not None and link.beat.running == 10 for link in links))
        stack.say(TEXT * 3, pause=0.05)
        second.script = Script(tokens=stack.tokens(TEXT))
        decoding = [asyncio.create_task(stack.post(WHOLE)) for _ in range(2)]
        await stack.until(lambda: len(first.runs) == 2 and all(run.sent for run in first.runs.values()))
        stack.say(TEXT, prefill=60.0)
        prefilling = [asyncio.create_task(stack.post(WHOLE)) for _ in range(in_prefill)]
        await stack.until(lambda: len(first.runs) == 2 + in_prefill)
        await asyncio.sleep(0.05)
        await first.stop()
        for asked in decoding:
            assert (await asked).status_code == 200
        if in_prefill > 1:
            for asked in prefilling:
                assert (await asked).status_code == 200
            assert len(second.runs) == 4
        else:
            assert not prefilling[0].done()
            assert len(second.runs) == 2
        stack.say(TEXT)
        await first.restart()
        assert [(await asked).status_code for asked in prefilling] == [200] * in_prefill
        await stack.settled(2 * (2 + in_prefill))
        await assert_books(stack)


# ------------------------------------------------ the link alone


@pytest.mark.parametrize("body", only_fast(WHOLE, of=[STREAM, WHOLE]))
async def test_a_request_goes_on_where_it_ran_when_the_link_is_back(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, body: dict[str, Any]
) -> None:
    """Its first attempt may run there still: it is ended, and nothing that is said to it means the second one."""
    async with two(stocked_sqlite_url, tmp_path, model_folder, replicas=1, alone=True, retry=10.0) as stack:
        stack.say(TEXT, prefill=60.0)
        asked = asyncio.create_task(stack.post(body))
        await stack.until(lambda: any(run.counts.prompt for run in stack.replica.runs.values()))
        await asyncio.sleep(0.05)
        stack.say(TEXT)
        stack.replica.drop()
        answer = await asked
        assert (answer.status_code, text_of(body, answer)) == (200, TEXT)
        assert {abort.attempt for abort in stack.replica.aborts} == {1}
        (run,) = stack.replica.runs.values()
        assert run.generate.attempt == 2
        assert {credit.attempt for credit in run.credits} <= {2}
        await assert_lost_attempt(stack)


@pytest.mark.slow
async def test_a_replica_that_cannot_tell_attempts_apart_gets_the_second_when_it_was_started_again(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    async with two(stocked_sqlite_url, tmp_path, model_folder, replicas=1, alone=True, retry=10.0) as stack:
        stack.replica.version = ATTEMPT_VERSION - 1
        stack.replica.drop()
        link = stack.gateway.services.fleet.links[0]
        await stack.until(lambda: link.up and link.hello is not None and link.hello.version < ATTEMPT_VERSION)
        await stack.ready()
        stack.say(TEXT, prefill=60.0)
        asked = asyncio.create_task(stack.post(WHOLE))
        await stack.until(lambda: any(run.counts.prompt for run in stack.replica.runs.values()))
        await asyncio.sleep(0.05)
        stack.replica.drop()
        await stack.until(lambda: stack.replica.aborts)
        await asyncio.sleep(0.3)
        assert [run.generate.attempt for run in stack.replica.runs.values()] == [1]
        assert not asked.done()
        stack.say(TEXT)
        await stack.replica.stop()
        await stack.replica.restart()
        answer = await asked
        assert (answer.status_code, text_of(WHOLE, answer)) == (200, TEXT)


@pytest.mark.parametrize("body", [STREAM, WHOLE, "background"])
async def test_a_request_that_finds_no_replica_waits_until_one_is_started(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, body: dict[str, Any] | str
) -> None:
    async with two(stocked_sqlite_url, tmp_path, model_folder, replicas=1, alone=True, retry=20.0) as stack:
        stack.say(TEXT)
        await stack.replica.stop()
        await stack.until(lambda: not stack.gateway.services.fleet.healthy("tiny"))
        if isinstance(body, str):
            headers = {"authorization": f"Bearer {stack.key}"}
            response = {"model": "tiny", "input": "Say it.", "background": True}
            asked = asyncio.create_task(stack.http.post("/v1/responses", headers=headers, json=response))
        else:
            asked = asyncio.create_task(stack.post(body))
        await asyncio.wait([asked], timeout=0.3)
        assert await stack.holds() == [], "nothing is held while it waits"
        await stack.replica.restart()
        answer = await asked
        assert answer.status_code == 200, answer.text
        if isinstance(body, dict):
            assert text_of(body, answer) == TEXT


async def test_what_waits_for_a_first_replica_is_backlog_and_is_told_when_it_was_in_vain(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    async with two(stocked_sqlite_url, tmp_path, model_folder, replicas=1, alone=True, start=0.5) as stack:
        await stack.replica.stop()
        fleet = stack.gateway.services.fleet
        await stack.until(lambda: not fleet.healthy("tiny"))
        asked = asyncio.create_task(stack.post(WHOLE))
        await stack.until(lambda: fleet.backlog("tiny") > 0)
        metrics = (await stack.http.get("/metrics")).text
        [value] = [line for line in metrics.splitlines() if line.startswith('turnpike_backlog_seconds{model="tiny"}')]
        assert float(value.rpartition(" ")[2]) > 0, "an autoscaler starts the first replica by it"
        answer = await asked
        assert answer.status_code == 503
        assert "was ready within 0.5 s" in answer.json()["error"]["message"]
        assert int(answer.headers["retry-after"]) >= 1
        assert fleet.backlog("tiny") == 0


async def test_a_request_that_waits_for_a_replica_is_refused_when_the_gateway_stops(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    async with two(stocked_sqlite_url, tmp_path, model_folder, replicas=1, alone=True, retry=600.0) as stack:
        await stack.replica.stop()
        await stack.until(lambda: not stack.gateway.services.fleet.healthy("tiny"))
        asked = asyncio.create_task(stack.post(WHOLE))
        await asyncio.wait([asked], timeout=0.3)
        assert not asked.done()
        stack.gateway.requests.begin_drain()
        answer = await asyncio.wait_for(asked, 30)
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1


async def test_a_request_does_not_wait_for_a_replica_whose_disk_is_full(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    """Somebody has to make room: that takes longer than a start."""
    async with two(stocked_sqlite_url, tmp_path, model_folder, replicas=1, alone=True, retry=600.0) as stack:
        stack.replica.disk_full = True
        await stack.until(lambda: bool(stack.gateway.services.fleet.disks_full("tiny")))
        answer = await asyncio.wait_for(stack.post(WHOLE), 30)
        assert (answer.status_code, "disk" in answer.json()["error"]["message"]) == (503, True)


@pytest.mark.parametrize("body", [STREAM, WHOLE, "background"])
async def test_a_client_that_leaves_waits_for_no_replica(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, body: Any
) -> None:
    """Its place is another request's at once."""
    monkeypatch.setattr("gateway.generation.running_tasks.MOST_WAITING", 1)
    async with two(stocked_sqlite_url, tmp_path, model_folder, replicas=1, alone=True, retry=600.0) as stack:
        stack.say(TEXT)
        await stack.replica.stop()
        await stack.until(lambda: not stack.gateway.services.fleet.healthy("tiny"))
        headers = {"authorization": f"Bearer {stack.key}"}
        if body == "background":
            response = {"model": "tiny", "input": "Say it.", "background": True}
            leaving = asyncio.create_task(stack.http.post("/v1/responses", headers=headers, json=response))
        else:
            leaving = asyncio.create_task(stack.post(body))
        await asyncio.wait([leaving], timeout=0.3)
        assert not leaving.done()
        assert (await stack.post(WHOLE)).status_code == 503, "its place is taken"
        leaving.cancel()
        await asyncio.wait([leaving])
        asked, done = leaving, {leaving}
        async with asyncio.timeout(30):
            while done:
                assert asked.cancelled() or asked.result().status_code == 503
                asked = asyncio.create_task(stack.post(WHOLE))
                done, _ = await asyncio.wait([asked], timeout=0.3)
        await stack.replica.restart()
        assert (await asked).status_code == 200
        assert len(await stack.settled(1)) == 1


async def test_few_requests_of_a_tenant_wait_for_a_replica_at_once(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.generation.running_tasks.MOST_WAITING", 1)
    async with two(stocked_sqlite_url, tmp_path, model_folder, replicas=1, alone=True, retry=600.0) as stack:
        stack.say(TEXT)
        await stack.replica.stop()
        await stack.until(lambda: not stack.gateway.services.fleet.healthy("tiny"))
        asked = {asyncio.create_task(stack.post(WHOLE)) for _ in range(2)}
        done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        assert [each.result().status_code for each in done] == [503]
        await stack.replica.restart()
        assert [(await each).status_code for each in waiting] == [200]
