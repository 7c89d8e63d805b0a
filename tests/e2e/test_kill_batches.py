"""kill -9 of the gateway that runs a batch: lines in are lines out, and each is billed once."""

from __future__ import annotations

import json
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

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

LINES = 300
_ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture
def pair(tmp_path: Path, redis_url: str) -> Iterator[Pair]:
    with postgres_server() as server:
        made = Pair(tmp_path, server.url, redis_url)
        made.env["TURNPIKE_FILE_DIR"] = str(tmp_path / "files")
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


def client_at(base: str, key: str) -> OpenAI:
    return OpenAI(base_url=f"{base}/v1", api_key=key, max_retries=5, timeout=120)


def until(client: OpenAI, name: str, seconds: float, done: Any) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        batch = client.batches.retrieve(name)
        if done(batch):
            return batch
        time.sleep(0.2)
    raise AssertionError(f"{name} is {batch.status} after {seconds} s: {batch.request_counts}")


def line(number: int) -> bytes:
    body = {"model": NAME, "messages": [{"role": "user", "content": f"Count to {number}."}], "max_tokens": 20}
    said = {"custom_id": f"{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(said).encode() + b"\n"


def test_a_batch_outlives_the_gateways_that_run_it(pair: Pair) -> None:
    with client_at(pair.base, pair.key) as here, client_at(pair.other_base, pair.key) as there:
        content = b"".join(map(line, range(LINES)))
        file = here.files.create(file=("in.jsonl", content), purpose="batch")
        batch = here.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        until(here, batch.id, 120, lambda one: one.request_counts.completed >= 20)
        _kill_owner(pair, batch.id)
        ended = until(there, batch.id, 200, lambda one: one.status in _ENDED)
        counts = ended.request_counts
        assert (ended.status, counts.completed, counts.failed, counts.total) == ("completed", LINES, 0, LINES)
        results = [json.loads(one) for one in there.files.content(ended.output_file_id).text.splitlines()]
        assert sorted(int(result["custom_id"]) for result in results) == list(range(LINES))
    pair.wait_settled()
    ok, cost = pair.query("SELECT count(*) FILTER (WHERE cost_pico > 0), count(*) FROM usage_event")[0]
    assert ok == LINES, f"{ok} of {cost} events cost something"
    named = {result["response"]["request_id"] for result in results}
    billed = {f"req_{row[0].hex}" for row in pair.query("SELECT id FROM usage_event WHERE cost_pico > 0")}
    assert named == billed
    assert_books(pair)


def _kill_owner(pair: Pair, batch: str) -> None:
    """Kill the gateway that runs the batch, and start it again when the other one has taken the batch over."""
    ((owner,),) = pair.query("SELECT worker FROM batch")
    name = "gateway-1" if str(owner).startswith("gateway-1") else "gateway"
    pair.processes[name].kill()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ((now,),) = pair.query("SELECT worker FROM batch")
        if now != owner:
            break
        time.sleep(0.5)
    assert now != owner, f"{batch} is not taken over"
    # The dead gateway's spool has usage of lines whose results were lost: it is read when the gateway starts again.
    if name == "gateway":
        pair.start("gateway")
        pair.wait_ready()
    else:
        pair.start_other_gateway()
        wait_ready(pair.other_base)
