"""Holds of requests that a journal knows stay until they are billed, whoever dies and comes back in whatever order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.deployment import Deployment, Streams, assert_books, wait_for_text
from tests.e2e.processes import wait_ready
from tests.servers import PostgresServer, free_port, postgres_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

STREAMS = 5
TOKENS = 1500
LONGEST_S = 75.0
"""Twice as long as any wait of a gateway that was observed."""


class Pair(Deployment):
    """Two gateways and two engines; every gateway knows both engines."""

    def __init__(self, folder: Path, database_url: str, redis_url: str) -> None:
        super().__init__(folder, database_url, redis_url)
        self.addresses = [f"tcp:127.0.0.1:{free_port()}" for _ in range(2)]
        self.env["TURNPIKE_REPLICAS"] = ",".join(self.addresses)
        self.other_port = free_port()
        self.other_base = f"http://127.0.0.1:{self.other_port}"

    def start_engines(self) -> None:
        for number, address in enumerate(self.addresses):
            self.start(f"engine-{number}", "--listen", address, "--replica-name", f"engine-{number}")

    def start_other_gateway(self) -> None:
        self.start("gateway-1", "--port", str(self.other_port), "--gateway-name", "gateway-1")

    def money(self, tenant: str) -> tuple[int, int, int, int]:
        """Credit, debit, held and overdraft of a tenant."""
        (row,) = self.query(
            "SELECT credit, debit, held, overdraft FROM balance JOIN tenant ON tenant.id = tenant_id "
            f"WHERE tenant.name = '{tenant}'"
        )
        credit, debit, held, overdraft = row
        return int(credit), int(debit), int(held), int(overdraft)


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def pair(tmp_path: Path, postgres: PostgresServer, redis_url: str) -> Iterator[Pair]:
    made = Pair(tmp_path, postgres.url, redis_url)
    try:
        made.start_engines()
        made.start("gateway")
        made.start_other_gateway()
        made.wait_ready()
        wait_ready(made.other_base)
        yield made
    finally:
        made.clean_up()


def test_no_hold_is_given_back_that_a_journal_knows(pair: Pair) -> None:
    """The engines tell the gateway that comes first of requests that it does not own; it stops before it bills them,
    and begins anew. Meanwhile their own gateway looks for holds that nobody knows of."""
    pair.command("tenants", "create", "edge")
    pair.command("tenants", "credit", "edge", "0.02")
    pair.key = pair.command("keys", "create", "--tenant", "edge", "--project", "default").strip()
    streams = Streams(pair, STREAMS, max_tokens=TOKENS, pause=0.001)
    wait_for_text(streams, at_least=300)
    for name in ("gateway", "engine-0", "engine-1"):
        pair.processes[name].kill()
    assert not any(answer.done for answer in streams.join()), "the kill came too late"
    assert pair.query("SELECT sum(open) FROM hold_batch")[0][0] == STREAMS

    pair.start_engines()
    wait_ready(pair.other_base)
    pair.start("gateway")
    pair.wait_ready()
    time.sleep(15)
    assert pair.processes["gateway-1"].stop() == 0
    pair.start_other_gateway()

    deadline = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline:
        pair.stream("Spend what there is", max_tokens=TOKENS)
        credit, debit, held, overdraft = pair.money("edge")
        assert overdraft == 0, f"{debit} used and {held} held of {credit}"
        if pair.query("SELECT count(*) FROM usage_event WHERE source = 'journal'")[0][0] == STREAMS:
            break
    else:
        raise AssertionError("the journals' requests were not billed")
    released = "SELECT count(*) FROM ended_hold JOIN usage_event ON usage_event.id = request_id"
    assert pair.query(released)[0][0] == 0, "a hold was given back whose request was billed later"
    assert_books(pair)
