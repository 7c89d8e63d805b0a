"""Holds in slices: an answer goes on as long as there is money for the next slice, and costs what was held at most."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from billing.reservation.hold_service import HoldService
from billing.verification.audit import audit_money
from gateway.services import GatewayOptions
from protocol.requests import Generate
from storage.database.database import DatabaseUnavailable
from tests.fast import only_fast
from tests.gateway.fake_replica import Script
from tests.gateway.stack import PRICES, Stack, quick_timeouts, running_stack

SLICE = 8
OPTIONS = GatewayOptions(timeouts=quick_timeouts(), drain_timeout=2.0, hold_slice=SLICE)
LONG: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 200}
OUTPUT, PROMPT = 1_600_000, 400_000
"""Pico-units for a token, by `PRICES`."""


def _endless(stack: Stack, **script: Any) -> Callable[[Generate], Script]:
    tokens = stack.tokens("so long " * 100, end=False)[:200]
    return lambda generate: Script(tokens=tokens, **script)


async def _leave(stack: Stack, output: int) -> int:
    """Leave the tenant the money for a prompt and so many tokens of output; returns the prompt's tokens."""
    stack.say("x")
    await stack.post({**LONG, "max_tokens": 1})
    (event,) = await stack.settled(1)
    prompt = int(event.uncached)
    balance = await stack.balances.get(stack.tenant.id)
    assert balance is not None
    goal = prompt * PROMPT + output * OUTPUT
    await stack.balances.refund(stack.tenant.id, balance.available - goal, "USD")
    stack.forget()
    return prompt


@pytest.mark.parametrize("slice_", [0, 50], ids=["whole", "sliced"])
async def test_who_asks_one_request_after_the_other_has_all_of_the_money(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, slice_: int
) -> None:
    """What a request held comes back when it is settled, and that waits for others to be settled with."""
    monkeypatch.setattr("billing.settlement.settler._GATHER", timedelta(hours=1))
    monkeypatch.setattr("billing.reservation.allowances._SETTLE_S", 30)
    options = GatewayOptions(timeouts=quick_timeouts(), drain_timeout=2.0, hold_slice=slice_)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack:
        answer = stack.tokens(" yes" * 12)
        stack.replica.script = Script(tokens=answer)
        body = {"model": "tiny", "max_tokens": len(answer) + 60, "messages": [{"role": "user", "content": "hi"}]}
        balance = await stack.balances.get(stack.tenant.id)
        assert balance is not None
        await stack.balances.refund(stack.tenant.id, balance.available - (3 * len(answer) + 70) * OUTPUT, "USD")
        for _ in range(3):
            answered = await stack.post(body)
            assert '"finish_reason":"stop"' in answered.text, answered.text


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("burst", only_fast(1, of=[1, 100]))
async def test_a_tenant_gets_the_slices_that_there_is_money_for(
    database_url: str, tmp_path: Path, model_folder: Path, stream: bool, burst: int
) -> None:
    assert (PRICES["output"], PRICES["uncached"]) == ("1.60", "0.40")
    async with running_stack(database_url, tmp_path, model_folder, options=OPTIONS) as stack:
        await _leave(stack, 3 * SLICE + 5)
        stack.replica.script = _endless(stack, burst=burst)
        answer = await stack.post({**LONG, "stream": stream})
        assert answer.status_code == 200
        assert '"finish_reason":"length"' in answer.text
        assert '"limited_by":"budget"' in answer.text
        event = (await stack.settled(2))[-1]
        assert (event.status, event.reason, event.output) == ("ok", "budget", 3 * SLICE)
        assert {generate.sampling.max_tokens for generate in _generates(stack)} == {200}
        assert await audit_money(stack.database) == []


@pytest.mark.slow
async def test_with_money_the_answer_is_whole(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> None:
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=OPTIONS) as stack:
        stack.replica.script = _endless(stack, burst=3)
        for stream in (False, True):
            answer = await stack.post({**LONG, "stream": stream})
            assert '"finish_reason":"length"' in answer.text
            assert "limited_by" not in answer.text
        stack.say("ok")
        assert (await stack.post(LONG)).json()["choices"][0]["finish_reason"] == "stop"
        events = await stack.settled(3)
        assert [(event.reason, event.output) for event in events[:2]] == [("length", 200)] * 2


async def test_a_first_slice_that_is_not_there_is_refused(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=OPTIONS) as stack:
        await _leave(stack, SLICE - 1)
        refused = await stack.post(LONG)
        assert refused.status_code == 402
        assert refused.json()["error"]["insufficient_funds"]["affordable_max_tokens"] == SLICE - 1
        assert not stack.replica.runs


@pytest.mark.slow
async def test_a_late_slice_is_waited_for(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica pauses at what is held, while the database is away and then slow."""
    real, failures = HoldService.top_up, iter([DatabaseUnavailable("away")])

    async def slow(self: HoldService, hold: Any, amount_pico: int) -> Any:
        for failure in failures:
            raise failure
        await asyncio.sleep(0.05)
        (run,) = stack.replica.runs.values()
        held = (await stack.rows("SELECT amount_pico FROM hold_batch"))[0].amount_pico
        assert run.sent * OUTPUT < held
        return await real(self, hold, amount_pico)

    monkeypatch.setattr(HoldService, "top_up", slow)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=OPTIONS) as stack:
        stack.replica.script = _endless(stack, burst=100)
        answer = await stack.post({**LONG, "max_tokens": 3 * SLICE, "stream": True})
        assert "limited_by" not in answer.text
        (event,) = await stack.settled(1)
        assert (event.reason, event.output) == ("length", 3 * SLICE)


@pytest.mark.slow
async def test_a_gateway_that_dies_between_slices_bills_what_was_held_at_most(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=OPTIONS) as stack:
        prompt = await _leave(stack, 3 * SLICE)
        stack.replica.script = _endless(stack, burst=2, pause=0.01)
        asking = asyncio.create_task(stack.post({**LONG, "stream": True}))
        await stack.until(lambda: any(run.delivered > SLICE for run in stack.replica.runs.values()))
        for task in list(stack.gateway.requests._running.values()):
            task.cancel()
        await stack.until(lambda: not stack.gateway.requests)
        await stack.replica.stop()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        (run,) = stack.replica.runs.values()
        (hold,) = await stack.rows("SELECT amount_pico FROM hold_batch")
        assert prompt * PROMPT + run.limit * OUTPUT <= int(hold.amount_pico)
        await stack.replica.restart()
        event = (await stack.settled(2))[-1]
        assert (event.source, event.output) == ("journal", run.delivered)
        assert event.output > SLICE
        assert event.cost_pico <= int(hold.amount_pico)
        assert await audit_money(stack.database) == []


def _generates(stack: Stack) -> list[Generate]:
    return [run.generate for run in stack.replica.runs.values()]
