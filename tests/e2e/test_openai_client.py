"""The official OpenAI client, unchanged but for base_url and key, against real processes."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import openai
import pytest

from tests.awake import Awake
from tests.e2e.conftest import Running
from tests.e2e.processes import DEMO_MODEL, command, get, run

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
MODEL = "stdlib-qa"


def ask(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def test_an_answer_and_what_it_cost(serve: Running) -> None:
    before = serve.used()
    with serve.client() as client:
        answer = client.chat.completions.create(
            model=MODEL, messages=ask("What does textwrap.dedent do?"), temperature=0, max_tokens=60
        )
        assert answer.object == "chat.completion"
        assert answer.choices[0].message.role == "assistant"
        assert "whitespace" in (answer.choices[0].message.content or "")
        assert answer.choices[0].finish_reason in ("stop", "length")
        counted = answer.usage
        assert counted is not None
        assert counted.total_tokens == counted.prompt_tokens + counted.completion_tokens
        cost = Decimal(counted.model_extra["cost"]["amount"])  # type: ignore[index]  # our own field
    prices = {"uncached": Decimal("0.40"), "output": Decimal("1.60"), "read": Decimal("0.04")}
    cached = counted.prompt_tokens_details.cached_tokens if counted.prompt_tokens_details else 0
    by_hand = (
        (counted.prompt_tokens - (cached or 0)) * prices["uncached"]
        + (cached or 0) * prices["read"]
        + counted.completion_tokens * prices["output"]
    ) / 1_000_000
    assert cost == by_hand
    assert serve.used().cost - before.cost == by_hand


def test_a_stream_says_the_same_and_ends_with_its_usage(serve: Running) -> None:
    with serve.client() as client:
        options = {"model": MODEL, "messages": ask("What does os.path.join do?"), "temperature": 0, "max_tokens": 50}
        whole = client.chat.completions.create(**options)  # type: ignore[call-overload]  # the same options twice
        chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))  # type: ignore[call-overload]  # as above
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].choices == []
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
        assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_shared_prefix_is_read_and_billed_as_read(serve: Running) -> None:
    system = "You answer questions about the Python standard library. " * 60
    with serve.client() as client:
        results = []
        for question in ("What does json.dumps do?", "What does shutil.copy do?"):
            answer = client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "system", "content": system}, *ask(question)],  # type: ignore[list-item]  # plain dicts
                temperature=0,
                max_tokens=8,
            )
            assert answer.usage is not None
            results.append(answer.usage)
        assert results[0].prompt_tokens_details.cached_tokens == 0  # type: ignore[union-attr]  # always sent by us
        read = results[1].prompt_tokens_details.cached_tokens or 0  # type: ignore[union-attr]  # as above
        assert read >= 256
        assert read % 64 == 0


def test_models(serve: Running) -> None:
    with serve.client() as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL


def test_errors_arrive_as_the_clients_own_exceptions(serve: Running) -> None:
    with serve.client() as client:
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="nope", messages=ask("hi"))  # type: ignore[arg-type]  # plain dicts
        assert "nope" in str(missing.value)
        assert missing.value.request_id
        with pytest.raises(openai.BadRequestError) as wrong:
            client.chat.completions.create(model=MODEL, messages=[{"role": "alien", "content": "hi"}])  # type: ignore[list-item,misc]  # wrong on purpose
        assert wrong.value.param == "messages[0].role"
    wrong_key = serve.key[:-1] + ("0" if serve.key[-1] != "0" else "1")
    with serve.client(wrong_key) as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_a_revoked_key_stops_within_a_second(serve: Running) -> None:
    key = run("keys", "create", "--tenant", "demo", "--project", "default", env=serve.env).stdout.strip()
    assert get(serve.base + "/v1/models", key)[0] == 200
    assert run("keys", "revoke", key, env=serve.env).returncode == 0
    with Awake() as awake:
        while get(serve.base + "/v1/models", key)[0] != 401:
            assert awake.seconds < 1
            time.sleep(0.05)


def test_the_usage_api_agrees_with_the_command(serve: Running) -> None:
    admin = command("keys", "create", "--tenant", "demo", "--admin", env=serve.env).stdout.strip()
    used = serve.used()
    for key in (admin, serve.key):
        status, body = get(
            serve.base + "/v1/organization/usage/completions?start_time=1700000000&bucket_width=1d&limit=31", key
        )
        assert status == 200, body
        status, body = get(serve.base + f"/v1/organization/usage/completions?start_time={serve.started}&limit=31", key)
        results = [result for bucket in json.loads(body)["data"] for result in bucket["results"]]
        assert sum(result["output_tokens"] for result in results) == used.output
        assert sum(result["num_model_requests"] for result in results) == used.requests
    assert get(serve.base + "/v1/models", admin)[0] == 200


def test_64_streams_say_what_each_says_alone(serve: Running) -> None:
    """Mixed lengths, greedy and seeded: the text does not depend on the batch."""
    questions = json.loads((DEMO_MODEL / "questions.json").read_text())
    asked = [item["question"] for item in questions][:32]
    requests = []
    for index in range(64):
        system = "Answer briefly. " * (1 + 7 * (index % 13))
        requests.append(
            {
                "model": MODEL,
                "messages": [{"role": "system", "content": system}, *ask(asked[index % 32])],
                "max_tokens": 4 + (index * 11) % 45,
                **({"temperature": 0} if index % 2 else {"temperature": 0.9, "top_p": 0.95, "seed": index}),
            }
        )

    with serve.client() as client:

        def stream(options: dict[str, object]) -> str:
            chunks = client.chat.completions.create(**options, stream=True)  # type: ignore[call-overload]  # options as a dict
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

        alone = [stream(options) for options in requests]
        with ThreadPoolExecutor(64) as pool:
            together = list(pool.map(stream, requests))
    assert together == alone
    assert len(set(alone)) > 32


def test_the_demo_model_knows_the_standard_library(serve: Running) -> None:
    """The bar of the demo model, through everything: the first sentence of the docstring, greedily."""
    questions = json.loads((DEMO_MODEL / "questions.json").read_text())

    def right(item: dict[str, str]) -> bool:
        with serve.client() as client:
            answer = client.chat.completions.create(
                model=MODEL,
                messages=ask(item["question"]),  # type: ignore[arg-type]  # plain dicts
                temperature=0,
                max_tokens=100,
            )
        return (answer.choices[0].message.content or "").startswith(item["expected"])

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(right, questions))
    score = {
        phrasing: sum(ok for ok, item in zip(answers, questions, strict=True) if item["phrasing"] == phrasing)
        for phrasing in ("seen", "unseen")
    }
    assert score["seen"] >= 48, score
    assert score["unseen"] >= 40, score
