"""What is written for vLLM and SGLang, what is read of them, and what of it is not believed: by scripted servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engine.core.engine import EngineLimits
from engine.errors import StartError
from engine.foreign.assembly import assemble_foreign
from engine.foreign.engine_client import EngineClient, salt_of
from engine.foreign.foreign_engine import ForeignEngine
from engine.foreign.sglang import SGLang
from engine.foreign.streams import MOST_UNTAKEN, Streams
from engine.foreign.vllm import Vllm
from engine.startup.options import ForeignOptions, ReplicaOptions
from protocol.replicas import Scope
from protocol.requests import Done, Generate, Sampling, Segment, Tokens
from tests.engine.foreign.conftest import DEMO
from tests.engine.foreign.fake_engine import FakeEngine, Script

SCOPE = Scope("one", b"r" * 32, b"d" * 32)
PROMPT = list(range(20))


def request(id: str = "a", most: int = 5, credit: int = 1000, **fields: Any) -> Generate:
    own = {name: fields.pop(name) for name in tuple(fields) if name in Sampling.__struct_fields__}
    return Generate(id, 1, (Segment(20, "one"),), PROMPT, Sampling(most, **own), credit, **fields)


@asynccontextmanager
async def engine_of(client: EngineClient, path: str, script: Script) -> AsyncIterator[tuple[ForeignEngine, FakeEngine]]:
    async with FakeEngine({}, {path: script}) as fake:
        streams = Streams(client, fake.url, 100, stall_s=1.0)
        yield ForeignEngine(streams, 100, EngineLimits(4096, max_running=4), "0" * 64), fake
        await asyncio.to_thread(streams.close, 1.0)


async def run(engine: ForeignEngine, *requests: Generate) -> tuple[Done, list[int]]:
    """The end of the last of these, and its tokens."""
    for one in requests:
        engine.add(one, {"one": SCOPE})
    tokens: list[int] = []
    for _ in range(500):
        for event in engine.step().events:
            if isinstance(event, Tokens) and event.id == requests[-1].id:
                tokens += event.tokens
            if isinstance(event, Done) and event.id == requests[-1].id:
                return event, tokens
        await asyncio.sleep(0.01)
    raise AssertionError("it does not end")


def vllm_event(tokens: list[int], reason: str | None = None, usage: object = None) -> dict[str, Any]:
    event = {"request_id": "x", "choices": [{"index": 0, "token_ids": tokens, "finish_reason": reason}]}
    return event | ({"usage": usage} if usage is not None else {})


def sglang_event(tokens: list[int], count: int, reason: str | None = None, cached: object = 0) -> dict[str, Any]:
    finish = None if reason is None else {"type": reason}
    return {
        "output_ids": tokens,
        "meta_info": {"finish_reason": finish, "completion_tokens": count, "cached_tokens": cached},
    }


@pytest.mark.parametrize(
    "usage",
    [
        [None, None, {"prompt_tokens": 20, "prompt_tokens_details": {"cached_tokens": 16}}],
        [{"prompt_tokens_details": {"cached_tokens": 16}}] * 3,
        [{"prompt_tokens_details": {"cached_tokens": 16}}, {"prompt_tokens_details": None}, None],
    ],
    ids=["behind the end", "each time", "then null"],
)
async def test_vllm_reads_and_counts(usage: list[object]):
    events: list[Any] = [vllm_event([1, 2], None, usage[0]), vllm_event([3], "length", usage[1])]
    if usage[2] is not None:
        events += [0.05, {"choices": [], "usage": usage[2]}]
    async with engine_of(Vllm(), "/inference/v1/generate", lambda _: events) as (engine, fake):
        done, tokens = await run(engine, request(most=3, seed=7, logit_bias={5: 1.5}, stop_tokens=(9,)))
        (body,) = fake.bodies("/inference/v1/generate")
    assert (tokens, done.reason) == ([1, 2, 3], "length")
    assert (done.counts.prompt, done.counts.read_hbm, done.counts.computed, done.counts.output) == (20, 16, 4, 3)
    assert body["token_ids"] == PROMPT
    assert body["cache_salt"] == salt_of(SCOPE.root)
    parameters = body["sampling_params"]
    assert (parameters["seed"], parameters["logit_bias"], parameters["stop_token_ids"]) == (7, {"5": 1.5}, [9])


@pytest.mark.parametrize("incremental", [False, True])
async def test_sglang_streams_all_tokens_or_new_ones(incremental: bool):
    pieces = [([1, 2], 2), ([1, 2, 3], 3), ([1, 2, 3, 4], 4)]
    events = [
        sglang_event(all_[-(count - before) :] if incremental else all_, count, "stop" if count == 4 else None, 8)
        for before, (all_, count) in zip((0, 2, 3), pieces, strict=True)
    ]
    async with engine_of(SGLang(), "/generate", lambda _: events) as (engine, fake):
        done, tokens = await run(engine, request(most=9, grammar=json.dumps({"choice": ["a+b", "c"]})))
        (body,) = fake.bodies("/generate")
    assert (tokens, done.reason, done.counts.read_hbm) == ([1, 2, 3, 4], "stop", 8)
    assert body["sampling_params"]["regex"] == r"(a\+b)|(c)"
    assert body["extra_key"] == salt_of(SCOPE.root)


async def test_what_may_not_be_shared_has_a_salt_of_its_own():
    events = [vllm_event([1], "length")]
    async with engine_of(Vllm(), "/inference/v1/generate", lambda _: events) as (engine, fake):
        for number in range(2):
            await run(engine, request(str(number), 1, store="none"))
        first, second = fake.bodies("/inference/v1/generate")
    assert len({first["cache_salt"], second["cache_salt"], salt_of(SCOPE.root)}) == 3


@pytest.mark.parametrize(
    ("events", "word"),
    [
        ([vllm_event([1, 100])], "vocabulary"),
        ([vllm_event([1, -1])], "vocabulary"),
        ([vllm_event([1, True])], "vocabulary"),
        ([vllm_event([1, 2, 3, 4, 5, 6])], "more than 5"),
        ([vllm_event([1], None, {"prompt_tokens_details": {"cached_tokens": 21}})], "cached"),
        ([vllm_event([1], None, {"prompt_tokens_details": {"cached_tokens": 16.0}})], "cached"),
        ([vllm_event([1], "abort")], "abort"),
        ([vllm_event([1])], "without a reason"),
        ([{"error": {"message": "no memory"}}], "no memory"),
        ([b"data: [1, 2]\n\n"], "no object"),
        ([b"data: {\n\n"], "JSON"),
        ([b"data: " + b"x" * 5_000_000], "longer"),
        ([3.0], "Timeout"),
    ],
)
async def test_what_cannot_be_true_fails_the_request_alone(events: list[Any], word: str):
    async with engine_of(Vllm(), "/inference/v1/generate", lambda _: events) as (engine, _):
        done, tokens = await run(engine, request())
        assert done.reason == "error"
        assert word in (done.error or "")
        assert all(0 <= token < 100 for token in tokens)
        assert done.counts.output == len(tokens)
        assert engine.running == 0


async def test_an_aborted_request_is_closed_and_aborted_by_its_id():
    events = [vllm_event([1]), 20.0, vllm_event([2], "stop")]
    async with engine_of(Vllm(), "/inference/v1/generate", lambda _: events) as (engine, fake):
        engine.add(request("gone"), {"one": SCOPE})
        for _ in range(300):
            if any(isinstance(event, Tokens) for event in engine.step().events):
                break
            await asyncio.sleep(0.01)
        engine.abort("gone")
        (done,) = engine.step().events
        for _ in range(300):
            if fake.closed and fake.bodies("/inference/v1/abort_requests"):
                break
            await asyncio.sleep(0.01)
        (abort,) = fake.bodies("/inference/v1/abort_requests")
        (body,) = fake.bodies("/inference/v1/generate")
    assert isinstance(done, Done)
    assert (done.reason, done.counts.output) == ("abort", 1)
    assert abort == {"request_ids": [f"generate-tokens-{body['request_id']}"]}


async def test_an_engine_quicker_than_its_reader_is_not_read_on():
    events = [vllm_event([1] * 64) for _ in range(200)]
    async with engine_of(Vllm(), "/inference/v1/generate", lambda _: events) as (engine, _):
        engine.add(request(most=4000, credit=10), {"one": SCOPE})
        tokens = 0
        for _ in range(50):
            tokens += sum(len(event.tokens) for event in engine.step().events if isinstance(event, Tokens))
            await asyncio.sleep(0.01)
        (run_,) = engine._running.values()
        assert tokens == 10
        assert run_.stream.had <= MOST_UNTAKEN + 64
        engine.abort("a")


async def test_what_is_left_of_an_earlier_attempt_is_asked_for():
    events = [vllm_event([1, 2], "length")]
    async with engine_of(Vllm(), "/inference/v1/generate", lambda _: events) as (engine, fake):
        done, _ = await run(engine, request(most=5, min_tokens=5, emitted=([7, 8, 9],)))
        (body,) = fake.bodies("/inference/v1/generate")
    assert body["token_ids"] == [*PROMPT, 7, 8, 9]
    assert (body["sampling_params"]["max_tokens"], body["sampling_params"]["min_tokens"]) == (2, 2)
    assert done.counts.output == 5


async def test_another_model_behind_the_address_is_not_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("engine.foreign.streams.CHECK_EVERY_S", 0.02)
    answers: dict[str, Any] = {"/v1/models": {"data": [{"id": "a", "max_model_len": 64}]}, "/version": {"version": "1"}}
    async with FakeEngine(answers, {}) as fake:
        streams = Streams(Vllm(), fake.url, 100, stall_s=1.0)
        streams.facts, _ = await asyncio.to_thread(streams.probe, [])
        for served, reachable in (("b", False), ("a", True)):
            answers["/v1/models"] = {"data": [{"id": served, "max_model_len": 64}]}
            for _ in range(200):
                if streams.reachable == reachable:
                    break
                await asyncio.sleep(0.02)
            assert streams.reachable == reachable
        await asyncio.to_thread(streams.close, 1.0)


async def test_lanes_decide_who_waits():
    """Of requests beyond its places the interactive ones go first, flows in turn."""
    events = [0.05, vllm_event([1], "length")]
    async with engine_of(Vllm(), "/inference/v1/generate", lambda _: events) as (engine, fake):
        for number in range(12):
            engine.add(request(f"batch{number}", 1, lane="batch", flow="crowd"), {"one": SCOPE})
        await run(engine, request("now", 1, lane="interactive", flow="one"))
        order = [body["request_id"].partition("-")[0] for body in fake.bodies("/inference/v1/generate")]
    assert order.index("now") <= 5


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_a_start_compares_tokenizers_and_takes_the_engines_limits(kind: str, tmp_path: Any):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))

    def tokenize(body: dict[str, Any]) -> object:
        return {"tokens": tokenizer.encode(body["prompt"], add_special_tokens=False).ids}

    answers = {
        "/v1/models": {"data": [{"id": "demo", "max_model_len": 2048}]},
        "/version": {"version": "0.33"},
        "/get_server_info": {"context_length": 2048, "max_running_requests": 7, "version": "0.5.23"},
        "/tokenize": tokenize,
    }
    async with FakeEngine(answers, {}) as fake:
        foreign = ForeignOptions(kind, fake.url, wait_s=0.0)  # type: ignore[arg-type]
        options = ReplicaOptions(DEMO, "unix:x", tmp_path, "r", b"", foreign=foreign)
        assembled = await asyncio.to_thread(assemble_foreign, options)
        assert (assembled.capacity.context_tokens, assembled.foreign) == (2048, kind)
        assert assembled.capacity.running == (7 if kind == "sglang" else 256)
        assembled.engine.close(1.0)
        answers["/tokenize"] = {"tokens": [1, 2, 3]}
        with pytest.raises(StartError, match="another tokenizer"):
            await asyncio.to_thread(assemble_foreign, options)
    with pytest.raises(StartError, match="foreign_url"):
        await asyncio.to_thread(assemble_foreign, options)
