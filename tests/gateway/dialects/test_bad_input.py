"""Invalid requests: status, envelope, the field's JSON path, and the official client's exception class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from gateway.admission.sampling_params import max_output_tokens
from gateway.dialects.openai import chat_request
from gateway.served_models.registry import ModelRegistry, ModelWithoutPrice
from gateway.services import GatewayOptions
from storage.database.database import Database, DatabaseUnavailable
from tests.gateway.stack import Stack, quick_timeouts, running_stack
from tests.gateway.tiny_model import make_model_folder

USER = {"role": "user", "content": "hi"}
OK: dict[str, Any] = {"model": "tiny", "messages": [USER]}
TOOL = {"type": "function", "function": {"name": "f"}}


def user(content: Any) -> dict[str, Any]:
    return {**OK, "messages": [{"role": "user", "content": content}]}


def schema(name: str, schema: Any) -> dict[str, Any]:
    return {**OK, "response_format": {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}}


BAD: list[tuple[Any, str | None]] = [
    (b"{", None),
    (b"", None),
    (b"\xff\xfe", None),
    (b'{"model":"tiny","messages":[{"role":"user","content":"\\ud800"}]}', None),
    (b"[" * 100_000, "$"),
    (b'{"x":' + b"[" * 100_000, None),
    ([], "$"),
    ({"messages": [USER]}, "$.model"),
    ({"model": "tiny"}, "$.messages"),
    ({**OK, "model": 3}, "$.model"),
    ({**OK, "messages": []}, "$.messages"),
    ({**OK, "messages": "hi"}, "$.messages"),
    ({**OK, "messages": [USER, 3]}, "$.messages[1]"),
    ({**OK, "messages": [USER, {"content": "hi"}]}, "$.messages[1].role"),
    ({**OK, "messages": [{"role": "wizard", "content": "hi"}]}, "$.messages[0].role"),
    ({**OK, "messages": [{"role": "user"}]}, "$.messages[0].content"),
    ({**OK, "messages": [{"role": "tool", "content": "x", "tool_call_id": "y"}]}, "$.messages[0].tool_call_id"),
    ({**OK, "messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "$.messages[0].tool_calls[0].function"),
    (user(None), "$.messages[0].content"),
    (user(7), "$.messages[0].content"),
    (user([]), "$.messages[0].content"),
    (user([{"type": "text"}]), "$.messages[0].content[0].text"),
    (user([{"type": "text", "text": 1}]), "$.messages[0].content[0].text"),
    (user([{"type": "hologram"}]), "$.messages[0].content[0].type"),
    (
        user([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]),
        "$.messages[0].content[1]",
    ),
    (user([{"type": "input_audio", "input_audio": {}}]), "$.messages[0].content[0]"),
    ({**OK, "temperature": 2.1}, "$.temperature"),
    ({**OK, "temperature": -1}, "$.temperature"),
    ({**OK, "temperature": "hot"}, "$.temperature"),
    ({**OK, "top_p": 1.5}, "$.top_p"),
    ({**OK, "seed": 1.5}, "$.seed"),
    ({**OK, "seed": 2**63}, "$.seed"),
    ({**OK, "stop": ["a", "b", "c", "d", "e"]}, "$.stop"),
    ({**OK, "stop": ""}, "$.stop"),
    ({**OK, "stop": ["a", 1]}, "$.stop[1]"),
    ({**OK, "n": 129}, "$.n"),
    ({**OK, "n": 0}, "$.n"),
    ({**OK, "stream": "yes"}, "$.stream"),
    ({**OK, "stream_options": {"include_usage": True}}, "$.stream_options"),
    ({**OK, "tools": [{"type": "function"}]}, "$.tools[0].function"),
    ({**OK, "tools": {}}, "$.tools"),
    ({**OK, "tool_choice": "required"}, "$.tool_choice"),
    ({**OK, "function_call": {"name": "f"}}, "$.function_call"),
    ({**OK, "modalities": ["text", "audio"]}, "$.modalities"),
    ({**OK, "web_search_options": {}}, "$.web_search_options"),
    ({**OK, "add_generation_prompt": False}, "$.add_generation_prompt"),
    ({**OK, "chat_template_kwargs": {"enable_thinking": False}}, "$.chat_template_kwargs"),
    ({**OK, "prompt_logprobs": 0}, "$.prompt_logprobs"),
    ({**OK, "response_format": {"type": "yaml"}}, "$.response_format.type"),
    ({**OK, "response_format": {"type": "json_schema"}}, "$.response_format.json_schema"),
    (schema("x", 3), "$.response_format.json_schema.schema"),
    (schema("", {}), "$.response_format.json_schema.name"),
    ({**OK, "guided_regex": ""}, "$.guided_regex"),
    ({**OK, "guided_choice": []}, "$.guided_choice"),
    ({**OK, "guided_json": "{"}, "$.guided_json"),
    ({**OK, "guided_json": '{"enum": ["\\ud800"]}'}, "$.guided_json"),
    (schema("x", {"a": json.loads("[" * 97 + "]" * 97)}), "$.response_format.json_schema.schema"),
    (schema("x", {"a": "x" * 270_000}), "$.response_format.json_schema.schema"),
    ({**OK, "guided_json": '{"a":' * 900 + "0" + "}" * 900}, "$.guided_json"),
    ({**OK, "guided_regex": "(" * 201 + "a" + ")" * 201}, "$.guided_regex"),
    ({**OK, "guided_grammar": "a" * 65_537}, "$.guided_grammar"),
    ({**OK, "guided_choice": ["a"] * 10_001}, "$.guided_choice"),
    ({**OK, "structured_outputs": {"choice": ["a" * 4096] * 70}}, "$.structured_outputs.choice"),
    ({**OK, "guided_json": {}, "guided_regex": "a"}, "$.guided_regex"),
    ({**OK, "structured_outputs": {"regex": 3}}, "$.structured_outputs.regex"),
    ({**OK, "guided_regex": "a", "stop_token_ids": [3]}, "$.stop_token_ids"),
    ({**OK, "guided_regex": "a", "stop": "x"}, "$.stop"),
    ({**OK, "logprobs": 3}, "$.logprobs"),
    ({**OK, "top_logprobs": 3}, "$.top_logprobs"),
    ({**OK, "logprobs": True, "top_logprobs": 21}, "$.top_logprobs"),
    ({**OK, "presence_penalty": 2.1}, "$.presence_penalty"),
    ({**OK, "frequency_penalty": -2.1}, "$.frequency_penalty"),
    ({**OK, "repetition_penalty": 0}, "$.repetition_penalty"),
    ({**OK, "logit_bias": {"1": 101}}, "$.logit_bias[...]"),
    ({**OK, "logit_bias": {"x": 1}}, "$.logit_bias"),
    ({**OK, "logit_bias": {"-1": 1}}, "$.logit_bias"),
    ({**OK, "logit_bias": {"9999": 1}}, "$.logit_bias"),
    ({**OK, "top_k": -2}, "$.top_k"),
    ({**OK, "top_k": 1.5}, "$.top_k"),
    ({**OK, "min_p": 1.1}, "$.min_p"),
    ({**OK, "min_tokens": -1}, "$.min_tokens"),
    ({**OK, "min_tokens": 6, "max_tokens": 5}, "$.min_tokens"),
    ({**OK, "stop_token_ids": [-1]}, "$.stop_token_ids[0]"),
    ({**OK, "stop_token_ids": [9999]}, "$.stop_token_ids"),
    ({**OK, "stop_token_ids": [1] * 65}, "$.stop_token_ids"),
    ({**OK, "ignore_eos": 1}, "$.ignore_eos"),
    ({**OK, "max_tokens": 0}, "$.max_tokens"),
    ({**OK, "max_tokens": -1}, "$.max_tokens"),
    ({**OK, "max_tokens": True}, "$.max_tokens"),
    ({**OK, "max_completion_tokens": 0, "max_tokens": 5}, "$.max_completion_tokens"),
    ({**OK, "max_tokens": 513}, "$.max_tokens"),
    (user("word " * 2000), "$.messages"),
    (user("word " * 20_000), "$.messages"),
    ({**OK, "messages": [USER] * 20_000}, "$.messages"),
    ({**OK, "stop": "x" * 257}, "$.stop"),
]


def param_of(path: str | None) -> str | None:
    return None if path == "$" or path is None else path.removeprefix("$.")


@pytest.mark.slow
async def test_every_bad_request_names_its_field(stack: Stack) -> None:
    stack.say("never")
    for body, path in BAD:
        answer = await stack.post(body)
        assert answer.status_code == 400, (body, answer.text)
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param_of(path), (body, error)
        assert answer.headers["x-request-id"].startswith("req_")
    assert not stack.replica.runs
    assert await stack.holds() == []


TEXT: dict[str, Any] = {"model": "tiny", "prompt": "hi"}
BAD_COMPLETIONS: list[tuple[Any, str | None]] = [
    ({"model": "tiny"}, "$.prompt"),
    ({**TEXT, "prompt": None}, "$.prompt"),
    ({**TEXT, "prompt": 7}, "$.prompt"),
    ({**TEXT, "prompt": {}}, "$.prompt"),
    ({**TEXT, "prompt": ""}, "$.prompt"),
    ({**TEXT, "prompt": []}, "$.prompt"),
    ({**TEXT, "prompt": [[]]}, "$.prompt[0]"),
    ({**TEXT, "prompt": ["a", ""]}, "$.prompt[1]"),
    ({**TEXT, "prompt": ["a", 3]}, "$.prompt[1]"),
    ({**TEXT, "prompt": [1, "a"]}, "$.prompt[1]"),
    ({**TEXT, "prompt": [1, -1]}, "$.prompt[1]"),
    ({**TEXT, "prompt": [1, 9999]}, "$.prompt[1]"),
    ({**TEXT, "prompt": [[1], [9999]]}, "$.prompt[1][0]"),
    ({**TEXT, "prompt": "word " * 2000}, "$.prompt"),
    ({**TEXT, "prompt": ["a"] * 65, "n": 2}, "$.prompt"),
    ({**TEXT, "suffix": "x"}, "$.suffix"),
    ({**TEXT, "use_beam_search": True}, "$.use_beam_search"),
    ({**TEXT, "allowed_token_ids": [3]}, "$.allowed_token_ids"),
    ({**TEXT, "best_of": 2}, "$.best_of"),
    ({**TEXT, "best_of": 2, "n": 3}, "$.best_of"),
    ({**TEXT, "logprobs": 21}, "$.logprobs"),
    ({**TEXT, "logprobs": True}, "$.logprobs"),
    ({**TEXT, "max_tokens": 0}, "$.max_tokens"),
    ({**TEXT, "max_tokens": -1, "echo": True}, "$.max_tokens"),
    ({**TEXT, "n": 0}, "$.n"),
    ({**TEXT, "echo": "yes"}, "$.echo"),
    ({**TEXT, "stream_options": {}}, "$.stream_options"),
    ({**TEXT, "temperature": 3}, "$.temperature"),
]


@pytest.mark.slow
async def test_every_bad_completion_names_its_field(stack: Stack) -> None:
    headers = {"authorization": f"Bearer {stack.key}"}
    for body, path in BAD_COMPLETIONS:
        answer = await stack.http.post("/v1/completions", json=body, headers=headers)
        assert answer.status_code == 400, (body, answer.text)
        assert answer.json()["error"]["param"] == param_of(path), (body, answer.text)
    assert not stack.replica.runs
    assert await stack.holds() == []


GOOD: list[dict[str, Any]] = [
    {"temperature": None, "top_p": None, "stop": None, "max_tokens": None, "seed": -1, "n": 1},
    {"tools": [], "tool_choice": "auto", "functions": None, "response_format": {"type": "text"}, "logprobs": False},
    {"logprobs": False, "top_logprobs": 0, "repetition_penalty": 1, "top_k": 0, "min_p": 0, "structured_outputs": {}},
    {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "future_field": {"x": [1]}},
    {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "modalities": ["text"]},
    {"function_call": "none", "add_generation_prompt": True, "skip_special_tokens": True, "use_beam_search": False},
    {
        "reasoning_effort": "low",
        "prediction": None,
        "chat_template_kwargs": {},
        "documents": [],
        "web_search_options": None,
    },
    {
        "messages": [
            {"role": "developer", "content": "d"},
            {"role": "assistant", "content": None, "refusal": "no"},
            USER,
        ]
    },
    {"messages": [{"role": "user", "name": "bob", "content": [{"type": "text", "text": "a", "annotation": {}}]}]},
]


@pytest.mark.parametrize("extra", GOOD)
def test_what_changes_nothing_is_accepted(extra: dict[str, Any]) -> None:
    generation = chat_request.parse(json.dumps({**OK, **extra}).encode()).generation
    plain = chat_request.parse(json.dumps(OK).encode()).generation
    shaping = ("model", "temperature", "top_p", "stop", "max_tokens", "lane")
    assert [getattr(generation, name) for name in shaping] == [getattr(plain, name) for name in shaping]


def test_fields_find_their_place() -> None:
    call = chat_request.parse(
        json.dumps(
            {**OK, "temperature": 1, "top_p": 0.5, "seed": 7, "stop": "x", "max_completion_tokens": 3, "stream": True,
             "stream_options": {"include_usage": True}}
        ).encode()
    )  # fmt: skip
    generation = call.generation
    assert (generation.temperature, generation.top_p, generation.seed, generation.stop) == (1.0, 0.5, 7, ("x",))
    assert (generation.max_tokens, generation.max_tokens_path) == (3, "$.max_completion_tokens")
    assert call.stream
    assert call.include_usage


SHAPING: dict[str, Any] = {
    "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 3, "presence_penalty": 0.5,
    "frequency_penalty": -0.5, "repetition_penalty": 1.1, "logit_bias": {"7": 1.5}, "min_tokens": 2, "max_tokens": 9,
}  # fmt: skip


async def test_every_parameter_reaches_the_replica(stack: Stack) -> None:
    stack.say("ok")
    extra = {"stop_token_ids": [5], "ignore_eos": True}
    assert (await stack.post({**OK, **SHAPING, **extra})).status_code == 200
    assert (await stack.post({**OK, "stop_token_ids": [5], "top_k": -1})).status_code == 200
    first, second = (run.generate.sampling for run in stack.replica.runs.values())
    assert {name: getattr(first, name) for name in SHAPING} == {**SHAPING, "logit_bias": {7: 1.5}}
    assert first.stop_tokens == (5,)
    assert set(second.stop_tokens) == {*next(iter(stack.models)).stop_tokens, 5}
    assert second.top_k == 0


@pytest.mark.slow
async def test_a_grammar_that_the_replica_refuses_is_the_clients_fault(stack: Stack) -> None:
    """Whole or streamed: 400 naming the field, nothing billed, the hold given back."""
    stack.say("x", reason="rejected", error="grammar: Invalid type: wizard", invalid="grammar")
    for stream in (False, True):
        answer = await stack.post({**schema("x", {"type": "wizard"}), "stream": stream})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == "response_format.json_schema.schema"
        assert "Invalid type: wizard" in error["message"]
    await stack.settled(0)
    run = next(iter(stack.replica.runs.values()))
    assert json.loads(run.generate.grammar or "") == {"json_schema": {"type": "wizard"}}


@pytest.mark.slow
async def test_a_grammar_that_fails_on_its_way_is_the_clients_fault_too(stack: Stack) -> None:
    stack.say("x", reason="error", error="grammar: too many items", invalid="grammar")
    answer = await stack.post({**OK, "guided_grammar": 'root ::= "a"'})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "guided_grammar"
    assert answer.json()["error"]["message"] == "$.guided_grammar: too many items."


@pytest.mark.slow
async def test_an_old_replica_is_not_asked_what_it_would_ignore(stack: Stack) -> None:
    """The fake replica speaks version 1 when told to: what only version 2 knows is refused, the rest runs."""
    stack.say("ok")
    link = stack.gateway.services.fleet.links[0]
    assert link.hello is not None
    link.hello = msgspec.structs.replace(link.hello, version=1)
    assert (await stack.post({**OK, "top_k": 5})).status_code == 503
    assert (await stack.post({**OK, "temperature": 0.5, "seed": 1})).status_code == 200


@pytest.mark.parametrize(
    ("said", "most"),
    [({}, 8000), ({"guided_regex": "a+"}, 2048), ({"guided_regex": "a+", "max_tokens": 5000}, 5000),
     ({"guided_regex": "a+", "min_tokens": 3000}, 3000)],
)  # fmt: skip
def test_an_answer_under_a_grammar_ends_when_nobody_says_where(said: dict[str, Any], most: int) -> None:
    """A model that may not end its answer as it likes goes on to the limit."""
    generation = chat_request.parse(json.dumps({**OK, **said}).encode()).generation
    assert max_output_tokens(generation, 192, 8192) == most


@pytest.mark.slow
async def test_numbers_are_said(stack: Stack) -> None:
    prompt = len(next(iter(stack.models)).prompt(chat_request.parse(json.dumps(OK).encode()).generation.turns).tokens)
    too_much = (await stack.post({**OK, "max_tokens": 512})).json()["error"]
    assert too_much["code"] == "context_length_exceeded"
    assert all(str(number) in too_much["message"] for number in (512, 512 - prompt, prompt))
    too_long = (await stack.post(user("word " * 2000))).json()["error"]
    assert too_long["code"] == "context_length_exceeded"
    assert "512" in too_long["message"]


async def test_who_is_not_known(stack: Stack) -> None:
    wrong = stack.key[:-8] + ("A" if stack.key[-8] != "A" else "B") + stack.key[-7:]
    missing = await stack.http.post("/v1/chat/completions", json=OK)
    assert (missing.status_code, missing.json()["error"]["code"]) == (401, "invalid_api_key")
    bodies = set()
    for headers in (
        {"authorization": "Bearer"},
        {"authorization": f"Basic {stack.key}"},
        {"authorization": f"Bearer {wrong}"},
        {"authorization": "Bearer sk-nonsense"},
        {"x-api-key": wrong},
        {"authorization": "Bearer ' OR 1=1 --"},
    ):
        answer = await stack.http.post("/v1/chat/completions", json=OK, headers=headers)
        assert answer.status_code == 401
        bodies.add(answer.text)
    assert len(bodies) == 1
    async with stack.openai("tp_live_wrong") as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.models.list()
    assert caught.value.code == "invalid_api_key"
    both = [("authorization", f"Bearer {stack.key}"), ("authorization", "Bearer other")]
    assert (await stack.http.get("/v1/models", headers=both)).status_code == 401
    assert (await stack.http.get("/v1/models", headers={"x-api-key": stack.key})).status_code == 200
    # before the body is read
    assert (await stack.http.post("/v1/chat/completions", content=b"{")).status_code == 401


async def test_a_revoked_key_stops_working(stack: Stack) -> None:
    headers = {"authorization": f"Bearer {stack.key}"}
    assert (await stack.http.get("/v1/models", headers=headers)).status_code == 200
    await stack.tenancy.revoke(stack.public_id)
    assert (await stack.http.get("/v1/models", headers=headers)).status_code == 401


async def test_an_admin_key_does_not_infer(stack: Stack) -> None:
    async with stack.openai(stack.admin_key) as client:
        with pytest.raises(openai.PermissionDeniedError):
            await client.chat.completions.create(**OK)
    assert not stack.replica.runs
    caches = await stack.http.get("/v1/caches", headers={"x-api-key": stack.admin_key})
    assert caches.status_code == 403
    assert "needs the key of a project" in caches.json()["error"]["message"], "what it is not used for is not inference"


async def test_an_unknown_model_and_unknown_routes(stack: Stack) -> None:
    async with stack.openai() as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(**{**OK, "model": "gpt-none"})
        assert caught.value.code == "model_not_found"
        assert caught.value.param == "model"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("a/b")
        assert (await client.models.retrieve("tiny")).id == "tiny"
        assert [model.id async for model in client.models.list()] == ["tiny"]
    nowhere = await stack.http.get("/v1/nowhere")
    assert nowhere.status_code == 404
    assert nowhere.json()["error"]["type"] == "invalid_request_error"
    assert nowhere.headers["x-request-id"]
    wrong = await stack.http.get("/v1/chat/completions", headers={"authorization": f"Bearer {stack.key}"})
    assert wrong.status_code == 405
    assert wrong.json()["error"]["code"] == "method_not_allowed"
    assert "POST" in wrong.headers["allow"]


async def test_a_body_over_the_limit(stocked_sqlite_url: str, tmp_path: Path, model_folder: Path) -> None:
    options = GatewayOptions(body_limit=2000, timeouts=quick_timeouts())
    async with running_stack(stocked_sqlite_url, tmp_path, model_folder, options=options) as stack:
        answer = await stack.post(user("x" * 2000))
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "request_too_large"

        async def chunks() -> Any:
            for _ in range(300):
                yield b"x" * 10

        headers = {"authorization": f"Bearer {stack.key}"}
        answer = await stack.http.post("/v1/chat/completions", content=chunks(), headers=headers)
        assert answer.status_code == 413


async def test_what_cannot_be_paid(fresh_sqlite_url: str, tmp_path: Path, model_folder: Path) -> None:
    async with running_stack(fresh_sqlite_url, tmp_path, model_folder, grant=100_000_000) as stack:
        async with stack.openai(max_retries=2) as client:
            with pytest.raises(openai.APIStatusError) as caught:
                await client.chat.completions.create(**OK, max_tokens=100)
        error = caught.value
        assert error.status_code == 402
        assert error.type == "insufficient_quota"
        assert error.code == "insufficient_quota"
        assert error.response.headers["x-should-retry"] == "false"
        assert " 0.0001 USD can be spent" in error.message
        fits = int(error.message.split("max_tokens of at most ")[1].split()[0])
        assert isinstance(error.body, dict)
        shortage = error.body["insufficient_funds"]
        assert shortage == {
            "scope": "tenant",
            "budget": None,
            "needed": shortage["needed"],
            "affordable": "0.000100000000",
            "currency": "USD",
            "affordable_max_tokens": fits,
            "resets_at": None,
            "elsewhere": "0.000000000000",
        }
        stack.say("ok")
        assert (await stack.post({**OK, "max_tokens": fits + 1})).status_code == 402
        assert (await stack.post({**OK, "max_tokens": fits})).status_code == 200
        await stack.settled(1)
        nothing = (await stack.post(user("word " * 100))).json()["error"]
        assert nothing["type"] == "insufficient_quota"
        assert "does not cover" in nothing["message"]


async def test_without_a_database(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    stack.say("ok")
    assert (await stack.post(OK)).status_code == 200

    async def away(*_: Any) -> None:
        raise DatabaseUnavailable("gone")

    monkeypatch.setattr(stack.gateway.services.holds, "reserve", away)
    monkeypatch.setattr(Database, "ping", away)
    answer = await stack.post(OK)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["x-request-id"] in answer.json()["error"]["message"]
    ready = await stack.http.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["problems"] == ["the database is unavailable"]
    monkeypatch.undo()
    await stack.settled(1)


@pytest.mark.slow
async def test_an_error_of_ours_says_nothing_of_the_inside(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(chat_request, "parse", broken)
    answer = await stack.post(OK)
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.headers["x-request-id"] in answer.json()["error"]["message"]
    async with stack.openai() as client:
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(**OK)


@pytest.mark.slow
async def test_a_model_without_a_price_is_refused_at_start(stack: Stack, tmp_path: Path) -> None:
    models = ModelRegistry.load([make_model_folder(tmp_path / "other", name="dear")])
    with pytest.raises(ModelWithoutPrice, match=r"'dear'.*turnpike prices set dear"):
        await models.check_prices(stack.gateway.services.prices)


async def test_nothing_secret_is_logged(
    stack: Stack, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    stack.say("the answer")
    await stack.post(user("a private question"))
    await stack.post(user("a private question"), key=stack.key[:-1] + ("x" if stack.key[-1] != "x" else "y"))
    await stack.until(lambda: "request ended" in caplog.text)
    said = caplog.text + "".join(capfd.readouterr())
    for secret in ("private question", "the answer", stack.key, stack.key.split("_")[3]):
        assert secret not in said
