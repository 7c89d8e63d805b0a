"""Every request ends well: clients that leave, readers that stall, replicas that die, spools that block, stops."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from billing.holds.records import Hold
from billing.spool.spool import SpoolUnavailable
from gateway.admission.prepared_request import PreparedRequest
from gateway.errors import Unavailable
from gateway.fleet.replica_link import FleetOptions
from gateway.services import GatewayOptions
from tests.fast import only_fast
from tests.gateway.fake_replica import Script
from tests.gateway.stack import Stack, quick_timeouts, running_stack

MESSAGES: Any = [{"role": "user", "content": "hi"}]
STREAM: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "stream": True}
WHOLE: dict[str, Any] = {"model": "tiny", "messages": MESSAGES}
TEXT = "The quick brown fox jumps over the lazy dog. " * 4


def frames(raw: str) -> list[Any]:
    found = [frame.removeprefix("data: ") for frame in raw.split("\n\n") if frame.startswith("data: ")]
    return [frame if frame == "[DONE]" else json.loads(frame) for frame in found]


def content(found: list[Any]) -> str:
    return "".join(
        frame["choices"][0]["delta"].get("content") or ""
        for frame in found
        if isinstance(frame, dict) and frame.get("choices")
    )


# ---------------------------------------------------------------- clients that leave


@pytest.mark.slow
async def test_a_client_that_leaves_a_stream_at_any_chunk(stack: Stack) -> None:
    for number, after in enumerate([0, 1, 2, 3, 4, 5, 8, 13], start=1):
        stack.forget()
        stack.say(TEXT, pause=0.01, prefill=0.05)
        received = 0
        async with stack.http.stream("POST", "/v1/chat/completions", json=STREAM, headers=_auth(stack)) as answer:
            if after:
                async for line in answer.aiter_lines():
                    received += line.startswith("data:")
                    if received >= after:
                        break
        event = (await stack.settled(number))[-1]
        run = next(iter(stack.replica.runs.values()))
        assert [abort.why for abort in stack.replica.aborts] == ["client"]
        assert event.status == "cancelled"
        assert event.count_output == run.counts.output < len(stack.tokens(TEXT))
        assert max(0, received - 1) <= event.output <= event.count_output
        assert event.uncached == len(run.generate.tokens)
        await stack.until(lambda: not stack.replica.journal)


def _auth(stack: Stack) -> dict[str, str]:
    return {"authorization": f"Bearer {stack.key}"}


@pytest.mark.slow
async def test_a_client_that_leaves_before_a_whole_answer(stack: Stack) -> None:
    for number, script in enumerate(({"queued": 60.0}, {"prefill": 60.0}, {"pause": 0.05}), start=1):
        stack.forget()
        stack.say(TEXT, **script)
        leaving = asyncio.create_task(stack.post(WHOLE))
        await stack.until(lambda: stack.replica.runs)
        (run,) = stack.replica.runs.values()
        await stack.until(lambda: "queued" in script or run.counts.prompt)  # noqa: B023  # called here
        leaving.cancel()
        await stack.until(lambda: stack.replica.aborts)
        event = (await stack.settled(number))[-1]
        assert event.status == "cancelled"
        assert event.output == 0
        assert event.uncached == event.count_prompt
        assert (event.count_prompt == 0) == ("queued" in script)
        await stack.until(lambda: not stack.gateway.requests)


@pytest.mark.slow
async def test_a_client_that_leaves_while_queued_in_a_stream(stack: Stack) -> None:
    stack.say(TEXT, queued=60.0)
    leaving = asyncio.create_task(stack.post(STREAM))
    await stack.until(lambda: stack.replica.runs)
    leaving.cancel()
    (event,) = await stack.settled(1)
    assert (event.status, event.cost_pico) == ("cancelled", 0)


@pytest.mark.slow
async def test_a_keep_alive_comment_while_queued(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> None:
    options = GatewayOptions(keep_alive=0.05, timeouts=quick_timeouts())
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack:
        stack.say("ok", queued=0.3)
        answer = await stack.post(STREAM)
        assert answer.text.startswith(": keep-alive\n\n")
        assert content(frames(answer.text)) == "ok"
        await stack.settled(1)


@pytest.mark.slow
async def test_a_reader_that_stalls_stops_its_own_stream(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    options = GatewayOptions(client_timeout=0.5, timeouts=quick_timeouts(), body_limit=100_000)
    fleet = FleetOptions(credit_window=64, credit_step=8)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options, fleet_options=fleet) as stack:
        long_token = max(range(500), key=lambda token: len(next(iter(stack.models)).tokenizer.token_bytes(token)))
        stack.replica.script = Script(tokens=[long_token] * 480, burst=64)
        # a socket with a tiny window that never reads
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        reader.setblocking(False)
        loop = asyncio.get_running_loop()
        host, port = stack.base.removeprefix("http://").split(":")
        await loop.sock_connect(reader, (host, int(port)))
        body = json.dumps(STREAM).encode()
        await loop.sock_sendall(
            reader,
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + stack.key.encode()
            + b"\r\ncontent-length: " + str(len(body)).encode() + b"\r\n\r\n" + body,
        )  # fmt: skip
        await stack.until(lambda: stack.replica.runs)
        run = next(iter(stack.replica.runs.values()))
        events = await stack.settled(1)
        reader.close()
        # the kernel's buffers took some of it; nobody was billed for more than was credited
        assert run.sent <= run.delivered + fleet.credit_window
        assert events[0].output <= run.sent


@pytest.mark.slow
async def test_credit_follows_the_reader(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> None:
    fleet = FleetOptions(credit_window=16, credit_step=4)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, fleet_options=fleet) as stack:
        stack.say(TEXT, burst=16)
        answer = await stack.post(STREAM)
        assert content(frames(answer.text)) == TEXT
        run = next(iter(stack.replica.runs.values()))
        assert run.generate.credit == 16
        assert len(run.credits) >= 3
        delivered = [credit.delivered for credit in run.credits]
        assert delivered == sorted(delivered)
        assert all(credit.limit <= credit.delivered + 16 for credit in run.credits)
        await stack.settled(1)


@pytest.mark.slow
async def test_text_held_back_does_not_use_up_the_credit(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    fleet = FleetOptions(credit_window=8, credit_step=4)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, fleet_options=fleet) as stack:
        stack.say(TEXT, burst=3)
        answer = await stack.post({**STREAM, "stop": [TEXT[:170] + "never"]})
        assert content(frames(answer.text)) == TEXT
        answer = await stack.post({**STREAM, "stop": [TEXT[10:170]]})
        assert content(frames(answer.text)) == TEXT[:10]
        await stack.settled(2)


@pytest.mark.slow
async def test_a_replica_that_ignores_credit_is_cut_off(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path
) -> None:
    fleet = FleetOptions(credit_window=4)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, fleet_options=fleet) as stack:
        stack.say(TEXT, burst=50, ignore_credit=True)
        answer = await stack.post(STREAM)
        assert answer.status_code in (200, 500, 503)
        assert "[DONE]" not in answer.text


# ---------------------------------------------------------------- stop strings and lengths


async def test_a_stop_string_ends_the_answer(stack: Stack) -> None:
    tokenizer = next(iter(stack.models)).tokenizer
    for number, (body, pause) in enumerate(itertools.product((STREAM, WHOLE), (0.0, 0.01)), start=1):
        stack.forget()
        stack.say(TEXT, pause=pause)
        answer = await stack.post({**body, "stop": ["brown", "never"]})
        if body is STREAM:
            found = frames(answer.text)
            assert content(found) == "The quick "
            assert found[-2]["choices"][0]["finish_reason"] == "stop"
        else:
            choice = answer.json()["choices"][0]
            assert (choice["message"]["content"], choice["finish_reason"]) == ("The quick ", "stop")
        event = (await stack.settled(number))[-1]
        billed = stack.tokens(TEXT)[: event.output]
        assert "brown" in tokenizer.decode(billed)
        assert "brown" not in tokenizer.decode(billed[:-1])
        assert (event.status, event.reason) == ("ok", "stop")
        assert event.count_output >= event.output
        assert [abort.why for abort in stack.replica.aborts] in (["stop"], [])


@pytest.mark.slow
async def test_length_and_unfinished_characters(stack: Stack) -> None:
    stack.say("東京", end=False)
    answer = (await stack.post({**WHOLE, "max_tokens": 1})).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["message"]["content"] == "\ufffd"
    stack.say("ab EN", end=False)
    answer = (await stack.post({**WHOLE, "max_tokens": len(stack.tokens("ab EN", end=False)), "stop": "END"})).json()
    assert answer["choices"][0]["message"]["content"] == "ab EN", "what was held back is shown when nothing follows"
    assert (await stack.settled(2))[1].output == len(stack.tokens("ab EN", end=False))


@pytest.mark.slow
async def test_sampling_reaches_the_replica(stack: Stack) -> None:
    stack.say("ok")
    await stack.post({**WHOLE, "temperature": 0.5, "top_p": 0.9, "seed": -1, "max_tokens": 7})
    await stack.post(WHOLE)
    first, second = (run.generate for run in stack.replica.runs.values())
    assert (first.sampling.temperature, first.sampling.top_p, first.sampling.max_tokens) == (0.5, 0.9, 7)
    assert first.sampling.seed == 2**64 - 1
    assert second.sampling.temperature == 0.0, "the model's own default"
    assert second.sampling.max_tokens == 512 - len(second.tokens)
    assert first.segments == second.segments
    assert len(stack.replica.scopes) == 1, "a scope is introduced once per connection"
    assert stack.replica.scopes[0].scope == first.segments[0].scope
    assert str(stack.project.id) not in first.segments[0].scope
    assert first.flow == str(stack.tenant.id)
    await stack.settled(2)


@pytest.mark.parametrize("temperature", only_fast(1, of=[None, 0, 1]))
async def test_a_top_p_of_zero_is_greedy(stack: Stack, temperature: float | None) -> None:
    """The engine refuses a nucleus of nothing, so it must never see one."""
    stack.say("ok")
    assert (await stack.post({**WHOLE, "temperature": temperature, "top_p": 0})).status_code == 200
    (run,) = stack.replica.runs.values()
    assert (run.generate.sampling.temperature, run.generate.sampling.top_p) == (0.0, 1.0)
    await stack.settled(1)


async def test_cached_tokens_are_shown_and_billed(stack: Stack) -> None:
    stack.say("ok", read_hbm=8)
    usage = (await stack.post(WHOLE)).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0, "below the minimum nothing counts as cached"
    long = [{"role": "user", "content": TEXT}]
    stack.say("ok", read_hbm=16)
    usage = (await stack.post({**WHOLE, "messages": long})).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 16
    first, second = await stack.settled(2)
    assert (first.read_automatic, second.read_automatic) == (first.count_read_hbm * (first.count_read_hbm >= 8), 16)


# ---------------------------------------------------------------- text that would like to be more than text


@pytest.mark.slow
async def test_text_cannot_forge_events(stack: Stack) -> None:
    evil = 'x\n\ndata: [DONE]\n\ndata: {"error": 1}\r\n\r\nevent: error\u2028data: a\u2029\x85\x0b\x1c: b"}]}\\'
    stack.say(evil, burst=500)
    answer = await stack.post(STREAM)
    assert content(frames(answer.text)) == evil
    assert answer.text.count("[DONE]") == 2, "one in the text, escaped line ends around it, and the real one"
    assert len(answer.text.splitlines()) == answer.text.count("\n")
    text = ""
    async with stack.openai() as client:
        stream = await client.chat.completions.create(**STREAM)
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
    assert text == evil
    await stack.settled(2)


# ---------------------------------------------------------------- replicas that die


async def test_no_replica_at_all(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> None:
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, start_replica=False) as stack:
        for body in (STREAM, WHOLE):
            answer = await stack.post(body)
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
        assert (await stack.http.get("/readyz")).json()["problems"] == ["no healthy replica of tiny"]
        assert await stack.holds() == []
        stack.say("here I am")
        await stack.replica.start()
        await stack.ready()
        assert (await stack.http.get("/readyz")).status_code == 200
        assert (await stack.post(WHOLE)).status_code == 200
        await stack.settled(1)


@pytest.mark.slow
@pytest.mark.parametrize("body", [STREAM, WHOLE])
@pytest.mark.parametrize("die_after", only_fast(0, of=[-1, 0]))
async def test_a_replica_that_dies_before_the_first_token(stack: Stack, body: dict[str, Any], die_after: int) -> None:
    stack.say(TEXT, die_after=die_after)
    answer = await stack.post(body)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    await stack.replica.stop()
    await stack.replica.restart()
    stack.say("fine")
    await stack.ready()
    assert (await stack.post(body)).status_code == 200
    if die_after == -1:
        while sorted(await stack.holds()) != ["released", "settled"]:  # noqa: ASYNC110  # in two transactions
            await asyncio.sleep(0.02)
        await stack.settled(1)
    else:
        found = await stack.settled(3)
        lost, failed, second = sorted(found, key=lambda event: (event.admitted_at, event.attempt))
        for attempt, first in enumerate((lost, failed), 1):
            assert (first.attempt, first.status, first.reason, first.cost_pico) == (attempt, "failed", "crash", 0)
            assert first.count_prompt > 0
        assert second.status == "ok"


async def test_a_replica_that_dies_after_some_tokens(stack: Stack) -> None:
    """It comes back, and dies again when it goes on: a request ends two replicas at most."""
    stack.say(TEXT, die_after=5, pause=0.01)
    answer = await stack.post(STREAM)
    assert answer.status_code == 200
    *chunks, last = frames(answer.text)
    assert last["error"]["type"] == "server_error"
    assert answer.headers["x-request-id"] in last["error"]["message"]
    tokenizer = next(iter(stack.models)).tokenizer
    assert content(chunks) == tokenizer.decode(stack.tokens(TEXT)[:5])
    await stack.replica.stop()
    await stack.replica.restart()
    lost, event = sorted(await stack.settled(2), key=lambda event: event.attempt)
    assert (event.status, event.reason, event.source) == ("failed", "crash", "gateway")
    assert event.output == event.count_output == 5
    assert (event.sequence, event.uncached) == (2, event.count_prompt)
    assert (lost.sequence, lost.cost_pico) == (1, 0)
    await stack.until(lambda: not stack.replica.journal)


@pytest.mark.slow
async def test_the_official_client_raises_what_a_stream_says(stack: Stack) -> None:
    stack.say(TEXT, die_after=3, pause=0.01)
    async with stack.openai() as client:
        stream = await client.chat.completions.create(**STREAM)
        with pytest.raises(openai.APIError) as caught:
            async for _ in stream:
                pass
    assert "request id: req_" in caught.value.message
    await stack.settled(2)


@pytest.mark.slow
async def test_a_dead_replica_that_never_returns(stack: Stack) -> None:
    stack.say(TEXT, pause=0.02)
    asked = asyncio.create_task(stack.post(STREAM))
    await stack.until(lambda: any(run.sent == 5 for run in stack.replica.runs.values()))
    await stack.replica.stop()
    await asked
    (event,) = await stack.settled(1)
    assert (event.status, event.reason, event.source, event.sequence) == ("failed", "lost", "gateway", 0)
    assert event.output == event.count_output >= 5
    assert event.uncached == event.count_prompt > 0


@pytest.mark.slow
async def test_a_whole_answer_of_a_replica_that_dies_costs_nothing(stack: Stack) -> None:
    stack.say(TEXT, die_after=5)
    answer = await stack.post(WHOLE)
    assert answer.status_code == 503, "nothing was delivered: it is worth trying again"
    assert int(answer.headers["retry-after"]) >= 1
    await stack.replica.stop()
    await stack.replica.restart()
    for event in await stack.settled(2):
        assert (event.status, event.cost_pico, event.count_output) == ("failed", 0, 5)


@pytest.mark.slow
async def test_a_lost_connection_is_not_a_lost_request(stack: Stack) -> None:
    stack.say(TEXT, pause=0.02)
    request = asyncio.create_task(stack.post(STREAM))
    await stack.until(lambda: any(run.sent > 3 for run in stack.replica.runs.values()))
    stack.replica.drop()
    answer = await request
    assert content(frames(answer.text)) == TEXT
    lost, event = sorted(await stack.settled(2), key=lambda event: event.attempt)
    run = next(iter(stack.replica.runs.values()))
    assert event.count_output == run.counts.output == len(stack.tokens(TEXT))
    assert (event.status, lost.status, lost.cost_pico) == ("ok", "failed", 0)


@pytest.mark.slow
@pytest.mark.parametrize("body", [STREAM, WHOLE])
async def test_a_replica_that_never_answers(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, body: dict[str, Any]
) -> None:
    options = GatewayOptions(timeouts=quick_timeouts(request=-1.6, done=0.2), keep_alive=0.2)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack:
        stack.say(TEXT, silent=True)
        answer = await stack.post(body)
        if body is WHOLE:
            assert answer.status_code == 504
            assert answer.json()["error"]["type"] == "timeout_error"
        else:
            assert frames(answer.text)[-1]["error"]["type"] == "timeout_error"
        await stack.until(lambda: not stack.gateway.requests)
        await stack.settled(0)
        assert await stack.holds() == ["released"]


@pytest.mark.slow
async def test_what_a_replica_may_say_instead_of_an_answer(stack: Stack) -> None:
    said = {"rejected": 503, "error": 500, "deadline": 504, "abort": 503}
    for number, (reason, status) in enumerate(said.items()):
        stack.replica.script = Script(tokens=[], reason=reason, error="inside matters")
        answer = await stack.post(WHOLE)
        assert answer.status_code == status
        assert "inside matters" not in answer.text
        await stack.settled(number)
    assert await stack.holds() == ["released", "settled", "settled", "settled"]


# ---------------------------------------------------------------- durable before shown


@pytest.mark.slow
@pytest.mark.parametrize("body", [STREAM, WHOLE])
async def test_nothing_final_is_shown_before_it_is_durable(stack: Stack, body: dict[str, Any]) -> None:
    stack.say("ok")
    stack.spool.gate.clear()
    seen: list[str] = []

    async def read() -> None:
        async with stack.http.stream("POST", "/v1/chat/completions", json=body, headers=_auth(stack)) as answer:
            async for text in answer.aiter_text():
                seen.append(text)  # noqa: PERF401  # looked at while it grows

    reading = asyncio.create_task(read())
    await stack.until(lambda: stack.replica.done)
    if body is STREAM:  # text is not held up, only the end
        await stack.until(lambda: content(frames("".join(seen).rpartition("\n\n")[0])) == "ok")
    await asyncio.sleep(0.1)
    assert 'finish_reason":"' not in "".join(seen)
    assert "[DONE]" not in "".join(seen)
    assert not stack.replica.acked
    stack.spool.gate.set()
    await reading
    assert 'finish_reason":"stop' in "".join(seen)
    await stack.settled(1)
    await stack.until(lambda: stack.replica.acked)


async def test_an_answer_that_is_refused_for_its_record_is_not_billed(stack: Stack) -> None:
    """One that is not streamed is not given out when its usage cannot be recorded at once. Found by simulation."""
    stack.say("The quick brown fox")
    stack.spool.broken = SpoolUnavailable("disk broken")
    assert (await stack.post(WHOLE)).status_code == 500
    stack.spool.broken = None
    (event,) = await stack.settled(1)
    assert (event.status, event.output, event.cost_pico) == ("failed", 0, 0)


@pytest.mark.slow
async def test_a_spool_that_cannot_be_written(stack: Stack) -> None:
    stack.say("ok")
    stack.spool.broken = SpoolUnavailable("disk full")
    answer = await stack.post(STREAM)
    assert "error" in frames(answer.text)[-1]
    refused = await stack.post(WHOLE)
    assert refused.status_code == 503
    assert (await stack.http.get("/readyz")).json()["problems"] == ["usage cannot be recorded"]
    assert not stack.replica.acked
    stack.spool.broken = None
    (event,) = await stack.settled(1)
    assert event.output == event.count_output
    await stack.until(lambda: stack.replica.acked)
    assert (await stack.post(WHOLE)).status_code == 200
    await stack.settled(2)


# ---------------------------------------------------------------- stopping


@pytest.mark.slow
async def test_a_stop_lets_streams_finish(stack: Stack) -> None:
    stack.say(TEXT, pause=0.01)
    request = asyncio.create_task(stack.post(STREAM))
    await stack.until(lambda: any(run.sent > 3 for run in stack.replica.runs.values()))
    stack.server.should_exit = True
    await stack.until(lambda: stack.gateway.requests.draining)
    answer = await request
    assert content(frames(answer.text)) == TEXT
    assert frames(answer.text)[-1] == "[DONE]"
    await stack.serving
    (event,) = await stack.settled(1)
    assert event.status == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("body", [STREAM, WHOLE])
async def test_a_stop_ends_what_takes_too_long(
    stocked_sqlite_url: str, tmp_path: Path, model_folder: Path, body: dict[str, Any]
) -> None:
    options = GatewayOptions(timeouts=quick_timeouts(), drain_timeout=0.2)
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack:
        stack.say(TEXT, pause=0.1)
        request = asyncio.create_task(stack.post(body))
        await stack.until(lambda: any(run.sent > 2 for run in stack.replica.runs.values()))
        stack.server.should_exit = True
        answer = await request
        if body is STREAM:
            assert frames(answer.text)[-1]["error"]["type"] == "service_unavailable_error"
        else:
            assert answer.status_code == 503
            assert answer.headers["retry-after"]
        await stack.serving
        (event,) = await stack.settled(1)
        assert event.status == "failed"
        assert event.output == (event.output if body is STREAM else 0)
        assert (event.cost_pico > 0) == (body is STREAM)
        assert [abort.why for abort in stack.replica.aborts] == ["shutdown"]


@pytest.mark.parametrize("ended_by", only_fast("our stop", of=["the database's silence", "our stop"]))
async def test_a_hold_that_we_were_not_told_of_ends(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, ended_by: str
) -> None:
    """The database makes the hold, and its answer never comes."""
    reserve = stack.gateway.admission.reserve
    made = asyncio.Event()

    async def unanswered(prepared: PreparedRequest, overdue: Callable[[], None]) -> Hold:
        await reserve(prepared, overdue)
        made.set()
        if ended_by == "our stop":
            await asyncio.Event().wait()
        raise Unavailable("The database is away.")

    monkeypatch.setattr(stack.gateway.admission, "reserve", unanswered)
    monkeypatch.setattr("gateway.generation.running_tasks._AFTER_INTERRUPT_S", 0.1)
    request = asyncio.create_task(stack.post(WHOLE))
    await made.wait()
    if ended_by == "our stop":
        await stack.gateway.requests.drain(0.1)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
    else:
        assert (await request).status_code == 503
    assert await stack.settled(0) == []
    assert await stack.holds() == ["released"]
    assert not stack.replica.runs


async def test_nothing_new_is_taken_while_draining(stack: Stack) -> None:
    stack.gateway.requests.begin_drain()
    answer = await stack.post(WHOLE)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert "draining" in (await stack.http.get("/readyz")).json()["problems"]
    assert (await stack.http.get("/healthz")).status_code == 200


@pytest.mark.slow
async def test_many_at_once_are_told_apart(stack: Stack) -> None:
    tokenizer = next(iter(stack.models)).tokenizer

    def echo(generate: Any) -> Script:
        said = tokenizer.decode(generate.tokens)
        return Script(tokens=stack.tokens(f"you said {said}"), burst=2, pause=0.001)

    stack.replica.script = echo

    async def ask(number: int) -> None:
        body = {**(STREAM if number % 2 else WHOLE), "messages": [{"role": "user", "content": f"number {number}"}]}
        answer = await stack.post(body)
        text = content(frames(answer.text)) if number % 2 else answer.json()["choices"][0]["message"]["content"]
        assert text == f"you said number {number}"

    await asyncio.gather(*map(ask, range(24)))
    events = await stack.settled(24)
    assert sum(event.count_output for event in events) == sum(done.counts.output for done in stack.replica.done)


@pytest.mark.slow
async def test_a_request_that_has_ended_is_freed_at_once(stack: Stack) -> None:
    """Not by the collector of garbage: it looks seldom, and a long prompt is much to keep until then."""
    stack.say("ok")
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for body in (WHOLE, {**WHOLE, "stream": True}, {**WHOLE, "n": 2}):
            assert (await stack.post(body)).status_code == 200
        await stack.settled(3)
        await stack.until(lambda: not len(stack.gateway.requests))
        await asyncio.sleep(0.05)
        gc.collect()
        left = {type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith("gateway.")}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert not left
