"""Rate limits over HTTP: what is refused, what every answer says, what is settled, and who may change them."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from openai import RateLimitError

from audit_log.actors import Actor, acting_as
from tenancy.rate_limits import Limits, LimitSubject
from tests.gateway.stack import Stack

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
ANTHROPIC = {"anthropic-version": "2023-06-01"}
SETTER = Actor("command", "tester", "tester")


async def set_limits(stack: Stack, *, key: bool = False, **limits: int) -> LimitSubject:
    """Set limits of the demo project, or of its key."""
    store = stack.gateway.services.rate_limits
    subject = await store.subject_of_key(stack.public_id) if key else await store.subject_of_project(stack.project.id)
    with acting_as(SETTER):
        await store.set(subject, Limits(**limits))
    await asyncio.sleep(0)  # the bus tells of it in the loop's next turn
    return subject


@pytest.mark.slow
async def test_without_limits_nothing_is_said(stack: Stack) -> None:
    stack.say("Hi")
    answer = await stack.post(BODY)
    assert answer.status_code == 200
    assert not [name for name in answer.headers if "ratelimit" in name]


async def test_requests_are_refused_and_every_answer_says_what_is_left(stack: Stack) -> None:
    stack.say("Hi")
    assert (await stack.post(BODY)).status_code == 200  # the key's limits are cached: the change must be heard
    await set_limits(stack, requests_per_minute=2, input_tokens_per_minute=10_000)
    answers = [await stack.post({**BODY, "stream": stream}) for stream in (False, True, False)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["1", "0", "0"]
    for answer in answers:
        assert answer.headers["x-ratelimit-limit-requests"] == "2"
        assert answer.headers["x-ratelimit-limit-tokens"] == "10000"
        assert re.fullmatch(r"(\d+m)?(\d+(\.\d+)?s|\d+ms)", answer.headers["x-ratelimit-reset-requests"])
    refused = answers[-1]
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert "The project's limit of 2 requests a minute" in refused.json()["error"]["message"]
    assert 29 <= int(refused.headers["retry-after"]) <= 30
    assert 28_000 < int(refused.headers["retry-after-ms"]) <= 30_000
    assert refused.headers["x-should-retry"] == "true"
    await stack.settled(3)


async def test_anthropics_headers(stack: Stack) -> None:
    stack.say("Hi")
    await set_limits(stack, requests_per_minute=1, output_tokens_per_minute=6_000, concurrent_requests=3)
    headers = {"x-api-key": stack.key, **ANTHROPIC}
    answers = [
        await stack.http.post("/v1/messages", headers=headers, json={**BODY, "stream": stream})
        for stream in (True, False)
    ]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert answers[1].json()["error"]["type"] == "rate_limit_error"
    for answer in answers:
        headers = answer.headers
        assert headers["anthropic-ratelimit-requests-limit"] == "1"
        assert headers["anthropic-ratelimit-requests-remaining"] == "0"
        reset = datetime.fromisoformat(headers["anthropic-ratelimit-requests-reset"])
        assert timedelta(seconds=50) < reset - datetime.now(UTC) < timedelta(seconds=62)
        assert headers["anthropic-ratelimit-output-tokens-limit"] == "6000"
        assert headers["anthropic-ratelimit-tokens-limit"] == "6000"
        assert "anthropic-ratelimit-input-tokens-limit" not in headers
        assert headers["x-ratelimit-limit-concurrent"] == "3"


@pytest.mark.slow
async def test_openais_client_understands(stack: Stack) -> None:
    stack.say("Hi")
    await set_limits(stack, key=True, requests_per_minute=1)
    async with stack.openai() as client:
        await client.chat.completions.create(**BODY)  # type: ignore[call-overload]
        with pytest.raises(RateLimitError, match="The key's limit of 1 requests a minute"):
            await client.chat.completions.create(**BODY)  # type: ignore[call-overload]


async def left(stack: Stack, name: str) -> int:
    """What a request's answer says is left, before its own part is settled."""
    return int((await stack.post(BODY)).headers[f"x-ratelimit-remaining-{name}"])


async def test_tokens_are_settled_and_cache_reads_do_not_count(stack: Stack) -> None:
    """What was reserved for input is settled at Began, for output at the end."""
    await set_limits(stack, input_tokens_per_minute=1_000, output_tokens_per_minute=1_000_000)
    stack.say("Hi", read_hbm=0)
    prompt = (await stack.post(BODY)).json()["usage"]["prompt_tokens"]
    before = await left(stack, "input-tokens")
    assert 1_000 - 2 * prompt <= before <= 1_000 - prompt + 20
    stack.say("Hi", read_hbm=10**6)
    answer = await stack.post(BODY)
    read = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 < read < prompt
    spent = before - await left(stack, "input-tokens")
    assert spent <= 2 * prompt  # two requests were reserved, one of them settled with few tokens
    events = await stack.settled(4)
    outputs = sum(event.output for event in events)
    remaining = int((await stack.post(BODY)).headers["x-ratelimit-remaining-output-tokens"])
    assert abs(1_000_000 - outputs - remaining) <= 64 + 8 + 1


@pytest.mark.slow
async def test_places_are_taken_while_a_request_runs_and_are_free_with_its_answer(stack: Stack) -> None:
    await set_limits(stack, concurrent_requests=1)
    stack.say("one two three", pause=0.05)
    first = asyncio.create_task(stack.post(BODY))
    await stack.until(lambda: bool(stack.replica.runs))
    refused = await stack.post(BODY)
    assert refused.status_code == 429
    assert refused.headers["x-ratelimit-remaining-concurrent"] == "0"
    assert (await first).status_code == 200
    stack.say("Hi")
    for _ in range(3):
        assert (await stack.post(BODY)).status_code == 200


@pytest.mark.slow
async def test_a_request_that_fails_gives_back_its_place_and_tokens(stack: Stack) -> None:
    await set_limits(stack, concurrent_requests=1, input_tokens_per_minute=1_000, output_tokens_per_minute=1_000)
    stack.say("Hi", reason="rejected")
    for _ in range(2):
        assert (await stack.post(BODY)).status_code == 503
    stack.say("Hi")
    answer = await stack.post(BODY)
    assert answer.status_code == 200
    assert int(answer.headers["x-ratelimit-remaining-output-tokens"]) >= 1_000 - 8


async def test_several_prompts_are_one_request(stack: Stack) -> None:
    stack.say("Hi")
    await set_limits(stack, requests_per_minute=5, concurrent_requests=1, input_tokens_per_minute=1_000)
    body = {"model": "tiny", "prompt": ["one", "two", "three"], "max_tokens": 4}
    for remaining in ("4", "3"):
        answer = await stack.http.post("/v1/completions", headers={"authorization": f"Bearer {stack.key}"}, json=body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-ratelimit-remaining-requests"] == remaining


async def test_removed_limits_are_gone_at_once(stack: Stack) -> None:
    stack.say("Hi")
    subject = await set_limits(stack, requests_per_minute=1)
    assert [(await stack.post(BODY)).status_code for _ in range(2)] == [200, 429]
    with acting_as(SETTER):
        assert await stack.gateway.services.rate_limits.remove(subject) == Limits(requests_per_minute=1)
    await asyncio.sleep(0)
    assert (await stack.post(BODY)).status_code == 200


async def call(stack: Stack, key: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    answer = await stack.http.request(method, path, headers={"authorization": f"Bearer {key}"}, json=body)
    return answer.status_code, answer.json()


async def test_operators_and_the_tenants_administrators_change_limits(stack: Stack) -> None:
    operator = (await stack.tenancy.create_operator_key("ada")).key
    project, key = (
        f"/admin/v1/limits/projects/project_{stack.project.id.hex}",
        f"/admin/v1/limits/keys/{stack.public_id}",
    )
    assert (await call(stack, operator, "GET", project))[0] == 404
    status, limits = await call(stack, operator, "PUT", project, {"requests_per_minute": 3, "reason": "trial"})
    assert (status, limits["requests_per_minute"], limits["key"]) == (200, 3, None)
    status, limits = await call(stack, stack.admin_key, "PUT", key, {"concurrent_requests": 2})
    assert (status, limits["key"], limits["requests_per_minute"]) == (200, stack.public_id, None)
    for who in (operator, stack.admin_key):
        status, found = await call(stack, who, "GET", "/admin/v1/limits")
        assert status == 200
        assert [one["scope"] for one in found["data"]] == ["project", "key"]
    assert await call(stack, operator, "GET", f"/admin/v1/limits?tenant_id=tenant_{stack.project.id.hex}") == (
        200,
        {"object": "list", "data": []},
    )
    status, removed = await call(stack, operator, "DELETE", key)
    assert (status, removed["deleted"]) == (200, True)
    assert (await call(stack, operator, "DELETE", key))[0] == 404


@pytest.mark.slow
async def test_foreign_limits_are_not_found_and_wrong_ones_refused(stack: Stack) -> None:
    other = await stack.tenancy.create_tenant("other")
    foreign = await stack.tenancy.create_project(other.id, "theirs")
    issued = await stack.tenancy.create_key(other.id, foreign.id)
    theirs = (await stack.tenancy.create_key(other.id, None)).key
    for path in (f"/admin/v1/limits/projects/project_{foreign.id.hex}", f"/admin/v1/limits/keys/{issued.public_id}"):
        assert (await call(stack, theirs, "PUT", path, {"requests_per_minute": 3}))[0] == 200
        for method, body in (("GET", None), ("PUT", {"requests_per_minute": 1}), ("DELETE", None)):
            assert (await call(stack, stack.admin_key, method, path, body))[0] == 404
            assert (await call(stack, stack.key, method, path, body))[0] == 403
    status, found = await call(stack, stack.admin_key, "GET", f"/admin/v1/limits?tenant_id=tenant_{other.id.hex}")
    assert (status, found["data"]) == (200, [])
    assert (await call(stack, stack.admin_key, "GET", "/admin/v1/limits?tenant_id=other"))[0] == 400
    assert (await call(stack, stack.admin_key, "GET", "/admin/v1/limits/projects/nonsense"))[0] == 404
    own = f"/admin/v1/limits/projects/project_{stack.project.id.hex}"
    for body, path in (
        ({}, "$.requests_per_minute"),
        ({"requests_per_minute": 0}, "$.requests_per_minute"),
        ({"concurrent_requests": 10**9 + 1}, "$.concurrent_requests"),
        ({"input_tokens_per_minute": "many"}, "$.input_tokens_per_minute"),
        ({"requests": 1}, None),
        ({"requests_per_minute": 1, "reason": "a\nb"}, "$.reason"),
    ):
        status, error = await call(stack, stack.admin_key, "PUT", own, body)
        assert status == 400, body
        if path is not None:
            assert error["error"]["param"] == path.removeprefix("$.")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "prefix", "wrong"),
    [
        ("/v1/chat/completions", "x-ratelimit-remaining-requests", {**BODY, "messages": []}),
        ("/v1/completions", "x-ratelimit-remaining-requests", {"model": "tiny", "prompt": [1, "a"]}),
        ("/v1/messages", "anthropic-ratelimit-requests-remaining", {**BODY, "model": "nobody's"}),
    ],
)
async def test_a_request_that_is_refused_counts_and_says_what_is_left(
    path: str, prefix: str, wrong: dict[str, Any], stack: Stack
) -> None:
    await set_limits(stack, requests_per_minute=2, input_tokens_per_minute=1_000, concurrent_requests=1)
    headers = {"authorization": f"Bearer {stack.key}", **(ANTHROPIC if path == "/v1/messages" else {})}
    answers = [await stack.http.post(path, headers=headers, json=wrong) for _ in range(3)]
    assert {answer.status_code for answer in answers} <= {400, 404}
    assert [answer.headers[prefix] for answer in answers] == ["1", "0", "0"]
    assert (await stack.post(BODY)).status_code == 429


async def test_counting_tokens_is_a_request_without_tokens_or_a_place(stack: Stack) -> None:
    await set_limits(stack, requests_per_minute=3, input_tokens_per_minute=1_000, concurrent_requests=1)
    stack.say("one two three", pause=0.05)
    running = asyncio.create_task(stack.post(BODY))
    await stack.until(lambda: bool(stack.replica.runs))
    headers = {"authorization": f"Bearer {stack.key}", **ANTHROPIC}
    body = {"model": "tiny", "messages": BODY["messages"]}
    at = "/v1/messages/count_tokens"
    answers = [await stack.http.post(at, headers=headers, json=body) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["anthropic-ratelimit-requests-remaining"] for answer in answers] == ["1", "0", "0"]
    assert (await running).status_code == 200
