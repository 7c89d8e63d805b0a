"""What an earlier gateway left behind is found by the next: in a journal, in a hold, once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import insert, update

from billing.holds.records import Hold, HoldRequest
from billing.prices import PriceVersion
from billing.settlement.lost_attempt_events import AttemptedRequest, LostAttempt, lost_attempt
from billing.settlement.settlement import JournalEntry, settle
from billing.tables.books import gateway_epoch, journal_of_epoch, replica_journal
from billing.verification.audit import audit_money
from gateway.metering.billable_usage import to_billing_counts
from gateway.services import GatewayOptions
from protocol.replicas import FENCE_VERSION
from protocol.requests import Counts, Done
from storage.database.base import new_id
from storage.database.database import Database, DatabaseUnavailable
from tests.fast import only_fast
from tests.gateway.fake_replica import FakeReplica, Run
from tests.gateway.stack import Stack, quick_timeouts, running_stack

WHOLE: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TEXT = "The quick brown fox jumps over the lazy dog. " * 4
SHORT_DRAIN = GatewayOptions(timeouts=quick_timeouts(), drain_timeout=1.0)

ASIDE = GatewayOptions(timeouts=quick_timeouts(), drain_timeout=1.0, allowance_requests=1)


async def leave_a_hold(url: str, folder: Path, model_folder: Path, name: str) -> str:
    """A gateway of this name dies with a request on its way; the request's id."""
    earlier = folder / "earlier"
    earlier.mkdir()
    async with running_stack(url, earlier, model_folder, name=name) as stack:
        stack.say(TEXT, queued=60)
        asking = asyncio.create_task(stack.post(WHOLE))
        await stack.until(lambda: stack.replica.runs)
        identity = next(iter(stack.replica.runs))
        for task in list(stack.gateway.requests._running.values()):
            task.cancel()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    return identity


async def test_a_journal_is_adopted_once(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> None:
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder) as stack:
        stack.say(TEXT, pause=0.02)
        headers = {"authorization": f"Bearer {stack.key}"}
        body = WHOLE | {"stream": True}
        async with stack.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
            async for _ in answer.aiter_lines():
                if any(run.delivered for run in stack.replica.runs.values()):
                    break
            # the gateway dies: its owner never hears how the request ended
            for task in list(stack.gateway.requests._running.values()):
                task.cancel()
            await stack.until(lambda: not stack.gateway.requests)
            await stack.replica.stop()
        run = next(iter(stack.replica.runs.values()))
        assert await stack.holds() == ["open"]
        assert run.delivered > 0
        await stack.replica.restart()
        (event,) = await stack.settled(1)
        assert (event.source, event.delivery, event.status) == ("journal", "unconfirmed", "failed")
        assert event.output == run.delivered <= event.count_output
        assert event.uncached == event.count_prompt == len(run.generate.tokens)
        await stack.until(lambda: stack.replica.acked)
        # repeated although acknowledged, and after another loss of the connection
        (done,) = stack.replica.done
        stack.replica.journal[done.id] = done
        stack.replica.acked.clear()
        stack.replica.drop()
        await stack.until(lambda: stack.replica.acked)
        await stack.settled(1)


async def test_a_journal_is_adopted_once_the_database_tells_the_price(
    fresh_sqlite_url: str, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether this gateway still remembers the prices that a request was admitted with does not matter."""
    monkeypatch.setattr("gateway.recovery.journal_recovery._PAUSE_S", 0.01)
    identity = await leave_a_hold(fresh_sqlite_url, tmp_path, model_folder, name="gateway-test")
    async with running_stack(fresh_sqlite_url, tmp_path, model_folder, options=SHORT_DRAIN) as stack:
        prices = stack.gateway.services.prices
        version, asked = prices.version, 0

        async def away(number: int) -> PriceVersion:
            nonlocal asked
            asked += 1
            if asked < 3:
                raise DatabaseUnavailable("gone")
            return await version(number)

        monkeypatch.setattr(prices, "version", away)
        late = Done(identity, 1, "crash", Counts(prompt=9, computed=9, output=4), 13, 2)
        stack.gateway.recovery.stray(stack.gateway.services.fleet.links[0], late)
        (event,) = await stack.settled(1)
        assert (event.output, event.source) == (2, "journal")
        assert asked >= 3


async def say_of_epochs(database: Database, state: str, *, but: str = "") -> None:
    """Let all gateway epochs `but` one be in this state."""
    others = gateway_epoch.c.epoch != but
    async with database.transaction() as session:
        await session.execute(update(gateway_epoch).where(others).values(state=state, holds_ended_at=None))


@pytest.mark.slow
@pytest.mark.parametrize("delivered", [0, 3])
async def test_requests_of_other_gateways_are_left_to_them_while_they_live(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, delivered: int
) -> None:
    identity = await leave_a_hold(stocked_sqlite_url, tmp_path, model_folder, name="other")
    database = await Database.open(stocked_sqlite_url)
    await say_of_epochs(database, "live")  # before a gateway looks
    await database.close()
    async with running_stack(
        stocked_sqlite_url, tmp_path, model_folder, options=SHORT_DRAIN, start_replica=False
    ) as stack:
        counts = Counts(prompt=9, computed=9, output=4)
        stack.replica.journal[identity] = Done(identity, 1, "crash", counts, 12, delivered)
        stack.replica.journal["not-an-id"] = Done("not-an-id", 1, "stop", counts, 13)
        unknown = "0193e4a0-0000-7000-8000-000000000000"
        stack.replica.journal[unknown] = Done(unknown, 1, "stop", counts, 14)
        await stack.replica.start()
        await stack.ready()
        await asyncio.sleep(2.5)
        assert (await stack.holds(), stack.replica.fences) == (["open"], [])
        await say_of_epochs(stack.database, "ended", but=stack.spool.owner)
        (event,) = await stack.settled(1)
        assert (event.count_output, event.output, event.source) == (4, delivered, "journal")
        assert event.uncached == (9 if delivered else 0)
        await stack.until(lambda: {ack.id for ack in stack.replica.acked} == {identity, unknown, "not-an-id"})


@pytest.mark.slow
@pytest.mark.parametrize("known", only_fast(False, of=[False, True]))
async def test_a_hold_that_nothing_was_done_for_is_given_back(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, known: bool
) -> None:
    """The gateway died between hold and Generate; or after it, and the replica's journal knows."""
    identity = await leave_a_hold(stocked_sqlite_url, tmp_path, model_folder, name="gateway-test")
    async with running_stack(
        stocked_sqlite_url, tmp_path, model_folder, options=SHORT_DRAIN, name="gateway-test", start_replica=False
    ) as stack:
        await asyncio.sleep(0.5)
        assert await stack.holds() == ["open"], "no replica could say yet what it knows"
        if known:
            stack.replica.journal[identity] = Done(identity, 1, "crash", Counts(prompt=9, computed=9, output=4), 12, 2)
        stack.replica.answering = known  # what it knows may have gone on elsewhere: that is asked first
        await stack.replica.start()
        await stack.ready()
        if known:
            (event,) = await stack.settled(1)
            assert (event.output, event.source) == (2, "journal")
            assert await stack.holds() == ["settled"]
            return
        await stack.until(lambda: len(stack.replica.fences) > 1)
        assert await stack.holds() == ["open"], "the replica has not said yet what it knows"
        stack.replica.answering = True
        async with asyncio.timeout(60):
            while await stack.holds() != ["released"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await stack.events() == []
        late = Done(identity, 1, "crash", Counts(prompt=9, computed=9, output=4), 13, 2)
        stack.gateway.recovery.stray(stack.gateway.services.fleet.links[0], late)
        (event,) = await stack.settled(1)
        assert event.output == 2, "a journal that comes later is still billed"


@pytest.mark.slow
async def test_another_replica_that_may_know_a_hold_keeps_it(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    """It was sent to one of two; one is back and knows nothing. Time passes, a sweep too; then the other is lost."""
    await leave_a_hold(stocked_sqlite_url, tmp_path, model_folder, name="gateway-test")
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=SHORT_DRAIN) as stack:
        stack.replica.identity = "another folder's"
        stack.replica.drop()
        await stack.until(lambda: len(stack.replica.dials) > 1)
        await stack.ready()
        async with stack.database.transaction() as session:
            row = {"epoch": await only_over(stack), "journal": "nobody's"}
            await session.execute(insert(journal_of_epoch).values(row))
        await stack.until(lambda: stack.replica.fences)
        await asyncio.sleep(1.5)
        assert await stack.gateway.services.holds.sweep(2**62) == 0, "time alone gives nothing back"
        assert await stack.holds() == ["open"]


@pytest.mark.slow
async def test_a_replica_of_the_version_before_keeps_what_it_may_know(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    """It has no identity and does not know `Fence`. Its successor under the same name answers for it."""
    async with running_stack(
        stocked_sqlite_url, tmp_path, model_folder, options=SHORT_DRAIN, start_replica=False
    ) as stack:
        stack.replica.version, stack.replica.identity = FENCE_VERSION - 1, ""
        await stack.replica.start()
        await stack.ready()
        stack.say(TEXT)
        assert (await stack.post(WHOLE)).status_code == 200, "it is served all the same"
        await stack.settled(1)
        asked = HoldRequest(
            new_id(), stack.tenant.id, stack.project.id, new_id(), "tiny", "standard", 1, 10**9, 60, "gone-1", b""
        )
        await stack.gateway.services.holds.reserve(asked)
        row = {"epoch": "gone-1", "gateway": "gone", "started_at": 1, "seen_at": 1, "watermark": 1}
        async with stack.database.transaction() as session:
            await session.execute(insert(gateway_epoch).values(row | {"state": "ended", "reason": ""}))
            known = {"epoch": "gone-1", "journal": "replica replica-0"}
            await session.execute(insert(journal_of_epoch).values(known))
        await asyncio.sleep(2.5)
        assert "open" in await stack.holds()
        assert stack.replica.fences == []
        stack.replica.version, stack.replica.identity = FENCE_VERSION, "its own by now"
        stack.replica.drop()
        async with asyncio.timeout(60):
            while "open" in await stack.holds():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert sorted(await stack.holds()) == ["released", "settled"]


@pytest.mark.slow
async def test_what_a_replica_of_the_version_before_knew_is_billed_from_its_successor_s_journal(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    """Nothing reached the client: the journal that has an identity by now is not another one that may know more."""
    identity = await leave_a_hold(stocked_sqlite_url, tmp_path, model_folder, name="gateway-test")
    async with running_stack(
        stocked_sqlite_url, tmp_path, model_folder, options=SHORT_DRAIN, start_replica=False
    ) as stack:
        async with stack.database.transaction() as session:
            await session.execute(update(journal_of_epoch).values(journal="replica replica-0"))
        counts = Counts(prompt=9, computed=9, output=4)
        stack.replica.journal[identity] = Done(identity, 1, "crash", counts, 12, 0)
        stack.replica.identity = "its own by now"
        await stack.replica.start()
        (event,) = await stack.settled(1)
        assert (event.attempt, event.cost_pico) == (1, 0)


@pytest.mark.slow
async def test_a_lost_attempt_that_its_gateway_has_recorded_is_not_waited_for(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    """That gateway lives, and was refused when it tried again: no event of the request itself ever comes."""
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder) as stack:
        asked = HoldRequest(
            new_id(), stack.tenant.id, stack.project.id, new_id(), "tiny", "standard", 1, 10**9, 60, "lives-1", b""
        )
        row = {"epoch": "lives-1", "gateway": "lives", "started_at": 1, "seen_at": 1, "watermark": 1}
        async with stack.database.transaction() as session:
            await session.execute(insert(gateway_epoch).values(row | {"state": "live", "reason": ""}))
        hold = msgspec.structs.replace(Hold.of(asked, await stack.database.now()), allowance=new_id())
        done = Done(str(hold.request_id), 1, "crash", Counts(prompt=9, computed=9), 12, claim=hold.claim)
        stack.gateway.recovery.stray(stack.gateway.services.fleet.links[0], done)
        await asyncio.sleep(1.5)
        assert stack.replica.acked == [], "it may be billed yet"
        of = AttemptedRequest(*(getattr(hold, name) for name in AttemptedRequest.__struct_fields__))
        lost = lost_attempt(
            of, LostAttempt(1, "replica-0", "d", 12, "crash", to_billing_counts(done.counts), "gateway")
        )
        await settle(stack.database, stack.gateway.services.prices, [lost])
        await stack.until(lambda: stack.replica.acked)
        assert len(await stack.events()) == 1


NONSENSE = {
    "counts": Done("", 1, "crash", Counts(prompt=9, computed=8), 12, 2),
    "negative": Done("", 1, "crash", Counts(prompt=-9, computed=-9), 12, 2),
    "too large": Done("", 1, "crash", Counts(prompt=9, computed=9, output=1 << 40), 12, 2),
    "attempt": Done("", 1 << 40, "crash", Counts(prompt=9, computed=9, output=4), 12, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", only_fast("counts", of=list(NONSENSE)))
async def test_a_journal_s_entry_that_makes_no_sense_is_kept_aside_and_ends_its_hold(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, what: str
) -> None:
    """Once it is kept for a person it is acknowledged: nothing else would ever end the hold, nor its gateway's run."""
    identity = await leave_a_hold(stocked_sqlite_url, tmp_path, model_folder, name="gateway-test")
    async with running_stack(
        stocked_sqlite_url, tmp_path, model_folder, options=SHORT_DRAIN, start_replica=False
    ) as stack:
        told = msgspec.structs.replace(NONSENSE[what], id=identity)
        stack.replica.journal[identity] = told
        await stack.replica.start()
        await stack.until(lambda: stack.replica.acked)
        assert [ack.sequence for ack in stack.replica.acked] == [12]
        assert await stack.holds() == ["released"]
        (found,) = await audit_money(stack.database)
        assert found.what == "a record was refused"
        assert "entry 12" in found.detail
        (kept,) = await stack.rows("SELECT body FROM refused_settlement")
        entry = msgspec.msgpack.decode(kept.body, type=JournalEntry)
        assert msgspec.msgpack.decode(entry.said, type=Done) == msgspec.structs.replace(told, replayed=True)
        assert "turnpike_refused_records 1.0" in (await stack.http.get("/metrics")).text
        assert await stack.events() == []
        async with asyncio.timeout(60):
            while await stack.rows("SELECT 1 FROM gateway_epoch WHERE state <> 'live' AND holds_ended_at IS NULL"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        # repeated, to a gateway that does not remember it
        stack.replica.journal[identity] = told
        stack.replica.acked.clear()
        stack.gateway.services.fleet._acknowledged.clear()
        stack.replica.drop()
        await stack.until(lambda: stack.replica.acked)
        assert len(await audit_money(stack.database)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("what", ["price", "terms", "claim", "id"])
async def test_an_entry_without_terms_or_price_is_kept_aside(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, what: str
) -> None:
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, start_replica=False) as stack:
        asked = HoldRequest(
            new_id(),
            stack.tenant.id,
            stack.project.id,
            new_id(),
            "tiny",
            "standard",
            99 if what == "price" else 1,
            10**9,
            60,
            stack.spool.owner,
            b"what is this",
        )
        hold = msgspec.structs.replace(Hold.of(asked, await stack.database.now()), allowance=new_id())
        claim = b"what is this" if what == "claim" else hold.claim
        identity = "not-an-id" if what == "id" else str(hold.request_id)
        counts = Counts(prompt=9, computed=9, output=4)
        stack.replica.journal[identity] = Done(identity, 1, "crash", counts, 12, 2, claim=claim)
        await stack.replica.start()
        await stack.until(lambda: stack.replica.acked)
        (found,) = await audit_money(stack.database)
        assert found.what == "a record was refused"
        assert identity in found.detail
        assert await stack.events() == []


@pytest.mark.slow
async def test_an_entry_that_makes_no_sense_is_acknowledged_when_it_is_kept(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while the database is away: else it would be lost with the journal's word."""
    monkeypatch.setattr("gateway.metering.usage_recorder._REFUSAL_PAUSE_S", 0.01)
    identity = await leave_a_hold(stocked_sqlite_url, tmp_path, model_folder, name="gateway-test")
    async with running_stack(
        stocked_sqlite_url, tmp_path, model_folder, options=SHORT_DRAIN, start_replica=False
    ) as stack:
        asked = 0

        async def away(*_: object) -> None:
            nonlocal asked
            asked += 1
            raise DatabaseUnavailable("gone")

        with monkeypatch.context() as patched:
            patched.setattr("gateway.metering.usage_recorder.refuse_entry", away)
            stack.replica.journal[identity] = msgspec.structs.replace(NONSENSE["counts"], id=identity)
            await stack.replica.start()
            await stack.until(lambda: asked > 3)
            assert stack.replica.acked == []
        await stack.until(lambda: stack.replica.acked)
        assert len(await audit_money(stack.database)) == 1


@pytest.mark.slow
async def test_a_request_whose_replica_counts_nonsense_holds_nothing(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    """Its own gateway is told, and lives."""
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder) as stack:
        stack.say(TEXT)
        say = stack.replica._journal

        def lie(run: Run, *args: Any, **options: Any) -> Done:
            run.counts = msgspec.structs.replace(run.counts, computed=run.counts.computed - 1)
            return say(run, *args, **options)

        stack.replica._journal = lie  # type: ignore[method-assign]
        assert (await stack.post(WHOLE)).status_code == 500
        await stack.until(lambda: stack.replica.acked)
        async with asyncio.timeout(60):
            while await stack.holds() != ["released"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        (found,) = await audit_money(stack.database)
        assert found.what == "a record was refused"


async def only_over(stack: Stack) -> str:
    """The one epoch that is over."""
    (row,) = await stack.rows("SELECT epoch FROM gateway_epoch WHERE state <> 'live'")
    return str(row.epoch)


@pytest.mark.slow
@pytest.mark.parametrize("delivered", [0, 2])
async def test_an_attempt_in_vain_does_not_end_the_hold_of_a_later_one(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, delivered: int
) -> None:
    """A request was tried on two replicas, or went on at the second after some tokens. The first is back before the
    second: were its word taken for the end, what the second delivered would be billed to nobody."""
    identity = await leave_a_hold(stocked_sqlite_url, tmp_path, model_folder, name="gateway-test")
    async with running_stack(
        stocked_sqlite_url, tmp_path, model_folder, options=SHORT_DRAIN, start_replica=False
    ) as stack:
        epoch = await only_over(stack)
        async with stack.database.transaction() as session:
            await session.execute(insert(journal_of_epoch).values(epoch=epoch, journal="the second's"))
        counts = Counts(prompt=9, computed=9, output=4)
        stack.replica.journal[identity] = Done(identity, 1, "crash", counts, 12, delivered)
        await stack.replica.start()
        await stack.ready()
        await asyncio.sleep(2.5)
        assert await stack.holds() == ["open"]
        second = FakeReplica(tmp_path / "second.sock", stack.replica.model.text_digest, name="replica-1")
        second.identity = "the second's"
        second.journal[identity] = Done(identity, 2, "crash", counts, 5, 3)
        link = stack.gateway.services.fleet.links[0]
        await stack.replica.stop()
        await stack.until(lambda: not link.up)
        second.path = stack.replica.path
        await second.start()
        try:
            (event,) = await stack.settled(1)
            assert (event.output, event.replica, event.attempt) == (3, "replica-1", 2)
            await stack.until(lambda: second.acked)
        finally:
            await second.stop()
        await stack.replica.start()
        await stack.until(lambda: stack.replica.acked)
        await stack.settled(1)


@pytest.mark.slow
@pytest.mark.parametrize("delivered", [0, 2])
async def test_of_two_attempts_in_one_journal_the_later_one_is_the_request_s_end(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, delivered: int
) -> None:
    """It was tried again on the same replica, or went on there. Were the first one's word taken for the end, what the
    second delivered would be billed to nobody."""
    identity = await leave_a_hold(stocked_sqlite_url, tmp_path, model_folder, name="gateway-test")
    async with running_stack(
        stocked_sqlite_url, tmp_path, model_folder, options=SHORT_DRAIN, start_replica=False
    ) as stack:
        counts = Counts(prompt=9, computed=9, output=4)
        stack.replica.journal["first"] = Done(identity, 1, "crash", counts, 12, delivered)
        stack.replica.journal["second"] = Done(identity, 2, "crash", counts, 13, 3)
        await stack.replica.start()
        await stack.until(lambda: len(stack.replica.acked) == 2)
        first, second = sorted(await stack.settled(2), key=lambda event: event.attempt)
        assert (second.attempt, second.output, second.corrects) == (2, 3, None)
        assert (first.attempt, first.cost_pico, first.corrects is not None) == (1, 0, True)
        assert second.cost_pico > 0


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True])
async def test_a_request_that_took_from_an_allowance_is_billed_from_what_it_carried(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, known: bool
) -> None:
    """No row says its hold: the journal gives it back. What nobody needs of the allowance is given back after that."""
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    async with running_stack(stocked_sqlite_url, earlier, model_folder, options=ASIDE) as stack:
        now = stack.gateway.allowances._clock()
        stack.gateway.allowances._clock = lambda: now  # an allowance is for two seconds
        stack.say(TEXT)
        while not len(stack.gateway.allowances):
            await stack.post(WHOLE)
        stack.forget()
        stack.say(TEXT, queued=60)
        asking = asyncio.create_task(stack.post(WHOLE))
        await stack.until(lambda: stack.replica.runs)
        ((identity, run),) = stack.replica.runs.items()
        assert Hold.claimed(run.generate.claim).allowance is not None
        for task in list(stack.gateway.requests._running.values()):
            task.cancel()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=ASIDE, start_replica=False) as stack:
        before = len(await stack.events())
        assert "open" in await stack.holds()
        if known:
            counts = Counts(prompt=9, computed=9, output=4)
            stack.replica.journal[identity] = Done(identity, 1, "crash", counts, 12, 2, claim=run.generate.claim)
        await stack.replica.start()
        await stack.ready()
        events = await stack.settled(before + known)
        assert [event.output for event in events if event.source == "journal"] == [2] * known
        assert await audit_money(stack.database) == []


async def test_a_gateway_says_to_which_journals_it_is_connected(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that one that lives cannot be declared lost by somebody who does not reach its replica."""
    monkeypatch.setattr("billing.replica_journals.epoch_journals.SEEN_EVERY_S", 0)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder) as stack:
        await stack.ready()
        async with stack.database.transaction() as session:
            await session.execute(update(replica_journal).values(seen_at=1))
        async with asyncio.timeout(60):
            while await stack.rows("SELECT 1 FROM replica_journal WHERE seen_at = 1"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await stack.rows("SELECT 1 FROM replica_journal WHERE seen_at > 1")
