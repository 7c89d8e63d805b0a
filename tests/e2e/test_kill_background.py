"""kill -9 of the gateway that runs responses in the background: another one resumes, ends, cancels and reruns them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.deployment import assert_books
from tests.e2e.endless_model import NAME
from tests.e2e.processes import wait_ready
from tests.e2e.test_kill_holds import Pair
from tests.servers import postgres_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

_ENDED = ("completed", "incomplete", "failed", "cancelled")


@pytest.fixture
def pair(tmp_path: Path, redis_url: str) -> Iterator[Pair]:
    with postgres_server() as server:
        made = Pair(tmp_path, server.url, redis_url)
        try:
            made.start_engines()
            made.start("gateway")
            made.start_other_gateway()
            made.start("worker")
            made.wait_ready()
            wait_ready(made.other_base)
            yield made
        finally:
            made.clean_up()


def until(client: OpenAI, name: str, seconds: float, *states: str) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        response = client.responses.retrieve(name)
        if response.status in states:
            return response
        time.sleep(0.1)
    raise AssertionError(f"{name} is {response.status} after {seconds} s")


def client_at(base: str, key: str) -> OpenAI:
    return OpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0, timeout=120)


def test_responses_outlive_the_gateway_that_runs_them(pair: Pair) -> None:
    with client_at(pair.base, pair.key) as here, client_at(pair.other_base, pair.key) as there:
        finished = _kill_under_responses(pair, here, there)
        again = there.responses.create(
            model=NAME, input="And now?", previous_response_id=finished, background=True, max_output_tokens=20
        )
        until(there, again.id, 60, "completed", "incomplete")

    pair.start("gateway")
    pair.wait_ready()
    pair.wait_settled()
    assert_books(pair)


def _kill_under_responses(pair: Pair, here: OpenAI, there: OpenAI) -> str:
    """Kill the gateway `here` while it runs three responses; the one that has ended before is returned."""

    def begin(tokens: int) -> str:
        question = f"Count to {tokens}."
        return here.responses.create(model=NAME, input=question, background=True, max_output_tokens=tokens).id

    finished = begin(20)
    until(here, finished, 60, "completed", "incomplete")
    told, cancelled = begin(1500), begin(1500)
    known = []
    with here.responses.retrieve(told, stream=True) as stream:
        for event in stream:
            known.append(event)
            if len(known) > 20:
                break
    pair.processes["gateway"].kill()

    rest = list(there.responses.retrieve(told, stream=True, starting_after=known[-1].sequence_number))
    numbers = [event.sequence_number for event in (*known, *rest)]
    assert numbers == list(range(len(numbers))), "no event is lost, and none comes twice"
    assert rest[-1].type in ("response.failed", "response.incomplete", "response.completed")
    text = "".join(event.delta for event in (*known, *rest) if event.type == "response.output_text.delta")
    ended = until(there, told, 30, *_ENDED)
    if ended.status == "failed":
        assert ended.error.code == "server_error"
    else:
        assert ended.output_text == text, "a rerun tells the same"

    assert there.responses.cancel(cancelled).status in ("cancelled", "failed")
    assert there.responses.retrieve(finished).output_text
    return finished
