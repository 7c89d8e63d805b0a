"""What the customers' programs ask, and when: conversations in two dialects, the same for the same seed and day.

Each program shows something else of the cache: a marked system prompt that is read again and again, conversations that
outlive their lease, automatic caching, prompts that have nothing in common, and a prompt that begins with the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gateway.generation_request import Dialect
from storage.database.base import from_instant
from turnpike.demonstration.cast import LARGE, NORDLICHT, OWN, QUILLSTONE, SMALL, TIDEWATER, VISITOR
from turnpike.demonstration.past import DAY, HOUR, MINUTE, SECOND
from turnpike.demonstration.texts import prose, question

Ending = Literal["stop", "length", "left", "failed"]
"""How a request ends; `left`: its client goes away, `failed`: the service fails before the first token."""


class Program(Struct, frozen=True, kw_only=True):
    """A customer's program. `sessions` a day, each of up to `turns` requests, about `pause_s` seconds apart; `system`
    and `document`: words of the prompt's beginning, for all sessions and for one; `ttl`: the class of its markers;
    `from_hour`, `until_hour`: when it works (UTC)."""

    customer: str
    project: str
    key: str
    model: str
    dialect: Dialect
    sessions: int
    turns: int
    pause_s: int
    system: int
    document: int = 0
    documents: int = 0
    ttl: str = ""
    lane: str = ""
    tag: str = ""
    begins_with_time: bool = False
    from_hour: int = 7
    until_hour: int = 19
    weekends: bool = False
    output: int = 220


PROGRAMS = (
    Program(
        customer=NORDLICHT.name, project="editorial", key="editor plug-in", model=LARGE, dialect="anthropic",
        sessions=5, turns=5, pause_s=75, system=900, document=700, documents=9, ttl="5m", tag="lectorate",
    ),
    Program(
        customer=NORDLICHT.name, project="editorial", key="style checker", model=LARGE, dialect="anthropic",
        sessions=3, turns=3, pause_s=420, system=1100, document=250, documents=4, ttl="1h",
    ),
    Program(
        customer=NORDLICHT.name, project="archive-search", key="search front end", model=SMALL, dialect="openai",
        sessions=6, turns=4, pause_s=40, system=600, document=300, documents=14, weekends=True, lane="priority",
        output=120,
    ),
    Program(
        customer=NORDLICHT.name, project="nightly-summaries", key="nightly job", model=SMALL, dialect="openai",
        sessions=10, turns=1, pause_s=30, system=60, document=1200, documents=0, lane="flex", from_hour=1,
        until_hour=3, weekends=True, output=300,
    ),
    Program(
        customer=NORDLICHT.name, project="prototype", key="prototype", model=SMALL, dialect="anthropic",
        sessions=2, turns=2, pause_s=60, system=500, ttl="5m", begins_with_time=True,
    ),
    Program(
        customer=QUILLSTONE.name, project="support-agent", key="live chat", model=LARGE, dialect="anthropic",
        sessions=5, turns=5, pause_s=110, system=1300, ttl="1h", from_hour=14, until_hour=23, weekends=True,
        tag="chat",
    ),
    Program(
        customer=QUILLSTONE.name, project="support-agent", key="e-mail drafts", model=SMALL, dialect="anthropic",
        sessions=5, turns=2, pause_s=200, system=900, ttl="5m", begins_with_time=True, from_hour=14, until_hour=22,
        tag="mail",
    ),
    Program(
        customer=QUILLSTONE.name, project="code-review", key="merge bot", model=LARGE, dialect="openai",
        sessions=6, turns=2, pause_s=25, system=700, document=900, documents=0, from_hour=15, until_hour=23,
        output=400,
    ),
    Program(
        customer=TIDEWATER.name, project="translations", key="translator", model=SMALL, dialect="openai",
        sessions=3, turns=2, pause_s=60, system=400, document=500, documents=3, from_hour=12, until_hour=20,
    ),
    Program(
        customer=VISITOR.name, project="default", key="first steps", model=OWN, dialect="openai",
        sessions=2, turns=3, pause_s=30, system=300, weekends=True, output=60,
    ),
)  # fmt: skip


class Ask(Struct, frozen=True):
    """One request: when, whose, its body, how long its answer is in tokens, and how it ends."""

    at: int
    program: Program
    body: bytes
    output: int
    ending: Ending
    milliseconds: int
    """From its admission to its end."""


def asked_in(seed: int, start: int, end: int) -> Iterator[Ask]:
    """All requests from `start` (included) to `end` (excluded), in order. A day's requests do not depend on which
    other days are asked for."""
    for day in range(start // DAY, -(-end // DAY)):
        asks = [ask for program in PROGRAMS for ask in _of_day(_dice(f"{seed}/{day}/{program.key}"), program, day)]
        yield from (ask for ask in sorted(asks, key=lambda ask: ask.at) if start <= ask.at < end)


def asked_lately(seed: int, now: int) -> list[Ask]:
    """Requests of the last hour and a half, whatever the hour, so that something is always under way; in order."""
    random = _dice(f"{seed}/lately")
    asks = [
        ask
        for program in PROGRAMS
        if program.project != "prototype"
        for _ in range(2)
        for ask in _session(random, program, now - random.randint(4 * MINUTE, 90 * MINUTE))
    ]
    return sorted((ask for ask in asks if ask.at < now - MINUTE), key=lambda ask: ask.at)


def _dice(seed: str) -> Random:
    return Random(seed)  # noqa: S311  # texts and times are no secrets


def _of_day(random: Random, program: Program, day: int) -> Iterator[Ask]:
    weekend = from_instant(day * DAY).weekday() >= 5
    if weekend and not program.weekends:
        return
    sessions = max(1, round(program.sessions * (0.5 if weekend else 1.0) * random.uniform(0.7, 1.3)))
    for _ in range(sessions):
        hour = random.triangular(program.from_hour, program.until_hour)
        yield from _session(random, program, day * DAY + int(hour * HOUR))


def _session(random: Random, program: Program, at: int) -> Iterator[Ask]:
    """A conversation that grows with each turn."""
    system = prose(_dice(program.key), program.system)
    document = ""
    if program.document:
        own = _dice(f"{program.key}/{random.randrange(program.documents)}") if program.documents else random
        document = prose(own, program.document)
    turns: list[tuple[str, str]] = []
    for _ in range(random.randint(1, program.turns)):
        turns.append(("user", question(random)))
        output = max(8, int(random.gauss(program.output, program.output / 4)))
        ending: Ending = "stop"
        if (chance := random.random()) < 0.03:
            ending = "length" if chance < 0.012 else "left" if chance < 0.022 else "failed"
        beginning = f"It is {from_instant(at):%Y-%m-%d %H:%M}. {system}" if program.begins_with_time else system
        body = _body(program, beginning, document, turns, output)
        took = 180 + output * random.randint(9, 14)
        yield Ask(at, program, body, output, ending, took)
        turns.append(("assistant", prose(random, output // 2)))
        at += took * 1000 + int(random.expovariate(1 / program.pause_s) * SECOND)
        if random.random() < 0.06:
            at += random.randint(6, 90) * MINUTE


def _body(program: Program, system: str, document: str, turns: list[tuple[str, str]], output: int) -> bytes:
    make = _anthropic if program.dialect == "anthropic" else _openai
    return msgspec.json.encode(make(program, system, document, turns) | {"max_tokens": output + 64})


def _anthropic(program: Program, system: str, document: str, turns: list[tuple[str, str]]) -> dict[str, Any]:
    marker = {"cache_control": {"type": "ephemeral", "ttl": program.ttl}}
    blocks = [{"type": "text", "text": text} for text in (system, document) if text]
    messages = [{"role": role, "content": [{"type": "text", "text": text}]} for role, text in turns]
    last: dict[str, Any] = messages[-1]["content"][0]  # type: ignore[assignment]
    return {
        "model": program.model,
        "system": [*blocks[:-1], blocks[-1] | marker],
        "messages": [*messages[:-1], {"role": "user", "content": [last | marker]}],
        **({"metadata": {"user_id": program.tag}} if program.tag else {}),
    }


def _openai(program: Program, system: str, document: str, turns: list[tuple[str, str]]) -> dict[str, Any]:
    texts = [("system", f"{system}\n\n{document}" if document else system), *turns]
    return {
        "model": program.model,
        "messages": [{"role": role, "content": text} for role, text in texts],
        **({"service_tier": program.lane} if program.lane else {}),
    }
