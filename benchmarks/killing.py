"""Whether the books survive: real processes under load, killed at random, and at the end every promise looked up.

Clients stream from a gateway of two workers, an engine and a worker, on a PostgreSQL and a Redis of their own.
Meanwhile gateway, gateway workers, engine and worker are killed (`kill -9`), and PostgreSQL is stopped at once, as
after a power cut. A usage that a client has seen is acknowledged: its event must be there, and say the same.
"""

from __future__ import annotations

import json
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from billing.holds.records import unpack
from tests.e2e.deployment import Answer, Deployment
from tests.e2e.processes import command, get
from tests.servers import PostgresServer, postgres_server, redis_server

_KINDS = {"engine": 3, "gateway": 2, "gateway worker": 4, "worker": 1, "postgresql": 3}
"""What is killed how often, by weight."""
_GATEWAY = ("--workers", "2", "--allowance-requests", "2")
"""Two requests at once get money set aside for them: so some have holds of their own, and others take from those."""
_AT_ONCE = 0.25
"""How often the next one is killed before the last one is back."""
_BACK_S = 45.0
_SETTLED_S = 240.0


class Crowd:
    """Clients that ask again and again until they are told to stop; `answers` has what each was told."""

    def __init__(self, deployment: Deployment, clients: int) -> None:
        self.answers: list[Answer] = []
        self._deployment = deployment
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(n,), daemon=True) for n in range(clients)]
        for thread in self._threads:
            thread.start()

    @property
    def acknowledged(self) -> int:
        """How many have seen their usage so far."""
        return sum(answer.usage is not None for answer in self.answers)

    def stop(self) -> list[Answer]:
        """Let everyone finish; what all were told."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a stream hangs"
        return self.answers

    def _ask(self, number: int) -> None:
        dice = random.Random(number)
        while not self._stopping.is_set():
            answer = Answer()
            self.answers.append(answer)
            self._deployment.stream(
                f"Client {number}: explain textwrap.dedent",
                dice.randint(1, 40),
                answer=answer,
                seed=dice.randint(0, 99),
            )
            if answer.status != 200:
                time.sleep(0.2 + dice.random())


class Reaper:
    """Kills at random, and starts again what it killed."""

    def __init__(self, deployment: Deployment, postgres: PostgresServer, seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self.ended_by_themselves: Counter[str] = Counter()
        self._deployment = deployment
        self._postgres = postgres
        self._dice = random.Random(seed)

    def strike(self) -> None:
        """Kill something, sometimes two things at once, and start them again."""
        kinds = [self._choose()]
        while self._dice.random() < _AT_ONCE:
            kinds.append(self._choose())
        back = [self._kill(kind) for kind in dict.fromkeys(kinds)]
        self._dice.shuffle(back)
        for start_again in back:
            start_again()
        self.keep_running()

    def keep_running(self) -> None:
        """Start what ended by itself, as the machine's supervisor would: a role that finds no database gives up."""
        for name, process in list(self._deployment.processes.items()):
            if process.popen.poll() is not None:
                self.ended_by_themselves[name] += 1
                start(self._deployment, name)

    def _choose(self) -> str:
        return self._dice.choices(list(_KINDS), list(_KINDS.values()))[0]

    def _kill(self, kind: str) -> Callable[[], object]:
        """Kill it; how to have it again."""
        self.kills[kind] += 1
        deployment = self._deployment
        if kind == "postgresql":
            self._postgres.stop(signal.SIGQUIT)
            return self._postgres.start
        running = deployment.processes[kind.partition(" ")[0]]
        if running.popen.poll() is not None:  # it went with another of this strike
            return lambda: None
        if kind == "gateway worker":  # its parent starts it again
            workers = running.children()
            if workers:
                self._dice.choice(workers).kill()
            return lambda: None
        for child in running.children():
            child.kill()
        running.kill()
        return lambda: start(deployment, kind)


def start(deployment: Deployment, name: str) -> None:
    """Start a process as this benchmark has it."""
    deployment.start(name, *_GATEWAY if name == "gateway" else ())


def kill(
    seconds: float,
    clients: int = 32,
    seed: int = 1,
    progress: Callable[[str], None] = lambda _: None,
    least: int = 0,
) -> dict[str, Any]:
    """Run the clients and the reaper for so long, and on until so many were killed at `least`; what was asked, killed,
    acknowledged, lost and doubled."""
    with tempfile.TemporaryDirectory() as folder, postgres_server() as postgres, redis_server() as redis:
        deployment = Deployment(Path(folder), postgres.url, redis.url)
        try:
            for name in ("engine", "gateway", "worker"):
                start(deployment, name)
            deployment.wait_ready()
            return _run(deployment, Reaper(deployment, postgres, seed), seconds, clients, progress, least)
        finally:
            deployment.clean_up()


def _run(
    deployment: Deployment, reaper: Reaper, seconds: float, clients: int, progress: Callable[[str], None], least: int
) -> dict[str, Any]:
    crowd = Crowd(deployment, clients)
    end = time.monotonic() + seconds

    def goes_on() -> bool:
        return time.monotonic() < end or reaper.kills.total() < least

    while goes_on():
        back = time.monotonic() + _BACK_S
        _wait_for_more(crowd, reaper, back if reaper.kills.total() < least else min(end, back))
        if goes_on():
            reaper.strike()
            progress(f"{crowd.acknowledged} acknowledged, killed so far: {dict(reaper.kills)}")
    _wait_ready(deployment, reaper)
    answers = crowd.stop()
    deployment.wait_settled(_SETTLED_S)
    done = {"kills": dict(reaper.kills), "ended_by_themselves": dict(reaper.ended_by_themselves)}
    return _verdict(deployment, answers) | done | {"clients": clients, "seconds": seconds}


def _wait_for_more(crowd: Crowd, reaper: Reaper, until: float) -> None:
    """Wait until some more requests have come to their end."""
    before = crowd.acknowledged
    while time.monotonic() < until and crowd.acknowledged < before + len(crowd.answers[:32]) // 2 + 1:
        reaper.keep_running()
        time.sleep(0.2)


def _wait_ready(deployment: Deployment, reaper: Reaper) -> None:
    deadline = time.monotonic() + 120
    while get(deployment.base + "/readyz")[0] != 200:
        assert time.monotonic() < deadline, "the deployment does not come back"
        reaper.keep_running()
        time.sleep(0.2)


def _verdict(deployment: Deployment, answers: list[Answer]) -> dict[str, Any]:
    rows = deployment.query("SELECT id, count_prompt, output, delivery, source, replica, sequence FROM usage_event")
    events = {UUID(int=row.id.int): row for row in rows}
    told = {UUID(hex=a.request.removeprefix("req_")): a.usage for a in answers if a.usage is not None}
    sequences = Counter((row.replica, row.sequence) for row in rows if row.sequence)
    unconfirmed = sum(row.delivery == "unconfirmed" for row in rows)
    released = deployment.query("SELECT request FROM ended_hold")
    audits = {name: command("audit", name, env=deployment.env) for name in ("money", "counts")}
    return {
        "requests": len(answers),
        "acknowledged": len(told),
        "cut_off": sum(a.status == 200 and a.usage is None for a in answers),
        "refused": sum(a.status != 200 for a in answers),
        "events": len(events),
        "lost": sum(request not in events for request in told),
        "doubled": sum(count - 1 for count in sequences.values()),
        "different": sum(
            (usage["prompt_tokens"], usage["completion_tokens"]) != (events[i].count_prompt, events[i].output)
            for i, usage in told.items()
            if i in events
        ),
        "unconfirmed": unconfirmed,
        "unconfirmed_percent": round(100 * unconfirmed / max(1, len(events)), 2),
        "from_journals": sum(row.source == "journal" for row in rows),
        "allowances": sum(unpack(row.request).is_allowance for row in released),
        "open_holds": deployment.query("SELECT coalesce(sum(open), 0) FROM hold_batch")[0][0],
        "findings": [json.loads(line) for line in audits["money"].stdout.splitlines()],
        "money_is_right": audits["money"].returncode == 0,
        "counts_are_equal": audits["counts"].returncode == 0,
        "counts": (audits["counts"].stdout + audits["counts"].stderr).splitlines(),
    }


def is_clean(figures: dict[str, Any]) -> bool:
    """Whether every promise was kept."""
    nothing = ("lost", "doubled", "different", "open_holds")
    return figures["money_is_right"] and figures["counts_are_equal"] and not any(figures[name] for name in nothing)
