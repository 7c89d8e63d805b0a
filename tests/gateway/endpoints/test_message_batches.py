"""Anthropic's message batches, as its own client orders, polls and reads them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from anthropic import AnthropicError, BadRequestError, NotFoundError

from gateway.batches import message_requests
from gateway.services import GatewayOptions
from tests.gateway.endpoints.test_files import foreign_key
from tests.gateway.stack import Stack, quick_timeouts, running_stack

SAID = "The quick brown fox."


def request(custom_id: str, **more: Any) -> Any:
    params = {"model": "tiny", "max_tokens": 30, "messages": [{"role": "user", "content": "Say it."}], **more}
    return {"custom_id": custom_id, "params": params}


async def until_ended(client: Any, name: str) -> Any:
    for _ in range(1200):
        batch = await client.messages.batches.retrieve(name)
        if batch.processing_status == "ended":
            return batch
        assert batch.request_counts.succeeded == 0
        await asyncio.sleep(0.05)
    raise AssertionError(f"it is still {batch.processing_status}")


async def results(client: Any, name: str) -> dict[str, Any]:
    found = [line async for line in await client.messages.batches.results(name)]
    by_id = {line.custom_id: line.result for line in found}
    assert len(by_id) == len(found), "no request is there twice"
    return by_id


async def test_a_batch_is_run_and_read(stack: Stack) -> None:
    stack.say(SAID)
    async with stack.anthropic() as client:
        requests = [*(request(f"r-{n}") for n in range(10)), request("bad", temperature=77)]
        batch = await client.messages.batches.create(requests=requests)
        assert (batch.type, batch.processing_status, batch.results_url) == ("message_batch", "in_progress", None)
        assert batch.request_counts.processing == 11
        ended = await until_ended(client, batch.id)
        counts = ended.request_counts
        assert (counts.processing, counts.succeeded, counts.errored, counts.canceled, counts.expired) == (
            0,
            10,
            1,
            0,
            0,
        )
        found = await results(client, batch.id)
        assert set(found) == {one["custom_id"] for one in requests}
        assert found["bad"].type == "errored"
        assert found["bad"].error.error.type == "invalid_request_error"
        for name in found.keys() - {"bad"}:
            message = found[name].message
            assert (found[name].type, message.content[0].text, message.usage.service_tier) == (
                "succeeded",
                SAID,
                "batch",
            )
        assert [one.id async for one in client.messages.batches.list()] == [batch.id]
        async with stack.openai() as other:
            assert [one async for one in other.files.list()] == []
        deleted = await client.messages.batches.delete(batch.id)
        assert (deleted.id, deleted.type) == (batch.id, "message_batch_deleted")
        with pytest.raises(NotFoundError):
            await client.messages.batches.retrieve(batch.id)
    events = await stack.settled(10)
    assert {event.lane for event in events} == {"batch"}
    for table in ("batch", "batch_line", "batch_part", "stored_file"):
        assert await stack.rows(f"SELECT 1 FROM {table}") == []


async def test_a_canceled_batch_has_a_result_for_each_request(stack: Stack) -> None:
    stack.say(SAID, queued=0.5)
    async with stack.anthropic() as client:
        batch = await client.messages.batches.create(requests=[request(f"{n}") for n in range(150)])
        with pytest.raises(AnthropicError):
            await client.messages.batches.results(batch.id)
        with pytest.raises(BadRequestError):
            await client.messages.batches.delete(batch.id)
        while not await stack.rows("SELECT 1 FROM batch WHERE completed > 0"):  # noqa: ASYNC110  # a row
            await asyncio.sleep(0.05)
        canceling = await client.messages.batches.cancel(batch.id)
        assert canceling.cancel_initiated_at is not None
        ended = await until_ended(client, batch.id)
        found = await results(client, batch.id)
        assert set(found) == {f"{n}" for n in range(150)}
        kinds = [result.type for result in found.values()]
        assert set(kinds) == {"succeeded", "canceled"}
        counts = ended.request_counts
        assert (counts.succeeded, counts.canceled) == (kinds.count("succeeded"), kinds.count("canceled"))
    await stack.settled(counts.succeeded)


async def test_a_foreign_tenant_and_the_other_surface_see_nothing(stack: Stack) -> None:
    stack.say(SAID)
    async with stack.anthropic() as client, stack.anthropic(api_key=await foreign_key(stack)) as foreign:
        batch = await client.messages.batches.create(requests=[request("a")])
        await until_ended(client, batch.id)
        for asked in ("retrieve", "cancel", "delete", "results"):
            with pytest.raises(NotFoundError):
                await getattr(foreign.messages.batches, asked)(batch.id)
        assert [one async for one in foreign.messages.batches.list()] == []
        async with stack.openai() as other:
            assert [one async for one in other.batches.list()] == []
            answer = await stack.http.get(
                f"/v1/batches/batch_{batch.id[-32:]}", headers={"authorization": f"Bearer {stack.key}"}
            )
            assert answer.status_code == 404


@pytest.mark.parametrize(
    ("requests", "field"),
    [
        ([], "requests"),
        ([request("a"), request("a")], "requests[1].custom_id"),
        ([request("")], "requests[0].custom_id"),
        ([request("a b")], "requests[0].custom_id"),
        ([request("x" * 65)], "requests[0].custom_id"),
        ([request("a", stream=True)], "requests[0].params.stream"),
        ([request("a", max_tokens=0)], "requests[0].params.max_tokens"),
        ([{"custom_id": "a"}], "params"),
        ([{"custom_id": "a", "params": {"max_tokens": 3}}], "model"),
    ],
)
async def test_a_wrong_request_is_named(stack: Stack, requests: list[Any], field: str) -> None:
    async with stack.anthropic() as client:
        with pytest.raises(BadRequestError) as refused:
            await client.messages.batches.create(requests=requests)
        assert field in str(refused.value)
    assert await stack.rows("SELECT 1 FROM batch") == []
    assert await stack.rows("SELECT 1 FROM stored_file") == []


async def test_a_body_has_a_bound(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.endpoints.message_batches.MOST_BYTES", 2000)
    assert message_requests.MOST_BYTES == 64 * 1024 * 1024
    async with stack.anthropic() as client:
        with pytest.raises(AnthropicError, match="at most"):
            await client.messages.batches.create(requests=[request("a" * 60) for _ in range(100)])


async def test_batches_are_listed_in_pages(stack: Stack) -> None:
    stack.say(SAID)
    async with stack.anthropic() as client:
        made = [(await client.messages.batches.create(requests=[request("a")])).id for _ in range(5)]
        newest_first = made[::-1]
        assert [one.id async for one in client.messages.batches.list(limit=2)] == newest_first
        page = await client.messages.batches.list(limit=2, before_id=newest_first[3])
        assert ([one.id for one in page.data], page.has_more) == (newest_first[1:3], True)
        for name in made:
            await until_ended(client, name)


async def test_batches_at_once_do_not_pass_the_quota(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    options = GatewayOptions(timeouts=quick_timeouts(), file_quota=25_000)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack:
        stack.say(SAID)
        async with stack.anthropic() as client:
            order = [request("a", messages=[{"role": "user", "content": "x" * 10_000}])]
            made = await asyncio.gather(
                *(client.messages.batches.create(requests=order) for _ in range(8)), return_exceptions=True
            )
            assert sum(not isinstance(one, BaseException) for one in made) == 2
            refused = [one for one in made if isinstance(one, BaseException)]
            assert all(isinstance(one, BadRequestError) and "as many files or bytes" in str(one) for one in refused)
        ((inputs,),) = await stack.rows("SELECT sum(bytes) FROM stored_file WHERE purpose = 'message_batch'")
        assert 20_000 < inputs <= 25_000
        assert await stack.rows("SELECT 1 FROM file_reservation") == []
