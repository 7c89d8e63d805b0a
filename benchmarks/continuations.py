"""Replicas are killed under streams, which go on: each answer is compared with that of the same request undisturbed.

    python -m benchmarks.continuations --broken 200 [--how kill,stop,pause] [--json OUT]

Requests of random options (streamed or whole, calls, grammars, several choices, log probabilities, penalties, stop
strings) run on two replicas, of which one is killed at a random token, told to stop or paused; it comes back, and the
next ones run. Text, calls, log probabilities, reasons and usage must be those of the undisturbed request, and its event
must have the same usage and the same cost, to the pico. `pause_s` is the longest pause between two events of a stream
that was broken, as its client saw it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import signal
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

from msgspec import Struct, field, to_builtins

from tests.e2e.deployment import Deployment, wait_for_figure
from tests.e2e.endless_model import NAME
from tests.e2e.processes import ROOT, command, get
from tests.servers import free_port, postgres_server, redis_server

MODEL = ROOT / "models" / "tool-caller"
HOW = ("kill", "stop", "pause")
_AT_ONCE = 8
"""Several, so that none of them is suspected of the death."""
_WHOLE_PERCENT = 95.0
"""So many answers at least end as they would have."""
_TIMEOUT_S = 180.0
_START_S = 240.0
_PAUSE_S = 20.0
"""Longer than a gateway waits for a word of a silent replica."""
_DRAIN_S = "1"
"""How long a replica that is told to stop goes on with what it has: less than the answers take."""
_TOOL: Any = {
    "type": "function",
    "function": {
        "name": "note",
        "parameters": {
            "type": "object",
            "properties": {"title": {"type": "string"}, "numbers": {"type": "array", "items": {"type": "integer"}}},
            "required": ["title", "numbers"],
        },
    },
}
_SCHEMA: Any = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "values": {"type": "array", "items": {"type": "number"}}},
    "required": ["name", "values"],
    "additionalProperties": False,
}
_KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "penalties": {"presence_penalty": 0.8, "frequency_penalty": 0.4, "logit_bias": {"70": 3}},
    "log probabilities": {"logprobs": True, "top_logprobs": 3},
    "choices": {"n": 3},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": _SCHEMA}}},
    "calls": {"tools": [_TOOL], "tool_choice": "required"},
    "stop": {"stop": ["qz", "xj", "~~"]},
    "choices with log probabilities": {"n": 2, "logprobs": True, "presence_penalty": 0.5},
}


class Said(Struct):
    """What an answer came to, however it was cut into events. `choices`: by number, what each said."""

    status: int = 0
    request: str = ""
    error: str = ""
    choices: dict[int, Any] = field(default_factory=dict)
    usage: Any = None
    done: bool = False
    events: int = 0
    pause_s: float = 0.0

    @property
    def answer(self) -> Any:
        """What must be the same."""
        return self.status, self.error, self.choices, self.usage, self.done

    @property
    def id(self) -> UUID:
        """The request's."""
        return UUID(hex=self.request.removeprefix("req_"))


class Result(Struct):
    """A request that was disturbed, or ran while others were, beside the one that was not."""

    kind: str
    how: str
    expected: Said
    said: Said


def draw(dice: random.Random) -> tuple[str, dict[str, Any]]:
    """A request of random options."""
    kind = dice.choice(list(_KINDS))
    body: dict[str, Any] = {
        "model": NAME,
        "messages": [
            {"role": "user", "content": f"Number {dice.randint(0, 999)}: " + "tell me more. " * dice.choice((1, 40))}
        ],
        "max_tokens": dice.randint(120, 260),
        "temperature": dice.choice((0.0, 0.7, 1.2)),
        "seed": dice.randint(0, 2**31),
        "top_p": dice.choice((1.0, 0.9)),
        "prompt_cache_key": str(dice.random()),
        **_KINDS[kind],
    }
    if dice.random() < 0.8:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return kind, body


def ask(deployment: Deployment, body: dict[str, Any], said: Said) -> None:
    """Send a request, and hear it out."""
    request = urllib.request.Request(
        deployment.base + "/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {deployment.key}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
            said.status, said.request = reply.status, reply.headers["x-request-id"]
            if "stream" not in body:
                _take_whole(json.load(reply), said)
                return
            before = time.monotonic()
            for line in reply:
                if line.startswith(b"data: "):
                    said.events += 1
                    now = time.monotonic()
                    said.pause_s, before = max(said.pause_s, now - before) if said.events > 2 else 0.0, now
                    _take(line[6:].strip(), said)
    except urllib.error.HTTPError as error:
        with error:
            said.status, said.error = error.code, error.read().decode()
    except (OSError, ValueError) as error:
        said.error = said.error or f"{type(error).__name__}: {error}"


def _take_whole(answer: Any, said: Said) -> None:
    said.usage, said.done = answer["usage"], True
    for choice in answer["choices"]:
        message = choice["message"]
        _extend(said, choice["index"], message, choice)


def _take(data: bytes, said: Said) -> None:
    if data == b"[DONE]":
        said.done = True
        return
    chunk = json.loads(data)
    if "error" in chunk:
        said.error = chunk["error"]["message"]
        return
    said.usage = chunk.get("usage") or said.usage
    for choice in chunk["choices"]:
        _extend(said, choice["index"], choice["delta"], choice)


def _extend(said: Said, index: int, delta: Any, choice: Any) -> None:
    so_far = said.choices.setdefault(index, {"text": "", "calls": [], "scores": [], "reason": None})
    so_far["text"] += delta.get("content") or ""
    for number, call in enumerate(delta.get("tool_calls") or ()):
        at = call.get("index", number)
        while len(so_far["calls"]) <= at:
            so_far["calls"].append({"name": "", "arguments": ""})
        for name in ("name", "arguments"):
            so_far["calls"][at][name] += call["function"].get(name) or ""
    so_far["scores"] += (choice.get("logprobs") or {}).get("content") or ()
    so_far["reason"] = choice.get("finish_reason") or so_far["reason"]


class Bench:
    """Two replicas, and requests that they run."""

    def __init__(self, deployment: Deployment, seed: int) -> None:
        self.results: list[Result] = []
        self.disturbances: dict[str, int] = {}
        self._deployment = deployment
        self._dice = random.Random(seed)
        self._back = threading.Thread()
        self._addresses = [f"tcp:127.0.0.1:{free_port()}" for _ in range(2)]
        deployment.env["TURNPIKE_REPLICAS"] = ",".join(self._addresses)

    def start(self) -> None:
        """Start everything."""
        for number in range(2):
            self._start_engine(number)
        self._deployment.start("gateway")
        self._deployment.start("worker")
        self._wait_healthy()

    def _start_engine(self, number: int) -> None:
        flags = ("--listen", self._addresses[number], "--replica-name", f"engine-{number}", "--drain-timeout", _DRAIN_S)
        self._deployment.start(f"engine-{number}", *flags)

    def _wait_healthy(self) -> None:
        """A busy machine takes minutes to start them all."""
        end = time.monotonic() + _START_S
        for number in range(2):
            while True:
                try:
                    wait_for_figure(self._deployment.base, "turnpike_replica_healthy", f"engine-{number}", least=1.0)
                    break
                except AssertionError:
                    if time.monotonic() > end:
                        raise

    def round(self, how: str) -> None:
        """Run some requests undisturbed, and the same ones again while a replica is disturbed; let it come back."""
        drawn = [draw(self._dice) for _ in range(_AT_ONCE)]
        expected = self._run([body for _, body in drawn], lambda saids: None)
        again = [body | {"prompt_cache_key": body["prompt_cache_key"] + "again"} for _, body in drawn]
        self._wait_healthy()

        def disturb(saids: Sequence[Said]) -> None:
            self._wait_for_events(saids)
            # At once, as a supervisor would: a request that was alone there waits for that very replica.
            self._back = threading.Thread(target=self._disturb(how))
            self._back.start()

        said = self._run(again, disturb)
        self._back.join()
        self.results += [
            Result(kind, how, before, after) for (kind, _), before, after in zip(drawn, expected, said, strict=True)
        ]
        self.disturbances[how] = self.disturbances.get(how, 0) + 1

    def _run(self, bodies: Sequence[dict[str, Any]], meanwhile: Callable[[Sequence[Said]], None]) -> list[Said]:
        saids = [Said() for _ in bodies]
        with ThreadPoolExecutor(len(bodies)) as crowd:
            asked = [crowd.submit(ask, self._deployment, body, said) for body, said in zip(bodies, saids, strict=True)]
            meanwhile(saids)
            for one in asked:
                one.result()
        return saids

    def _wait_for_events(self, saids: Sequence[Said]) -> None:
        """Wait until so many events have come, as a rule when all have begun."""
        wanted, end = self._dice.randint(20, 160), time.monotonic() + 30
        while sum(said.events for said in saids) < wanted and time.monotonic() < end:
            time.sleep(0.005)

    def _disturb(self, how: str) -> Callable[[], None]:
        """Disturb a replica; returns how to have it again."""
        number = self._dice.randint(0, 1)
        process = self._deployment.processes[f"engine-{number}"]
        if how == "pause":
            process.popen.send_signal(signal.SIGSTOP)

            def wake_up() -> None:
                time.sleep(_PAUSE_S)
                process.popen.send_signal(signal.SIGCONT)

            return wake_up
        if how == "stop":
            process.popen.send_signal(signal.SIGTERM)
        else:
            process.kill()

        def start_again() -> None:
            with contextlib.suppress(Exception):
                process.popen.wait(30)
            self._start_engine(number)

        return start_again

    def verdict(self) -> dict[str, Any]:
        """What came of all."""
        self._wait_healthy()
        deployment = self._deployment
        for number in range(2):
            name = "turnpike_engine_journal_unacknowledged"
            wait_for_figure(deployment.base, name, f"engine-{number}", most=0.0)
        deployment.wait_settled()
        rows = deployment.query("SELECT * FROM usage_event WHERE corrects IS NULL")
        events = {UUID(int=row.id.int): row for row in rows}
        lost = deployment.query("SELECT cost_pico FROM usage_event WHERE corrects IS NOT NULL")
        billed = ("status", "reason", "cost_pico", "uncached", "output", "count_prompt", "count_computed")
        broken = [one for one in self.results if (event := events.get(one.said.id)) and event.attempt > 1]
        # One that was alone on its replica waits for that one to be back: on a busy machine that may take too long.
        ended = [one for one in self.results if one.said.error]
        wrong = [one for one in self.results if not one.said.error and one.said.answer != one.expected.answer]
        dearer = [
            one
            for one in self.results
            if not one.said.error
            and [getattr(events[one.said.id], name) for name in billed]
            != [getattr(events[one.expected.id], name) for name in billed]
        ]
        pauses = sorted(one.said.pause_s for one in broken if one.said.events)
        audits = {name: command("audit", name, env=deployment.env) for name in ("money", "counts")}
        reconciled = command("reconcile", env=deployment.env)
        return {
            "requests": len(self.results),
            "broken": len(broken),
            "broken_by_kind": {kind: sum(one.kind == kind for one in broken) for kind in _KINDS},
            "disturbances": self.disturbances,
            "ended_by_an_error": len(ended),
            "whole_percent": round(100 * (1 - len(ended) / max(1, len(self.results))), 2),
            "different": len(wrong),
            "billed_differently": len(dearer),
            "lost_attempts": len(lost),
            "billed_for_lost_attempts": sum(row.cost_pico for row in lost),
            "pause_p50_s": round(pauses[len(pauses) // 2], 3) if pauses else 0.0,
            "pause_p99_s": round(pauses[math.ceil(0.99 * len(pauses)) - 1], 3) if pauses else 0.0,
            "pause_undisturbed_p99_s": round(max(one.expected.pause_s for one in self.results), 3),
            "money_is_right": audits["money"].returncode == 0,
            "counts_are_equal": audits["counts"].returncode == 0,
            "reconciled": reconciled.returncode == 0,
            "problems": [one.stdout + one.stderr for one in (*audits.values(), reconciled) if one.returncode],
            "examples": [to_builtins(one) for one in (*wrong, *dearer)[:3]],
        }


def is_right(figures: dict[str, Any]) -> bool:
    """Whether every broken stream went on as if nothing had happened."""
    nothing = ("different", "billed_differently", "billed_for_lost_attempts")
    right = figures["money_is_right"] and figures["counts_are_equal"] and figures["reconciled"]
    return bool(right and figures["whole_percent"] >= _WHOLE_PERCENT and not any(figures[name] for name in nothing))


def run(broken: int, how: Sequence[str], seed: int, progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Disturb replicas until so many requests went on; what came of it."""
    with tempfile.TemporaryDirectory() as folder, postgres_server() as postgres, redis_server() as redis:
        deployment = Deployment(Path(folder), postgres.url, redis.url, MODEL)
        try:
            bench = Bench(deployment, seed)
            bench.start()
            rounds = 0
            while rounds < len(how) or _continued(deployment) < broken:
                bench.round(how[rounds % len(how)])
                rounds += 1
                different = sum(one.said.answer != one.expected.answer for one in bench.results)
                progress(
                    f"{rounds} rounds, {_continued(deployment):.0f} requests went on, {different} answers are different"
                )
            return bench.verdict()
        finally:
            deployment.clean_up()


def _continued(deployment: Deployment) -> float:
    """How many requests went on, as the gateway's metric says."""
    text = get(deployment.base + "/metrics")[1].decode()
    lines = [line for line in text.splitlines() if line.startswith("turnpike_continuations_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.continuations", description=__doc__)
    parser.add_argument("--broken", type=int, default=200, help="until so many requests went on at another replica")
    parser.add_argument("--how", default="kill", help=f"of {','.join(HOW)}, one after the other")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    how = options.how.split(",")
    if not set(how) <= set(HOW):
        parser.error(f"--how: {options.how} is not of {','.join(HOW)}")
    figures = run(options.broken, how, options.seed, lambda text: print(text, file=sys.stderr))
    print(json.dumps(figures, indent=2))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if is_right(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
