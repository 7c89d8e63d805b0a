"""A replica in front of a real llama.cpp server: the protocol's promises hold but for repeatable bits."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.served_models.served_model import load_served_model
from protocol.replicas import ENGINE_DOWN, Scope
from protocol.requests import Abort, Credit, Done, Generate, PromptLogprobs, Sampling, Segment, Tokens
from tests.engine.fake_gateway import Client, ReplicaProcess
from tests.engine.foreign.conftest import DEMO, LlamaServer, start_foreign, start_llama

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("connections")]
END = 4095
SCOPES = tuple(Scope(name, name.encode() * 4, b"d" * 32, retention=60.0) for name in ("one", "two"))
MODEL = load_served_model(DEMO)
PROMPT = [4091, *MODEL.tokenizer.content("def read_all(path):\n    ")]
LONG = [4091, *MODEL.tokenizer.content("import os\n" * 150)]


def request(id: str, tokens: list[int] = PROMPT, most: int = 12, scope: str = "one", **fields: object) -> Generate:
    """A greedy request, if its sampling is not said otherwise."""
    own = {name: fields.pop(name) for name in tuple(fields) if name in Sampling.__struct_fields__}
    sampling = Sampling(most, **{"temperature": 0.0, "stop_tokens": (END,), **own})  # type: ignore[arg-type]
    given = {"credit": 10_000, **fields}
    return Generate(id, 1, (Segment(len(tokens), scope),), tokens, sampling, **given)  # type: ignore[arg-type]


@pytest_asyncio.fixture
async def replica(tmp_path: Path, llama: LlamaServer) -> AsyncIterator[ReplicaProcess]:
    process = await start_foreign(tmp_path, "llamacpp", llama.url)
    yield process
    if process.status is None:
        await process.kill()


async def test_tokens_and_counts_are_those_of_the_engine(replica: ReplicaProcess):
    client = await Client.dial(replica.path)
    assert client.hello.foreign == "llamacpp"
    assert client.hello.numerics.startswith("foreign=llamacpp")
    assert (client.hello.capacity.context_tokens, client.hello.capacity.running) == (8192, 4)
    client.send(*SCOPES)
    for number in range(9):  # more than it has slots
        client.send(request(str(number), PROMPT, 3 + number, scope="one" if number % 2 else "two"))
    await client.finished(*map(str, range(9)))
    for number in range(9):
        done, tokens = client.done[str(number)], client.tokens.get(str(number), [])
        assert (done.reason, len(tokens), done.counts.output) == ("length", 3 + number, 3 + number), done.error
        assert (done.counts.prompt, done.counts.computed, done.counts.read) == (len(PROMPT), len(PROMPT), 0)
        assert tokens == client.tokens["8"][: 3 + number], "greedy"
    assert await replica.stop() == 0


async def test_an_output_ends_with_its_own_end_token_or_ours(replica: ReplicaProcess):
    client = await Client.dial(replica.path)
    client.send(*SCOPES, request("end", most=400, logit_bias={END: 100.0}), request("free", most=8))
    await client.finished("end", "free")
    assert (client.tokens["end"], client.done["end"].reason) == ([END], "stop")
    stop = client.tokens["free"][2]
    client.send(request("ours", most=8, stop_tokens=(stop,)))
    await client.finished("ours")
    first = client.tokens["free"].index(stop)
    assert client.tokens["ours"] == client.tokens["free"][: first + 1]
    assert (client.done["ours"].reason, client.done["ours"].counts.output) == ("stop", first + 1)


async def test_choices_count_the_prompt_once_and_differ_by_seed(replica: ReplicaProcess):
    client = await Client.dial(replica.path)
    client.send(*SCOPES, request("n", most=10, choices=3, temperature=1.5, seed=5))
    choices: dict[int, list[int]] = {}
    while "n" not in client.done:
        message = await client.hear()
        if isinstance(message, Tokens):
            assert message.start == len(choices.setdefault(message.choice, []))
            choices[message.choice] += message.tokens
    counts = client.done["n"].counts
    assert sorted(choices) == [0, 1, 2]
    assert len({tuple(tokens) for tokens in choices.values()}) > 1
    assert (counts.prompt, counts.output) == (len(PROMPT), sum(map(len, choices.values())))
    assert counts.recomputed == 2 * len(PROMPT)


async def test_log_probabilities_belong_to_their_tokens(replica: ReplicaProcess):
    client = await Client.dial(replica.path)
    client.send(*SCOPES, request("p", most=5, logprobs=3), request("q", most=5, logprobs=0))
    seen: dict[str, list[Tokens]] = {"p": [], "q": []}
    while len(client.done) < 2:
        message = await client.hear()
        assert not isinstance(message, PromptLogprobs)
        if isinstance(message, Tokens):
            seen[message.id].append(message)
    for each in seen["p"]:
        for token, logprob in zip(each.tokens, each.logprobs, strict=True):
            assert logprob.logprob <= 0.0
            assert len(logprob.top) == 3
            assert logprob.top[0] == (token, logprob.logprob), "greedy: the likeliest"
    assert all(not logprob.top for each in seen["q"] for logprob in each.logprobs)


async def test_nothing_is_sent_without_credit_and_nothing_is_lost_by_waiting(replica: ReplicaProcess):
    client = await Client.dial(replica.path)
    client.send(*SCOPES, request("c", most=40, credit=5), request("free", most=40))
    await client.finished("free")
    await asyncio.sleep(0.2)
    assert client.tokens["c"] == client.tokens["free"][:5]
    client.send(Credit("c", 5, 7))
    await client.until(lambda: len(client.tokens["c"]) == 7)
    client.send(Credit("c", 7, 100))
    await client.finished("c")
    assert client.tokens["c"] == client.tokens["free"]
    assert client.done["c"].delivered == 7


async def test_a_client_that_goes_leaves_an_idle_engine(replica: ReplicaProcess, llama: LlamaServer):
    """The bar: < 100 ms. The time of a poll is in it."""
    client = await Client.dial(replica.path)
    client.send(*SCOPES, request("gone", LONG, 4000, logit_bias={END: -100.0}))
    await client.until(lambda: len(client.tokens.get("gone", ())) > 3)
    assert llama.busy()
    began = time.monotonic()
    client.send(Abort("gone"))
    await client.finished("gone")
    while llama.busy():
        assert time.monotonic() - began < 5.0
    assert time.monotonic() - began < 1.0, "a hundred milliseconds on a quiet machine"
    done = client.done["gone"]
    assert (done.reason, done.counts.output) == ("abort", len(client.tokens["gone"]))


async def test_deadlines_end_requests_that_run(replica: ReplicaProcess):
    client = await Client.dial(replica.path)
    now = time.time()
    forever = {END: -100.0}
    client.send(*SCOPES, request("late", most=4000, deadline=now + 0.4, sent_at=now, logit_bias=forever))
    await client.finished("late")
    assert client.done["late"].reason == "deadline"
    assert client.done["late"].counts.output == len(client.tokens["late"]) > 0


async def test_a_request_goes_on_where_an_earlier_attempt_ended(replica: ReplicaProcess):
    client = await Client.dial(replica.path)
    client.send(*SCOPES, request("whole", most=12))
    await client.finished("whole")
    had, counts = client.tokens["whole"][:5], client.done["whole"].counts
    client.send(request("rest", most=12, emitted=(had,), counted=counts, delivered=3))
    await client.finished("rest")
    done = client.done["rest"]
    assert had + client.tokens["rest"] == client.tokens["whole"]
    assert (done.counts.prompt, done.counts.output) == (len(PROMPT), 12)


async def test_schemas_constrain_and_what_it_cannot_do_is_refused_by_name(replica: ReplicaProcess):
    client = await Client.dial(replica.path)
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    client.send(
        *SCOPES,
        request("schema", most=60, grammar=json.dumps({"json_schema": schema})),
        request("choice", most=60, grammar=json.dumps({"choice": ["yes", "no"]})),
        request("regex", most=60, grammar=json.dumps({"regex": "a+"})),
        request("least", most=60, min_tokens=5),
        request("within", most=60, emitted=([90],), grammar=json.dumps({"json_schema": schema})),
        request("scores", most=60, prompt_logprobs=1),
        request("long", [0] * 9000, 5),
    )
    await client.finished("schema", "choice", "regex", "least", "scores", "long", "within")
    assert json.loads(MODEL.tokenizer.decode([t for t in client.tokens["schema"] if t != END])) in ({"a": 1}, {"a": 2})
    assert MODEL.tokenizer.decode([t for t in client.tokens["choice"] if t != END]) in ("yes", "no")
    assert client.done["schema"].reason == client.done["choice"].reason == "stop"
    for id, field in (
        ("regex", "grammar"),
        ("within", "grammar"),
        ("least", "min_tokens"),
        ("scores", "prompt_logprobs"),
        ("long", "tokens"),
    ):
        done = client.done[id]
        assert done.reason == "rejected"
        assert field in (done.error or "")
        assert done.counts.prompt == 0


async def test_no_token_of_a_character_of_several_is_lost(replica: ReplicaProcess):
    """The server says nothing until such a character is whole, and then its last id alone."""
    client = await Client.dial(replica.path)
    text = "a😂é東b"
    client.send(*SCOPES, request("wide", most=60, grammar=json.dumps({"choice": [text]})))
    await client.finished("wide")
    done, tokens = client.done["wide"], [token for token in client.tokens["wide"] if token != END]
    assert MODEL.tokenizer.decode(tokens) == text
    assert len(tokens) > len(text)
    assert done.counts.output == len(client.tokens["wide"])


async def test_a_long_prefill_is_no_standstill(replica: ReplicaProcess):
    """Steps tell that it is alive, whatever the engine is at."""
    client = await Client.dial(replica.path)
    client.send(*SCOPES, request("waits", most=40, credit=1))
    await client.until(lambda: len(client.beats) > 3)
    steps = [beat.steps for beat in client.beats]
    assert steps == sorted(set(steps))


async def test_projects_share_no_cache_unless_one_has_the_server(tmp_path: Path, demo_gguf: Path):
    """llama.cpp compares prompts with what a slot had, whoever sent it: a hit would tell one project of another."""
    server = start_llama(demo_gguf)
    for folder, caches in (("apart", False), ("alone", True), ("alone", True)):
        (tmp_path / folder).mkdir(exist_ok=True)
        process = await start_foreign(tmp_path / folder, "llamacpp", server.url, caches=caches)
        client = await Client.dial(process.path)
        client.send(*SCOPES)
        done: dict[str, Done] = {}
        for id, scope in (("other", "two"), ("first", "one"), ("again", "one")):
            if caches and id == "other":  # comes too late
                continue
            client.send(request(id, LONG, 2, scope))
            await client.finished(id)
            done[id] = client.done[id]
        client.send(request("late", LONG, 2, "two"))
        await client.finished("late")
        if not caches:
            assert all(one.counts.read == 0 and one.counts.prompt == len(LONG) for one in done.values())
        else:
            assert done["again"].counts.read > len(LONG) // 2
            assert done["again"].counts.prompt == len(LONG)
            assert client.done["late"].reason == "rejected"
            assert "one project" in (client.done["late"].error or "")
        await process.kill()
    server.process.kill()
    server.process.wait()


async def test_an_engine_that_dies_fails_its_requests_and_says_so(tmp_path: Path, demo_gguf: Path):
    server = start_llama(demo_gguf)
    process = await start_foreign(tmp_path, "llamacpp", server.url)
    client = await Client.dial(process.path)
    client.send(*SCOPES, request("cut", LONG, 4000, logit_bias={END: -100.0}))
    await client.until(lambda: len(client.tokens.get("cut", ())) > 3)
    server.process.kill()
    server.process.wait()
    await client.finished("cut")
    done = client.done["cut"]
    assert done.reason == "abort", "nobody asked for it: it goes on at another replica"
    assert "engine behind this replica" in (done.error or "")
    assert done.counts.output == len(client.tokens["cut"])
    await client.until(lambda: client.beats[-1].metrics[ENGINE_DOWN] == 1.0)
    client.send(request("refused"))
    await client.finished("refused")
    assert client.done["refused"].reason == "rejected"
    assert client.done["refused"].refusal is None, "another replica is asked"
    assert await process.stop() == 0


async def test_usage_outlives_a_killed_replica(tmp_path: Path, llama: LlamaServer):
    process = await start_foreign(tmp_path, "llamacpp", llama.url)
    client = await Client.dial(process.path, epoch="one")
    client.send(*SCOPES, request("killed", LONG, 4000, logit_bias={END: -100.0}, claim=b"whose"))
    await client.until(lambda: len(client.tokens.get("killed", ())) > 20)
    await process.kill()
    again = await start_foreign(tmp_path, "llamacpp", llama.url)
    back = await Client.dial(again.path, epoch="two")
    await back.finished("killed")
    done: Done = back.done["killed"]
    assert (done.reason, done.claim, done.counts.prompt) == ("crash", b"whose", len(LONG))
    assert 0 < done.counts.output <= len(client.tokens["killed"]) + 100
    await again.kill()


async def test_another_tokenizer_is_refused_at_the_start(tmp_path: Path, llama: LlamaServer):
    other = tmp_path / "other"
    other.mkdir()
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:1000]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    from engine.startup.options import ForeignOptions

    process = await ReplicaProcess.start(tmp_path, other, foreign=ForeignOptions("llamacpp", llama.url, wait_s=5.0))
    assert await process.ended() == 2
    assert "has another tokenizer" in await process.output()
