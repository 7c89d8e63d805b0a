"""Decides which requests are traced, and sends their spans to a collector in the background.

A request is traced by chance (`ratio`), and always if it failed by our fault or its first token came late: that is
decided at its end, since its spans are made of marks that exist anyway. Nobody waits for the exporter. What it has no
room for, or what the collector does not take, is left out and counted.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

import httpx
import structlog
from msgspec import Struct

from protocol.trace_context import TraceContext
from storage.backoff import Backoff
from tracing import names
from tracing.options import TraceOptions
from tracing.otlp import CONTENT_TYPE, encoded_span, export_request
from tracing.spans import RequestFacts, TracedRequest, new_span_id, new_trace_id, spans_of
from waterfall.marks import FIRST_TOKEN, SETTLE, Marks
from waterfall.writer import Entry

log = structlog.get_logger("tracing.exporter")

MOST_WAITING = 2048
"""Requests in memory that are not sent yet. One takes about 2 KB."""
MOST_REFUSED = 256
"""Of them, requests that were refused: who sends nonsense takes no room from others."""
_BATCH = 64
_AT_A_TIME = 8
"""Requests whose spans are written without a pause for others."""
_GATHER_S = 0.5
_COMPLETE_S = 15.0
"""How long after its end a request is waited for to be answered and settled."""
_TIMEOUT_S = 10.0
_ATTEMPTS = 5
"""How often a batch is offered; then it is left out, so that newer ones are not."""
_STOP_S = 3.0
_AGAIN = frozenset({429, 502, 503, 504})
"""The answers of a collector after which OTLP lets a batch be sent again."""


class _Waiting(Struct):
    entry: Entry
    context: TraceContext
    parent_id: str
    facts: RequestFacts


class Traces:
    """The traces of one gateway worker, which is called `name`. `on_traced` is told of each number of requests that
    were `sent` to the collector, or `dropped`."""

    def __init__(
        self,
        options: TraceOptions,
        name: str,
        version: str = "",
        on_traced: Callable[[str, int], None] = lambda _, __: None,
    ) -> None:
        self.options = options
        self.on_traced = on_traced
        self._resource: Mapping[str, str] = {
            names.SERVICE_NAME: "turnpike-gateway",
            names.SERVICE_INSTANCE: name,
            names.SERVICE_VERSION: version,
        }
        self._headers = dict(options.headers)
        encrypted = options.endpoint.startswith("https:")  # reading all authorities' certificates takes 20 ms
        self._client = httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False, follow_redirects=False, verify=encrypted)
        self._waiting: dict[UUID, _Waiting] = {}
        """Those that have ended, the oldest first."""
        self._refused = 0
        self._task: asyncio.Task[None] | None = None
        self._hurried = asyncio.Event()
        self._away = False

    def begin(self, marks: Marks, caller: TraceContext | None = None, *, trusted: bool = False) -> TraceContext:
        """Give a request its place in a trace: the caller's trace if there is one, else a new one. Only a caller that
        is `trusted` decides with its flag whether it is traced."""
        sampled = caller.sampled if caller is not None and trusted else random.random() < self.options.ratio  # noqa: S311
        trace_id = new_trace_id() if caller is None else caller.trace_id
        context = marks.trace = TraceContext(trace_id, new_span_id(), sampled)
        marks.caller = "" if caller is None else caller.span_id
        return context

    def note(self, entry: Entry, *, failed: bool, facts: Callable[[], RequestFacts]) -> None:
        """A request has ended; send its spans later, if it is one that is traced."""
        context = entry.marks.trace
        if context is None or not (context.sampled or failed or self._is_slow(entry.marks)):
            return
        full = len(self._waiting) >= MOST_WAITING or (entry.refused and self._refused >= MOST_REFUSED)
        if full or entry.request_id in self._waiting:
            self.on_traced("dropped", 1)
            return
        self._refused += entry.refused
        self._waiting[entry.request_id] = _Waiting(entry, context, entry.marks.caller, facts())
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def _is_slow(self, marks: Marks) -> bool:
        """Whether its first token came late; without one, whether it has taken so long."""
        at = marks.at
        for index in range(0, len(at), 2):
            if at[index] == FIRST_TOKEN:
                return at[index + 1] - at[1] > self.options.slow * 1e9
        return at[-1] - at[1] > self.options.slow * 1e9

    def settled(self, request_ids: Iterable[UUID]) -> None:
        """These have been settled just now."""
        for request_id in request_ids:
            if (waiting := self._waiting.get(request_id)) is not None and waiting.entry.settles:
                waiting.entry.settles = False
                waiting.entry.marks.mark(SETTLE)

    async def stop(self) -> None:
        """Send what waits, for a moment."""
        self._hurried.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_STOP_S)
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
        await self._client.aclose()

    async def _run(self) -> None:
        try:
            while self._waiting:
                if not self._hurried.is_set():
                    await self._pause(_GATHER_S)
                if batch := self._ready():
                    await self._send(batch)
        except Exception:
            log.exception("traces are left out", requests=len(self._waiting))
            self.on_traced("dropped", len(self._waiting))
            self._waiting.clear()
            self._refused = 0
        finally:
            self._task = None

    async def _send(self, batch: list[_Waiting]) -> None:
        for one in batch:
            del self._waiting[one.entry.request_id]
            self._refused -= one.entry.refused
        spans: list[bytes] = []
        for at, one in enumerate(batch, 1):
            spans += (encoded_span(span) for span in spans_of(_traced(one)))
            if at % _AT_A_TIME == 0:
                await asyncio.sleep(0)
        outcome = "sent" if await self._offer(export_request(self._resource, spans)) else "dropped"
        self.on_traced(outcome, len(batch))

    async def _offer(self, body: bytes) -> bool:
        """Whether the collector took it."""
        backoff = Backoff()
        cause = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                await backoff.wait(self._hurried)
            try:
                answer = await self._client.post(
                    self.options.endpoint.rstrip("/") + "/v1/traces",
                    content=body,
                    headers={**self._headers, "content-type": CONTENT_TYPE},
                )
            except httpx.HTTPError as error:
                cause = type(error).__name__
            else:
                if answer.is_success:
                    self._away = False
                    return True
                cause = f"status {answer.status_code}"
                if answer.status_code not in _AGAIN:
                    break
            if self._hurried.is_set():
                break
        if not self._away:
            log.warning("the collector takes no traces", endpoint=self.options.endpoint, cause=cause)
        self._away = True
        return False

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._hurried.wait()
        except TimeoutError:
            return

    def _ready(self) -> list[_Waiting]:
        """Those that nothing more will be learned of, a batch at most."""
        hurried, latest = self._hurried.is_set(), time.monotonic() - _COMPLETE_S
        batch: list[_Waiting] = []
        for one in self._waiting.values():
            entry = one.entry
            if hurried or entry.ended < latest or (entry.marks.answered and not entry.settles):
                batch.append(one)
                if len(batch) == _BATCH:
                    break
        return batch


def _traced(one: _Waiting) -> TracedRequest:
    entry = one.entry
    return TracedRequest(
        one.context, one.parent_id, entry.request_id, entry.tenant_id, entry.project_id, entry.complete(), one.facts
    )
