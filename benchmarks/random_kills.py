"""Random kills: real processes under load, killed at random, and every promise about usage checked at the end.

Clients stream from two gateways (one with two workers), two engines and a worker, on a PostgreSQL and a Redis of the
benchmark's own. Meanwhile each process is killed (`kill -9`), stopped in order or paused, and PostgreSQL stops as after
a power cut; they come back in any order. Usage that a client has seen is acknowledged: its event must exist and say the
same. A stream whose engine dies goes on at the other one: `whole_percent` of those that begin end with their own last
token; those of a gateway that dies do not. Some clients belong to tenants with little money, who get a little more
whenever it is used up: no balance may ever be below zero.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
from sqlalchemy import text

from audit_log.actors import acting_as
from benchmarks.processes import BENCHMARK
from billing.accounts.balances import Balances
from billing.holds.records import unpack
from billing.money import parse_amount
from storage.database.database import Database
from tests.e2e.deployment import Answer, Deployment
from tests.e2e.processes import Process, command, get, wait_ready
from tests.servers import PostgresServer, RedisServer, free_port, postgres_server, redis_server

_KINDS = {
    "engine": 3,
    "engine-1": 3,
    "gateway": 2,
    "gateway-1": 2,
    "gateway worker": 4,
    "worker": 1,
    "postgresql": 3,
    "redis": 1,
}
"""What is killed how often, by weight."""
_STOPPED, _PAUSED = 0.2, 0.1
"""How often it is told to stop, or stands still for a while, instead of being killed."""
_PAUSE_S = (2.0, 20.0)
_AWAY_S = 12.0
"""How long something may be away at most before it is started again."""
_EDGE = 3
"""Tenants with little money, each with two clients."""
_CREDIT = "0.002"
"""What they have at first, and get again: for one or two of their requests at a time."""
_WATCH_S = 0.5
_GATEWAY = ("--workers", "2", "--allowance-requests", "2")
"""Two requests at once get money set aside for them: so some have holds of their own, and others take from those."""
_AT_ONCE = 0.25
"""How often the next one is killed before the last one is back."""
_BACK_S = 45.0
_SETTLED_S = 240.0
_NO_CONNECTION = ("IncompleteRead", "ConnectionResetError", "RemoteDisconnected", "TimeoutError", "ConnectionError")
"""What a client is told when its gateway dies: the connection ends."""


class Crowd:
    """Clients that ask again and again until they are told to stop; `answers` has what each was told."""

    def __init__(self, deployment: Deployment, clients: int, edge: Edge) -> None:
        self.answers: list[Answer] = []
        self._deployment = deployment
        self._edge = edge
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
            poor = number < len(self._edge.keys) * 2
            self._deployment.stream(
                f"Client {number}: explain textwrap.dedent",
                dice.randint(100, 800) if poor else dice.randint(1, 40),
                answer=answer,
                base=dice.choice(self._edge.bases),
                key=self._edge.keys[number // 2] if poor else None,
                seed=dice.randint(0, 99),
            )
            if answer.status == 402:
                self._edge.top_up(number // 2)
            if answer.status != 200:
                time.sleep(0.2 + dice.random())


class Edge:
    """Tenants with little money; `below` has what was seen of a balance that could not pay what was used and held."""

    def __init__(self, deployment: Deployment, bases: list[str]) -> None:
        self.bases = bases
        self.keys: list[str] = []
        self.below: list[str] = []
        self.top_ups = 0
        self._deployment = deployment
        self._asked: set[int] = set()
        self._stopping = threading.Event()
        for number in range(_EDGE):
            name = f"edge-{number}"
            deployment.command("tenants", "create", name)
            deployment.command("tenants", "credit", name, _CREDIT)
            self.keys.append(deployment.command("keys", "create", "--tenant", name, "--project", "default").strip())
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def top_up(self, number: int) -> None:
        """A tenant's money is used up: it gets a little more, soon."""
        self._asked.add(number)

    def stop(self) -> None:
        """Look once more, and stop."""
        self._stopping.set()
        self._thread.join(120)
        self._look()

    def _watch(self) -> None:
        while not self._stopping.wait(_WATCH_S):
            with contextlib.suppress(Exception):  # the database may be away
                self._look()
                while self._asked:
                    grant_credit(self._deployment, f"edge-{next(iter(self._asked))}", _CREDIT)
                    self.top_ups += 1
                    self._asked.pop()

    def _look(self) -> None:
        short = "SELECT tenant_id, credit, debit, held, overdraft FROM balance WHERE overdraft > 0"
        self.below += [str(row) for row in self._deployment.query(short)]


def grant_credit(deployment: Deployment, tenant: str, amount: str) -> None:
    """Put money in; whether it was put in is not known when the database goes away."""

    async def work() -> None:
        database = await Database.open(deployment.env["TURNPIKE_DATABASE_URL"])
        try:
            async with database.reading() as session:
                found = await session.execute(text("SELECT id FROM tenant WHERE name = :name"), {"name": tenant})
            with acting_as(BENCHMARK):
                await Balances(database).grant(found.scalar_one(), parse_amount(amount), "USD")
        finally:
            await database.close()

    asyncio.run(work())


class Reaper:
    """Kills at random, and starts again what it killed."""

    def __init__(self, deployment: Deployment, postgres: PostgresServer, redis: RedisServer, seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self.ended_by_themselves: Counter[str] = Counter()
        self._deployment = deployment
        self._postgres = postgres
        self._redis = redis
        self._dice = random.Random(seed)

    def strike(self) -> None:
        """Kill something, sometimes several things at once, and start them again, in another order, one after the
        other."""
        kinds = [self._choose()]
        while self._dice.random() < _AT_ONCE:
            kinds.append(self._choose())
        back = [self._kill(kind) for kind in dict.fromkeys(kinds)]
        self._dice.shuffle(back)
        for start_again in back:
            if self._dice.random() < _AT_ONCE:
                time.sleep(self._dice.uniform(0.0, _AWAY_S))
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
        if kind == "redis":
            self._redis.stop(signal.SIGKILL)
            return self._redis.start
        running = deployment.processes[kind.partition(" ")[0]]
        if running.popen.poll() is not None:  # it went with another of this strike
            return lambda: None
        if kind == "gateway worker":  # its parent starts it again
            workers = running.children()
            if workers:
                self._dice.choice(workers).kill()
            return lambda: None
        fate = self._dice.random()
        if fate < _PAUSED:
            return self._pause(running)
        if fate < _PAUSED + _STOPPED:
            running.popen.send_signal(signal.SIGTERM)
            return lambda: self._start_when_gone(kind)
        for child in running.children():
            child.kill()
        running.kill()
        return lambda: start(deployment, kind)

    def _pause(self, running: Process) -> Callable[[], object]:
        """Let it stand still for a while, with all that it runs; whoever takes it for dead is wrong."""
        self.kills["paused"] += 1
        still = [psutil.Process(running.popen.pid), *running.children()]
        for one in still:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.suspend()

        def go_on() -> None:
            time.sleep(self._dice.uniform(*_PAUSE_S))
            for one in still:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.resume()

        return go_on

    def _start_when_gone(self, kind: str) -> None:
        self.kills["told to stop"] += 1
        running = self._deployment.processes[kind]
        try:
            running.popen.wait(_BACK_S)
        except subprocess.TimeoutExpired:
            for child in running.children():
                child.kill()
            running.kill()
        start(self._deployment, kind)


def start(deployment: Deployment, name: str) -> None:
    """Start a process as this benchmark has it."""
    deployment.start(name, *deployment.flags.get(name, ()))


def make_second(deployment: Deployment) -> list[str]:
    """Let the deployment have two engines and two gateways; where the gateways listen."""
    replica, port = f"tcp:127.0.0.1:{free_port()}", free_port()
    first = deployment.env["TURNPIKE_REPLICAS"]
    deployment.env["TURNPIKE_REPLICAS"] = f"{first},{replica}"
    few = ("--allowance-requests", "2")
    deployment.flags = {
        "engine": ("--listen", first),
        "engine-1": ("--listen", replica, "--replica-name", "engine-1"),
        "gateway": _GATEWAY,
        "gateway-1": ("--port", str(port), "--gateway-name", "gateway-1", "--hold-slice-tokens", "64", *few),
    }
    return [deployment.base, f"http://127.0.0.1:{port}"]


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
            bases = make_second(deployment)
            for name in ("engine", "engine-1", "gateway", "gateway-1", "worker"):
                start(deployment, name)
            for base in bases:
                wait_ready(base, list(deployment.processes.values()))
            reaper = Reaper(deployment, postgres, redis, seed)
            return _run(deployment, reaper, Edge(deployment, bases), seconds, clients, progress, least)
        finally:
            deployment.clean_up()


def _run(
    deployment: Deployment,
    reaper: Reaper,
    edge: Edge,
    seconds: float,
    clients: int,
    progress: Callable[[str], None],
    least: int,
) -> dict[str, Any]:
    crowd = Crowd(deployment, clients, edge)
    end = time.monotonic() + seconds

    def goes_on() -> bool:
        return time.monotonic() < end or reaper.kills.total() < least

    while goes_on():
        back = time.monotonic() + _BACK_S
        _wait_for_more(crowd, reaper, back if reaper.kills.total() < least else min(end, back))
        if goes_on():
            reaper.strike()
            progress(f"{crowd.acknowledged} acknowledged, killed so far: {dict(reaper.kills)}")
    for base in edge.bases:
        _wait_ready(base, reaper)
    answers = crowd.stop()
    deployment.wait_settled(_SETTLED_S)
    edge.stop()
    money = {"below_zero": len(edge.below), "below": edge.below[:5], "top_ups": edge.top_ups}
    done = money | {"kills": dict(reaper.kills), "ended_by_themselves": dict(reaper.ended_by_themselves)}
    return _verdict(deployment, answers) | done | {"clients": clients, "seconds": seconds}


def _wait_for_more(crowd: Crowd, reaper: Reaper, until: float) -> None:
    """Wait until some more requests have come to their end."""
    before = crowd.acknowledged
    while time.monotonic() < until and crowd.acknowledged < before + len(crowd.answers[:32]) // 2 + 1:
        reaper.keep_running()
        time.sleep(0.2)


def _wait_ready(base: str, reaper: Reaper) -> None:
    deadline = time.monotonic() + 120
    while get(base + "/readyz")[0] != 200:
        assert time.monotonic() < deadline, "the deployment does not come back"
        reaper.keep_running()
        time.sleep(0.2)


def _verdict(deployment: Deployment, answers: list[Answer]) -> dict[str, Any]:
    rows = deployment.query("SELECT id, count_prompt, output, delivery, source, replica, sequence FROM usage_event")
    events = {UUID(int=row.id.int): row for row in rows}
    told = {UUID(hex=a.request.removeprefix("req_")): a.usage for a in answers if a.usage is not None}
    sequences = Counter((row.replica, row.sequence) for row in rows if row.sequence)
    unconfirmed = sum(row.delivery == "unconfirmed" for row in rows)
    begun = [a for a in answers if a.status == 200]
    whole = sum(a.done and not a.error for a in begun)
    released = deployment.query("SELECT request FROM ended_hold")
    audits = {name: command("audit", name, env=deployment.env) for name in ("money", "counts")}
    return {
        "requests": len(answers),
        "acknowledged": len(told),
        "short_of_money": sum(a.status == 402 for a in answers),
        "begun": len(begun),
        "whole": whole,
        "whole_percent": round(100 * whole / max(1, len(begun)), 2),
        "cut_off": sum(a.usage is None for a in begun),
        "ended_by_an_error_event": sum(bool(a.error) and a.error not in _NO_CONNECTION for a in begun),
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
    nothing = ("lost", "doubled", "different", "open_holds", "below_zero")
    return figures["money_is_right"] and figures["counts_are_equal"] and not any(figures[name] for name in nothing)
