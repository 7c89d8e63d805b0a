"""What recording a request's times costs the process of a gateway, in µs of its CPU time for a request.

`way`: marks, attempts, and what the task leaves behind; all that a request waits for. `background`: packing and writing
in batches of 500 to a database, and what the settler tells. Each is the median of the rounds, less an empty loop.

    python -m benchmarks.waterfall [--json OUT] [--database sqlite|postgresql]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from gateway.admission.prepared_request import PreparedRequest
from gateway.generation.request_state import Outcome
from gateway.generation.task_trace import TaskTrace
from protocol.requests import Counts, Done, PromptChunk, Timeline
from storage.database import migrate
from storage.database.base import new_id
from storage.database.database import Database
from tests.servers import postgres_server
from waterfall import marks as m
from waterfall.marks import Marks
from waterfall.record import pack
from waterfall.store import Row, WaterfallStore
from waterfall.writer import Entry

ROUND, ROUNDS, BATCH = 2000, 15, 500
_TOLD = Timeline(12, 340, 90_000, 900_000, 0, 0, tuple(PromptChunk(i * 9000, i * 9000 + 8900, 1024) for i in range(8)))
_DONE = Done("r", 1, "stop", Counts(), 1, timeline=_TOLD)
_OK = Outcome("ok", "stop")
_HTTP = (m.AUTH, m.BODY, m.PARSE)
_ADMISSION = (m.RENDER, m.PLAN, m.PRICE)
_REST = (m.READER, m.SPOOL, m.LIMITS, m.END, m.ANSWER)


def prepared() -> PreparedRequest:
    """As much of a prepared request as is looked at."""
    project, tenant = new_id(), new_id()
    return cast(
        PreparedRequest,
        SimpleNamespace(
            request_id=new_id(),
            payer=SimpleNamespace(tenant_id=tenant, project_id=project, key="tp_live_benchmark"),
            generation=SimpleNamespace(lane="standard", surface="openai"),
            model=SimpleNamespace(name="stdlib-qa"),
            prompt=SimpleNamespace(tokens=[0] * 100),
        ),
    )


def way(request: PreparedRequest) -> Entry:
    """All that is recorded while a request is on its way, as endpoint, admission and task do it."""
    context = Marks()
    for what in _HTTP:
        context.mark(what)
    marks = Marks()
    for what in _ADMISSION:
        marks.mark(what)
    marks.follow(context)
    marks.mark(m.LIMITS)
    trace = TaskTrace(marks)
    marks.mark(m.HOLD)
    trace.sent("replica-0")
    marks.mark(m.BEGAN)
    for _ in range(64):  # messages with tokens
        trace.tokens()
    trace.done(_DONE)
    for what in _REST:
        marks.mark(what)
    marks.answered = True
    return trace.entry(request, _OK, 64, streamed=True, held=True)


def _median_us(work: Callable[[], Any]) -> float:
    """CPU µs of one call."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time_ns()
        for _ in range(ROUND):
            work()
        rounds.append((time.process_time_ns() - began) / ROUND / 1000)
    return statistics.median(rounds)


def measure_way() -> float:
    """CPU µs of a request's way."""
    request = prepared()
    return _median_us(lambda: way(request)) - _median_us(lambda: None)


async def measure_background(url: str) -> dict[str, float]:
    """CPU µs of packing and of writing one request, threads of the driver included; and bytes of a record."""
    await migrate.upgrade(url)
    database = await Database.open(url)
    store, rounds, size = WaterfallStore(database, 86_400), [], 0
    try:
        for _ in range(ROUNDS):
            entries = [way(prepared()) for _ in range(BATCH)]
            began = time.process_time_ns()
            rows = []
            for entry in entries:
                entry.marks.mark(m.SETTLE)
                record = pack(entry.complete())
                size = len(record)
                rows.append(Row(new_id(), entry.tenant_id, entry.project_id, entry.marks.received_at, record))
            await store.write(rows)
            rounds.append((time.process_time_ns() - began) / BATCH / 1000)
    finally:
        await database.close()
    return {"background_us": statistics.median(rounds), "record_bytes": float(size)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    arguments = parser.parse_args()
    figures = {"way_us": measure_way()}
    with tempfile.TemporaryDirectory() as folder:
        server = postgres_server() if arguments.database == "postgresql" else nullcontext()
        with server as running:
            url = f"sqlite:///{folder}/bench.db" if running is None else running.url
            figures |= asyncio.run(measure_background(url))
    for name, figure in figures.items():
        print(f"{name:>14} {figure:8.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"database": arguments.database, **figures}))


if __name__ == "__main__":
    main()
