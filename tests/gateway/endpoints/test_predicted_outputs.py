"""`prediction` and `speculation` of a request: what the replica is told, and what the client is told of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.stack import Stack

ASK: Any = {"model": "tiny", "messages": [{"role": "user", "content": "Say it again"}], "max_tokens": 20}


def asked(stack: Stack) -> Any:
    (run,) = stack.replica.runs.values()
    return run.generate


async def test_a_prediction_goes_to_the_replica_and_what_came_of_it_back(stack: Stack) -> None:
    stack.say("one two three four seven", end=False)
    parts = [{"type": "text", "text": part} for part in ("one two three", " four five six")]
    answer = await stack.post(ASK | {"prediction": {"type": "content", "content": parts}})
    assert answer.status_code == 200, answer.text
    tokens = asked(stack).prediction
    usage = answer.json()["usage"]
    details = usage["completion_tokens_details"]
    assert 0 < details["accepted_prediction_tokens"] < len(tokens)
    assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] == len(tokens)
    (event,) = await stack.settled(1)
    assert usage["completion_tokens"] == event.output, "what was rejected is no output and costs nothing"


async def test_without_a_prediction_nothing_is_said_of_one(stack: Stack) -> None:
    stack.say("one two", end=False)
    answer = await stack.post(ASK)
    assert asked(stack).prediction == ()
    assert asked(stack).speculation == "auto"
    details = answer.json()["usage"]["completion_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (0, 0)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", ASK),
        ("/v1/completions", {"model": "tiny", "prompt": "Say it", "max_tokens": 4}),
        ("/v1/responses", {"model": "tiny", "input": "Say it", "max_output_tokens": 4, "store": False}),
        ("/v1/messages", {"model": "tiny", "messages": ASK["messages"], "max_tokens": 4}),
    ],
)
async def test_a_client_may_keep_replicas_from_speculating(stack: Stack, path: str, body: Any) -> None:
    stack.say("one", end=False)
    headers = {"authorization": f"Bearer {stack.key}", "anthropic-version": "2023-06-01"}
    answer = await stack.http.post(path, json=body | {"speculation": "off"}, headers=headers)
    assert answer.status_code == 200, answer.text
    assert asked(stack).speculation == "off"
    answer = await stack.http.post(path, json=body | {"speculation": "sometimes"}, headers=headers)
    assert answer.status_code == 400
    assert "speculation" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "prediction",
    ["one two", {"type": "text", "content": "one"}, {"type": "content"}, {"type": "content", "content": 7}],
)
async def test_a_malformed_prediction_is_refused_by_name(stack: Stack, prediction: Any) -> None:
    answer = await stack.post(ASK | {"prediction": prediction})
    assert answer.status_code == 400
    assert "prediction" in answer.json()["error"]["message"]
    assert not stack.replica.runs


async def test_a_prediction_is_bounded(stack: Stack) -> None:
    stack.say("one", end=False)
    answer = await stack.post(ASK | {"prediction": {"type": "content", "content": "one " * 200_000}})
    assert answer.status_code == 200, answer.text
    assert 0 < len(asked(stack).prediction) <= 32_768
