"""kill -9 of a replica, and of a gateway, while a step verifies drafts: the tokens are those of plain decoding, and so
is the bill.

`VERIFYING_KILLS`: how often; 200 in `make test-verifying-kills`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec import Struct
from openai import OpenAI

from tests.e2e.deployment import Answer, Deployment, assert_books, wait_for_figure
from tests.e2e.endless_model import NAME
from tests.servers import free_port, postgres_server

KILLS = int(os.environ.get("VERIFYING_KILLS", "6"))
TOKENS, CROWD = 300, 4
QUESTIONS = ("Explain textwrap.dedent", "What does asyncio do?", "Sort a list of names")
ENGINES = ("engine", "engine-1")

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300 + 60 * KILLS)]


class Plain(Struct):
    """What a question is answered without drafts, and what that costs: for nothing, and for each token."""

    text: str
    prompt_pico: int
    token_pico: int

    @property
    def prediction(self) -> dict[str, str]:
        """What has replicas draft it: random weights repeat nothing."""
        return {"type": "content", "content": self.text}


class Trials:
    """A deployment of two replicas that stop where they are told to."""

    def __init__(self, folder: Path, database_url: str, redis_url: str) -> None:
        self.deployment = Deployment(folder, database_url, redis_url)
        self.armed = {name: folder / f"verifying-{name}" for name in ENGINES}
        self.listen = dict(zip(ENGINES, (self.deployment.env["TURNPIKE_REPLICAS"], self._address()), strict=True))
        self.deployment.env["TURNPIKE_REPLICAS"] = ",".join(self.listen.values())
        self.deployment.env["PYTHONPATH"] = str(Path(__file__).parent / "stops_verifying")
        for name in (*ENGINES, "gateway", "worker"):
            self.start(name)
        self.wait_healthy()

    @staticmethod
    def _address() -> str:
        return f"tcp:127.0.0.1:{free_port()}"

    def start(self, name: str) -> None:
        """Start it, or start it again."""
        env = self.deployment.env
        if name in ENGINES:
            self.deployment.env = env | {"TURNPIKE_TEST_VERIFYING": str(self.armed[name])}
            replica = name if name != "engine" else "engine-0"
            self.deployment.start(name, "--listen", self.listen[name], "--replica-name", replica)
        else:
            self.deployment.start(name)
        self.deployment.env = env

    def wait_healthy(self) -> None:
        for replica in ("engine-0", "engine-1"):
            wait_for_figure(self.deployment.base, "turnpike_replica_healthy", replica, least=1.0)

    def arm(self, steps: int, requests: int) -> None:
        """Let the first replica that verifies drafts of so many requests at once stop after so many steps of that."""
        for file in self.armed.values():
            file.write_text(f"{steps} {requests}")

    def wait_reached(self) -> str:
        """Wait until a replica stands in the middle of such a step; which one."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for name, file in self.armed.items():
                if file.with_name(file.name + ".reached").exists():
                    time.sleep(0.2)  # what it sent before is on its way to the gateway
                    return name
            time.sleep(0.01)
        raise AssertionError("no drafts were verified")

    def disarm(self) -> None:
        """Let all go on."""
        for file in self.armed.values():
            file.unlink(missing_ok=True)
            file.with_name(file.name + ".reached").unlink(missing_ok=True)

    # ------------------------------------------------------------ requests

    def ask(self, question: str, tokens: int = TOKENS, **extra: Any) -> tuple[str, str, int]:
        """The whole answer: its request, its text and its tokens."""
        base = self.deployment.base + "/v1"
        with OpenAI(base_url=base, api_key=self.deployment.key, max_retries=0, timeout=200) as client:
            raw = client.chat.completions.with_raw_response.create(
                model=NAME,
                messages=[{"role": "user", "content": question}],
                max_tokens=tokens,
                temperature=0,
                extra_body=extra,
            )
        answer = raw.parse()
        assert answer.usage is not None
        return raw.headers["x-request-id"], answer.choices[0].message.content or "", answer.usage.completion_tokens

    def plain(self, question: str) -> Plain:
        """Its answer without drafts, and the price of its parts."""
        short, _, few = self.ask(question, 1, speculation="off")
        long, text, many = self.ask(question, speculation="off")
        assert (few, many) == (1, TOKENS)
        self.deployment.wait_settled()
        one, all_of_it = self.event(short), self.event(long)
        assert all_of_it.count_drafted == 0
        token = Decimal(all_of_it.cost_pico - one.cost_pico) / (TOKENS - 1)
        assert token == int(token)
        return Plain(text, one.cost_pico - int(token), int(token))

    def event(self, request: str) -> Any:
        """The usage event of a request."""
        wanted = UUID(hex=request.removeprefix("req_"))
        columns = "id, status, output, cost_pico, count_output, count_drafted, count_accepted"
        rows = self.deployment.query(f"SELECT {columns} FROM usage_event WHERE corrects IS NULL")
        [event] = [row for row in rows if row.id == wanted]
        return event


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Iterator[Trials]:
    with postgres_server() as postgres:
        made = Trials(tmp_path_factory.mktemp("deployment"), postgres.url, redis_url)
        try:
            yield made
        finally:
            made.disarm()
            made.deployment.clean_up()


@pytest.fixture(scope="module")
def plain(trials: Trials) -> dict[str, Plain]:
    return {question: trials.plain(question) for question in QUESTIONS}


def kills(seed: int, count: int) -> Iterator[tuple[str, int]]:
    """Which question is asked, and after how many steps with drafts the kill comes."""
    dice = random.Random(seed)
    for _ in range(count):
        yield dice.choice(QUESTIONS), dice.randint(1, 8)


def test_a_replica_dies_while_it_verifies(trials: Trials, plain: dict[str, Plain]) -> None:
    """The other one answers its requests. There are several: a replica's only one would be suspected of its death."""
    requests: dict[str, str] = {}
    for question, steps in kills(1, (KILLS + 1) // 2):
        trials.arm(steps, 2)
        with ThreadPoolExecutor(CROWD) as clients:
            asked = [clients.submit(trials.ask, question, prediction=plain[question].prediction) for _ in range(CROWD)]
            replica = trials.wait_reached()
            trials.deployment.processes[replica].kill()
            trials.disarm()
            answers = [each.result(200) for each in asked]
        for request, text, tokens in answers:
            assert (text, tokens) == (plain[question].text, TOKENS)
            requests[request] = question
        trials.start(replica)
        trials.wait_healthy()
    assert_books(trials.deployment)
    for request, question in requests.items():
        event, expected = trials.event(request), plain[question]
        assert (event.status, event.output) == ("ok", TOKENS)
        assert event.cost_pico == expected.prompt_pico + TOKENS * expected.token_pico
    lost = trials.deployment.query("SELECT cost_pico FROM usage_event WHERE corrects IS NOT NULL")
    assert len(lost) >= KILLS
    assert not any(row.cost_pico for row in lost)


def test_a_gateway_dies_while_a_replica_verifies(trials: Trials, plain: dict[str, Plain]) -> None:
    """What had been delivered by then is billed, at the price of plain decoding."""
    requests: dict[str, tuple[str, Answer]] = {}
    for question, steps in kills(2, KILLS // 2):
        trials.arm(steps, 1)
        with ThreadPoolExecutor(1) as client:
            body: dict[str, Any] = {"temperature": 0, "prediction": plain[question].prediction}
            streaming = client.submit(trials.deployment.stream, question, TOKENS, **body)
            trials.wait_reached()
            trials.deployment.processes["gateway"].kill()
            trials.disarm()
            answer = streaming.result(60)
        assert answer.status == 200
        assert not answer.done
        assert plain[question].text.startswith(answer.text)
        requests[answer.request] = question, answer
        trials.start("gateway")
        trials.wait_healthy()
    assert_books(trials.deployment)
    for request, (question, answer) in requests.items():
        event, expected = trials.event(request), plain[question]
        assert event.output <= event.count_output
        assert event.output or not answer.text, "what the client has is billed"
        assert event.cost_pico == expected.prompt_pico + event.output * expected.token_pico
    _, text, _ = trials.ask(QUESTIONS[0])
    assert text == plain[QUESTIONS[0]].text
    [counts] = trials.deployment.query("SELECT sum(count_accepted) AS accepted FROM usage_event")
    assert counts.accepted > 0
