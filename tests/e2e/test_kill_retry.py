"""kill -9 of one of two replicas: whatever had not been delivered yet is answered by the other one, and billed once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from openai import OpenAI

from tests.e2e.deployment import Deployment, assert_books, wait_for_figure
from tests.e2e.endless_model import NAME
from tests.e2e.processes import command
from tests.servers import free_port, postgres_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

REQUESTS, TOKENS = 9, 250


@pytest.mark.alone  # its kill comes while requests run
def test_requests_of_a_killed_replica_are_answered_by_the_other(tmp_path: Path, redis_url: str) -> None:
    with postgres_server() as postgres:
        deployment = Deployment(tmp_path, postgres.url, redis_url)
        first, second = deployment.env["TURNPIKE_REPLICAS"], f"tcp:127.0.0.1:{free_port()}"
        deployment.env["TURNPIKE_REPLICAS"] = f"{first},{second}"
        try:
            deployment.start("engine", "--listen", first)
            deployment.start("engine-1", "--listen", second, "--replica-name", "engine-1")
            deployment.start("gateway")
            deployment.start("worker")
            for replica in ("engine-0", "engine-1"):
                wait_for_figure(deployment.base, "turnpike_replica_healthy", replica, least=1.0)
            v1 = deployment.base + "/v1"

            def ask(number: int) -> int:
                with OpenAI(base_url=v1, api_key=deployment.key, max_retries=0, timeout=200) as client:
                    answer = client.completions.create(
                        model=NAME, prompt=f"{number} is", max_tokens=TOKENS, temperature=0
                    )
                assert answer.usage is not None
                return answer.usage.completion_tokens

            with ThreadPoolExecutor(REQUESTS) as crowd:
                answers = [crowd.submit(ask, number) for number in range(REQUESTS)]
                wait_for_figure(deployment.base, "turnpike_replica_running", "engine-0", least=2.0)
                # one that alone had put out nothing would be suspected of the death, and go to no other replica
                first_tokens = "turnpike_time_to_first_token_seconds_count"
                wait_for_figure(deployment.base, first_tokens, None, least=REQUESTS)
                deployment.processes["engine"].kill()
                assert not all(answer.done() for answer in answers), "the kill came too late"
                assert [answer.result() for answer in answers] == [TOKENS] * REQUESTS
            deployment.start("engine", "--listen", first)
            wait_for_figure(deployment.base, "turnpike_replica_healthy", "engine-0", least=1.0)
            wait_for_figure(deployment.base, "turnpike_engine_journal_unacknowledged", "engine-0", most=0.0)
            assert_books(deployment)
            reconciled = command("reconcile", env=deployment.env)
            assert reconciled.returncode == 0, reconciled.stdout + reconciled.stderr
            rows = deployment.query("SELECT corrects, attempt, status, output, cost_pico FROM usage_event")
            billed = [row for row in rows if row.corrects is None]
            lost = [row for row in rows if row.corrects is not None]
            assert [(row.status, row.output) for row in billed] == [("ok", TOKENS)] * REQUESTS
            assert len(lost) >= 2
            assert all((row.attempt, row.status, row.cost_pico) == (1, "failed", 0) for row in lost)
        finally:
            deployment.clean_up()
