"""Generating requests with an idempotency key: joined, replayed, refused, and billed once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from gateway.idempotency.recording import MOST_KEPT, Recording, RecordingOver
from response_store.idempotency import IdempotencyClaims, forget_expired_claims
from response_store.policies import ResponsePolicies
from storage.database.database import DatabaseUnavailable
from tenancy.repositories import KeyChange
from tenancy.rights.key_limits import KeyLimits
from tests.gateway.stack import Stack, running_stack

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Say it."}]},
    "/v1/completions": {"prompt": "Say it."},
    "/v1/messages": {"messages": [{"role": "user", "content": "Say it."}], "max_tokens": 50},
    "/v1/responses": {"input": "Say it."},
}
SAID = "The quick brown fox"


async def post(
    stack: Stack, key: str | None, path: str = "/v1/chat/completions", *, api_key: str | None = None, **changes: Any
) -> httpx.Response:
    headers = {"authorization": f"Bearer {api_key or stack.key}", "anthropic-version": "2023-06-01"}
    headers |= changes.pop("headers", {})
    options = {"timeout": changes.pop("timeout")} if "timeout" in changes else {}
    if key is not None:
        headers["idempotency-key"] = key
    body = {"model": "tiny", **BODIES[path], **changes}
    return await stack.http.post(path, headers=headers, json=body, **options)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_request_sent_again_gets_the_same_bytes_and_is_billed_once(
    stack: Stack, path: str, streamed: bool
) -> None:
    stack.say(SAID)
    first = await post(stack, "one", path, stream=streamed)
    again = await post(stack, "one", path, stream=streamed)
    assert (first.status_code, again.status_code) == (200, 200), first.text
    assert again.content == first.content
    assert SAID.split(maxsplit=1)[0] in first.text
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["content-type"] == first.headers["content-type"]
    assert len(stack.replica.runs) == 1
    await stack.settled(1)


@pytest.mark.parametrize("written", [False, True])
async def test_a_key_is_ended_although_the_database_fails_once(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    """Else its claim would be a dead worker's after 10 seconds, and its request would run and be billed again.
    `written`: what the database did not acknowledge is there all the same. Found by simulation."""
    finish, failures = IdempotencyClaims.finish, 0

    async def fail_once(self: IdempotencyClaims, *arguments: Any) -> None:
        nonlocal failures
        failures += 1
        if failures > 1 or written:
            await finish(self, *arguments)
        if failures == 1:
            raise DatabaseUnavailable("the connection was lost")

    monkeypatch.setattr(IdempotencyClaims, "finish", fail_once)
    stack.say(SAID)
    first = await post(stack, "one")
    assert failures == 2
    assert [row.worker for row in await stack.rows("SELECT worker FROM idempotency_claim")] == [None]
    again = await post(stack, "one")
    assert again.content == first.content
    await stack.settled(1)


async def test_requests_without_a_key_and_with_another_key_run(stack: Stack) -> None:
    stack.say(SAID)
    for key in ("one", "two", None):
        assert (await post(stack, key)).status_code == 200
    assert len(stack.replica.runs) == 3
    await stack.settled(3)


async def test_a_running_answer_is_joined_from_its_start(stack: Stack) -> None:
    script = stack.say(SAID, pause=0.02)
    assert script is not None
    answers = await asyncio.gather(*(post(stack, "one", stream=True) for _ in range(5)))
    assert len({answer.content for answer in answers}) == 1
    assert sorted(answer.headers.get("idempotent-replayed", "false") for answer in answers) == ["false", *["true"] * 4]
    assert len(stack.replica.runs) == 1
    await stack.settled(1)


async def test_a_client_that_leaves_finds_its_answer(stack: Stack) -> None:
    stack.say(SAID, pause=0.05)
    with pytest.raises(httpx.ReadTimeout):
        await post(stack, "one", timeout=0.1)
    again = await post(stack, "one")
    assert (again.status_code, again.json()["choices"][0]["message"]["content"]) == (200, SAID)
    assert len(stack.replica.runs) == 1
    (event,) = await stack.settled(1)
    assert event.output == again.json()["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    "changes", [{"seed": 1}, {"stream": True}, {"headers": {"cache-control": "no-cache"}}], ids=str
)
async def test_another_request_under_a_key_is_refused(stack: Stack, changes: dict[str, Any]) -> None:
    stack.say(SAID)
    assert (await post(stack, "one")).status_code == 200
    other = await post(stack, "one", **changes)
    assert (other.status_code, other.headers["x-should-retry"]) == (422, "false")
    assert other.json()["error"]["code"] == "idempotency_key_reused"
    assert other.json()["error"]["param"] == "Idempotency-Key"
    await stack.settled(1)


async def test_another_api_key_starts_a_request_of_its_own(stack: Stack) -> None:
    stack.say(SAID)
    other = (await stack.tenancy.create_key(stack.tenant.id, stack.project.id)).key
    first, second = await post(stack, "one"), await post(stack, "one", api_key=other, seed=2)
    assert (first.status_code, second.status_code) == (200, 200)
    assert "idempotent-replayed" not in second.headers
    await stack.settled(2)


async def test_a_revoked_key_is_given_nothing(stack: Stack) -> None:
    stack.say(SAID)
    issued = await stack.tenancy.create_key(stack.tenant.id, stack.project.id)
    assert (await post(stack, "one", api_key=issued.key)).status_code == 200
    await stack.tenancy.revoke(issued.public_id, stack.tenant.id, "lost")
    assert (await post(stack, "one", api_key=issued.key)).status_code == 401


@pytest.mark.parametrize("value", ["", "a b", "x" * 256, "é".encode().decode("latin-1")])
async def test_a_key_that_is_none_is_refused(stack: Stack, value: str) -> None:
    answer = await stack.http.post(
        "/v1/chat/completions",
        headers=[(b"authorization", f"Bearer {stack.key}".encode()), (b"idempotency-key", value.encode("latin-1"))],
        json={"model": "tiny", **BODIES["/v1/chat/completions"]},
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")


async def test_a_key_sent_twice_is_refused(stack: Stack) -> None:
    answer = await stack.http.post(
        "/v1/chat/completions",
        headers=[("authorization", f"Bearer {stack.key}"), ("idempotency-key", "a"), ("idempotency-key", "a")],
        json={"model": "tiny", **BODIES["/v1/chat/completions"]},
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")


async def test_a_refusal_gives_the_key_back(stack: Stack) -> None:
    stack.say(SAID)
    refused = await post(stack, "one", messages=[])
    assert refused.status_code == 400
    assert (await post(stack, "one")).status_code == 200
    await stack.settled(1)


async def test_a_failure_that_bills_nothing_gives_the_key_back(stack: Stack) -> None:
    stack.say(SAID, reason="error")
    assert (await post(stack, "one")).status_code >= 500
    stack.say(SAID)
    again = await post(stack, "one")
    assert again.status_code == 200
    assert "idempotent-replayed" not in again.headers


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("/v1/chat/completions", {"headers": {"cache-control": "no-store"}}),
        ("/v1/responses", {"store": False}),
    ],
    ids=str,
)
async def test_an_answer_that_is_not_kept_is_not_paid_twice(stack: Stack, path: str, changes: dict[str, Any]) -> None:
    stack.say(SAID)
    assert (await post(stack, "one", path, **changes)).status_code == 200
    again = await post(stack, "one", path, **changes)
    assert (again.status_code, again.headers["x-should-retry"]) == (409, "false")
    assert again.json()["error"]["code"] == "idempotent_answer_not_kept"
    assert await stack.rows("SELECT 1 FROM idempotency_claim WHERE answer IS NOT NULL") == []
    await stack.settled(1)


async def test_a_project_that_keeps_nothing_keeps_no_answer(stack: Stack) -> None:
    stack.say(SAID)
    await ResponsePolicies(stack.database).set(stack.tenant.id, stack.project.id, retention_s=0)
    assert (await post(stack, "one")).status_code == 200
    assert (await post(stack, "one")).status_code == 409


async def test_deleting_a_response_deletes_its_replay(stack: Stack) -> None:
    stack.say(SAID)
    first = await post(stack, "one", "/v1/responses")
    headers = {"authorization": f"Bearer {stack.key}"}
    assert (await stack.http.delete(f"/v1/responses/{first.json()['id']}", headers=headers)).status_code == 200
    assert (await post(stack, "one", "/v1/responses")).status_code == 409


async def test_answers_are_sealed(stack: Stack) -> None:
    stack.say(SAID)
    await post(stack, "one")
    ((answer,),) = await stack.rows("SELECT answer FROM idempotency_claim")
    assert SAID.encode() not in bytes(answer)


async def test_the_claim_of_a_dead_worker_is_taken_over(stack: Stack) -> None:
    stack.say(SAID)
    first = await post(stack, "one")
    async with stack.database.transaction() as session:
        await session.execute(text("UPDATE idempotency_claim SET worker = 'dead', beat_at = 0, answer = NULL"))
    again = await post(stack, "one")
    assert (again.status_code, again.json()["id"] != first.json()["id"]) == (200, True)


@pytest.fixture
async def pair(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> AsyncIterator[tuple[Stack, Stack]]:
    """Two gateways over one database."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    async with (
        running_stack(stocked_sqlite_url, tmp_path / "one", model_folder, name="one") as first,
        running_stack(stocked_sqlite_url, tmp_path / "two", model_folder, name="two") as second,
    ):
        yield first, second


async def test_a_key_runs_once_on_two_gateways(pair: tuple[Stack, Stack]) -> None:
    for stack in pair:
        stack.say(SAID, pause=0.05)
    answers = await asyncio.gather(
        *(post(stack, "one", api_key=pair[0].key, stream=True) for stack in pair for _ in range(2))
    )
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert sum(len(stack.replica.runs) for stack in pair) == 1
    await pair[0].settled(1)


async def test_a_long_answer_streams_on_and_is_not_kept(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack.gateway.keyed_requests, "most_bytes", 0)  # as where many large answers are made at once
    stack.say(SAID)
    first = await post(stack, "one", stream=True)
    assert (first.status_code, "[DONE]" in first.text) == (200, True)
    assert (await post(stack, "one", stream=True)).status_code == 409
    await stack.settled(1)


async def test_an_answer_that_nobody_reads_is_ended(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack.gateway.keyed_requests, "alone_s", 0.1)
    script = stack.say(SAID, pause=0.4)
    with pytest.raises(httpx.ReadTimeout):
        await post(stack, "one", timeout=0.3)
    await stack.until(lambda: stack.replica.aborts)
    assert script is not None


async def test_a_client_that_leaves_at_the_claim_leaves_no_claim_stuck(stack: Stack) -> None:
    stack.say(SAID)
    keyed = stack.gateway.keyed_requests
    assert keyed is not None
    for wait_s in (0.001, 0.002, 0.004, 0.008):
        with contextlib.suppress(httpx.TimeoutException):
            await post(stack, f"key {wait_s}".replace(" ", "-"), timeout=wait_s)
    for wait_s in (0.001, 0.002, 0.004, 0.008):
        answer = await post(stack, f"key {wait_s}".replace(" ", "-"), timeout=5.0)
        assert answer.status_code == 200
    await keyed.close()
    assert await stack.rows("SELECT 1 FROM idempotency_claim WHERE worker IS NOT NULL") == []


async def _message(recording: Recording, body: bytes, *, more: bool = True) -> None:
    await recording.send({"type": "http.response.body", "body": body, "more_body": more})


async def test_a_slow_reader_of_a_long_answer_is_left() -> None:
    counted: list[int] = []
    recording = Recording(counted.append, alone_s=60.0, most=MOST_KEPT)
    await recording.send({"type": "http.response.start", "status": 200, "headers": []})
    with recording.reading() as slow, recording.reading() as fast:
        for _ in range(20):
            await _message(recording, bytes(MOST_KEPT // 4))
            assert await fast.next() is not None
            assert sum(counted) <= MOST_KEPT + MOST_KEPT // 4
        with pytest.raises(RecordingOver):
            await slow.next()
        recording.forget()
        assert sum(counted) > 0, "somebody reads it"
    assert sum(counted) == 0


async def test_an_answer_that_nobody_wants_is_not_held() -> None:
    counted: list[int] = []
    recording = Recording(counted.append, alone_s=0.0, most=MOST_KEPT)
    await recording.send({"type": "http.response.start", "status": 200, "headers": []})
    await recording.gone.wait()
    for _ in range(20):
        await _message(recording, bytes(MOST_KEPT // 4))
    assert sum(counted) <= MOST_KEPT


async def test_a_key_that_was_limited_to_other_lanes_is_given_nothing(stack: Stack) -> None:
    stack.say(SAID)
    assert (await post(stack, "one", service_tier="priority")).status_code == 200
    await stack.tenancy.change_key(stack.public_id, KeyChange(limits=KeyLimits(lanes=("batch",))))
    assert (await post(stack, "one", service_tier="priority")).status_code == 403


async def test_claims_that_expired_are_forgotten_and_free_their_keys(stack: Stack) -> None:
    stack.say(SAID)
    await post(stack, "one")
    async with stack.database.transaction() as session:
        await session.execute(text("UPDATE idempotency_claim SET expires_at = 1"))
    assert "idempotent-replayed" not in (await post(stack, "one")).headers
    async with stack.database.transaction() as session:
        await session.execute(text("UPDATE idempotency_claim SET expires_at = 1"))
    assert (await forget_expired_claims(stack.database), await forget_expired_claims(stack.database)) == (1, 0)


async def test_both_clients_send_a_key_by_one_line(stack: Stack) -> None:
    stack.say(SAID)
    async with stack.openai(max_retries=2) as openai, stack.anthropic() as anthropic:
        openai._idempotency_header = anthropic._idempotency_header = "Idempotency-Key"
        for _ in range(2):
            await openai.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Say it."}])
            await anthropic.messages.create(
                model="tiny", max_tokens=50, messages=[{"role": "user", "content": "Say it."}]
            )
    assert len(await stack.rows("SELECT 1 FROM idempotency_claim")) == 4
