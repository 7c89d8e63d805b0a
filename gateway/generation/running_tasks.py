"""The requests of this worker that run: started here, drained at a stop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from uuid import UUID

import structlog

from gateway.admission.prepared_request import Payer, PreparedRequest
from gateway.errors import ClientLeft, SuspendedError, Unavailable
from gateway.generation.answer_parts import AnswerParts
from gateway.generation.dependencies import GenerationDependencies
from gateway.generation.generation_task import GenerationTask
from gateway.limits.permit import AskedPermit

log = structlog.get_logger("gateway.generation.running_tasks")

_AFTER_INTERRUPT_S = 10.0
MOST_WAITING = 64
"""Requests of one tenant that wait for a replica at once. Their prompts are held meanwhile."""


class RunningTasks:
    """The tasks of all requests that run. While `draining`, no request is started. `check_payer` raises the error for
    who may start nothing now; `check_key` does for a key that has ended since it asked, and raises DatabaseUnavailable.
    `most_waiting`: requests that wait at once for a replica.
    """

    def __init__(
        self,
        deps: GenerationDependencies,
        check_payer: Callable[[Payer], None],
        check_key: Callable[[Payer], Awaitable[None]],
        most_waiting: int = 1024,
    ) -> None:
        self.draining = False
        self.check_key = check_key
        self._check_payer = check_payer
        self._deps = deps
        self._running: dict[GenerationTask, asyncio.Task[None]] = {}
        self._by_id: dict[UUID, GenerationTask] = {}
        self._waiting: Counter[UUID] = Counter()
        self._most_waiting = most_waiting

    def __len__(self) -> int:
        return len(self._running)

    def check(self) -> None:
        """Raise Unavailable if nothing new can be taken now, whatever it is."""
        if self.draining:
            raise _stopping()
        if self._deps.disk.full:
            raise Unavailable("The gateway's disk is full; try again shortly.", retry_after=5.0)
        if self._deps.recorder.failing:
            raise Unavailable("Usage cannot be recorded at present; try again shortly.", retry_after=5.0)

    def check_model(self, model: str) -> None:
        """Raise Unavailable if no request to this served model can be taken now."""
        self.check()
        self._deps.admission.check()
        self._deps.fleet.candidates(model)

    async def wait_for_replica(self, request: PreparedRequest, gone: Callable[[], bool]) -> None:
        """Wait for `RequestTimeouts.start` at most while no replica of its served model is healthy, as while the only
        one is started again, or the first one from zero. Nothing is held yet, and it counts as backlog. Raises
        Unavailable where it has waited in vain, and at once where `most_waiting` requests wait, or `MOST_WAITING` of
        its tenant; ClientLeft once its client is `gone`."""
        fleet, model, tenant = self._deps.fleet, request.model.name, request.payer.tenant_id
        if fleet.healthy(model) or fleet.disks_full(model):
            return
        if self._waiting.total() >= self._most_waiting or self._waiting[tenant] >= MOST_WAITING:
            raise Unavailable(
                f"No replica of the model {model!r} is ready, and {self._waiting.total()} requests wait for one "
                "already; try again shortly.",
                retry_after=5.0,
            )
        self._waiting[tenant] += 1
        tokens = len(request.prompt.tokens)
        fleet.routing.wait_at_gateway(model, tokens)
        try:
            timeout_s = self._deps.admission.timeouts.start
            ready = await fleet.wait_for(
                model, timeout_s, unless=lambda: gone() or self.draining or bool(fleet.disks_full(model))
            )
            if gone() and not self.draining:  # which ends connections too
                raise ClientLeft("The client disconnected while its request waited for a replica.")
            if ready is None and not self.draining and not fleet.disks_full(model):
                raise Unavailable(
                    f"No replica of the model {model!r} was ready within {timeout_s:g} s; try again shortly.",
                    retry_after=5.0,
                )
        finally:
            fleet.routing.wait_at_gateway(model, -tokens)
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant]

    def start(
        self,
        prepared: PreparedRequest,
        *,
        streamed: bool,
        permit: AskedPermit | None = None,
        parts: AnswerParts | None = None,
    ) -> GenerationTask:
        """Run a request. `permit`: what its limits let through, or are asked for. `parts`: those that are answered with
        it. Raises Unavailable while draining, or while the disk is full or usage cannot be recorded; SuspendedError."""
        self._check_payer(prepared.payer)
        self.check_model(prepared.model.name)  # a request that cannot run is refused before it holds money
        self._deps.admission.enter()
        task = GenerationTask(self._deps, prepared, streamed=streamed, permit=permit, parts=parts)
        running = self._running[task] = asyncio.create_task(task.run())
        self._by_id[prepared.request_id] = task
        running.add_done_callback(lambda _: self._ended(task))
        return task

    def _ended(self, task: GenerationTask) -> None:
        self._running.pop(task, None)
        self._by_id.pop(task.prepared.request_id, None)

    def find(self, request_id: UUID) -> GenerationTask | None:
        """The request of this id, if it runs."""
        return self._by_id.get(request_id)

    def of_tenant(self, tenant_id: UUID) -> list[GenerationTask]:
        """What runs for a tenant, the oldest first."""
        return [task for task in self._running if task.prepared.payer.tenant_id == tenant_id]

    def client_left(self, task: GenerationTask, why: str = "client") -> None:
        """The connection is gone. While draining the server may have closed it: then it is not the client's doing."""
        if self.draining:
            task.interrupt(_stopping())
        task.delivery.leave(why)

    def end_all_of(self, tenant_id: UUID, project_id: UUID | None) -> int:
        """End what runs for a tenant or one of its projects, which was suspended; how many requests. What was
        delivered of them is billed."""
        ended = 0
        for task in list(self._running):
            payer = task.prepared.payer
            if payer.tenant_id == tenant_id and project_id in (None, payer.project_id):
                task.interrupt(SuspendedError("tenant" if project_id is None else "project"))
                ended += 1
        log.info("suspended", tenant_id=str(tenant_id), project_id=str(project_id or ""), ended=ended)
        return ended

    def begin_drain(self) -> None:
        """Take nothing new from now on."""
        if not self.draining:
            self.draining = True
            log.info("draining", requests=len(self._running))

    async def drain(self, timeout: float) -> None:  # noqa: ASYNC109  # not for the caller: the time that streams get
        """Let what runs finish for `timeout` seconds; then interrupt it, and leave what still hangs to recovery."""
        self.begin_drain()
        await self._wait(timeout)
        if self._running:
            log.warning("interrupting requests that did not end in time", requests=len(self._running))
            for task in list(self._running):
                task.interrupt(_stopping())
            await self._wait(_AFTER_INTERRUPT_S)
        running = list(self._running.values())
        for asyncio_task in running:
            asyncio_task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _wait(self, seconds: float) -> None:
        """Wait for all requests but those that are `lost`: their word may come later than there is time for."""
        end = asyncio.get_running_loop().time() + seconds
        while waiting := [running for task, running in self._running.items() if task.state.phase != "lost"]:
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                return
            await asyncio.wait(waiting, timeout=min(left, 0.25), return_when=asyncio.FIRST_COMPLETED)


def _stopping() -> Unavailable:
    return Unavailable("This gateway is stopping; try again.", retry_after=1.0)
