"""The roles of a deployment: gateway, engine, worker; each runs until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
import sys
from collections.abc import Coroutine
from pathlib import Path

import structlog
import uvloop

from turnpike import listening, secrets
from turnpike.children import AFTER_DRAIN_S, Child
from turnpike.failures import CommandError
from turnpike.office import opened, prepare_data_folder, read_secrets
from turnpike.probe import Unreachable, probe
from turnpike.settings import SettingError, Settings, to_environment
from turnpike.worker import work

_SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"
"""prometheus_client's environment variable: where the workers of one socket keep their figures (`gateway.metrics`)."""

logger = structlog.get_logger(__name__)


def gateway(settings: Settings, listen_fd: int | None = None) -> int:
    """`turnpike gateway`: one process, or a parent with `--workers` of them on one socket."""
    listener = listening.listen(settings) if listen_fd is None else listening.inherited(listen_fd)
    if settings.workers > 1 and listen_fd is None:
        return _run(_gateway_parent(settings, listener))
    return _run(_gateway(settings, listener))


async def _gateway(settings: Settings, listener: socket.socket) -> int:
    from gateway.app import create_app  # noqa: PLC0415  # the parent of workers needs none of these
    from gateway.registry import Registry  # noqa: PLC0415
    from gateway.server import GatewayServer  # noqa: PLC0415
    from turnpike.gateway_process import serve_until_signal, services  # noqa: PLC0415

    registry = Registry.load(settings.model_folders)
    async with opened(settings) as office, services(settings, office, read_secrets(settings), registry) as built:
        logger.info("gateway listens", url=listening.url(listener), name=built.name)
        await serve_until_signal(GatewayServer(create_app(built)), listener)
    return 0


async def _gateway_parent(settings: Settings, listener: socket.socket) -> int:
    prepare_data_folder(settings)
    metrics = _empty_folder(settings.data / "metrics" / settings.own_gateway_name)
    environment = to_environment(settings) | {_SHARED_METRICS: str(metrics)}
    descriptor = listener.fileno()
    children = [
        Child(
            f"gateway {name}",
            ["gateway", "--listen-fd", str(descriptor), "--gateway-name", name],
            environment,
            pass_fds=[descriptor],
        )
        for name in map(settings.worker_name, range(settings.workers))
    ]
    stop = stop_event()
    running = [asyncio.create_task(child.run()) for child in children]
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([*running, stopping], return_when=asyncio.FIRST_COMPLETED)
    await asyncio.gather(*(child.stop(settings.drain_timeout + AFTER_DRAIN_S) for child in children))
    stopping.cancel()
    await asyncio.gather(*running)
    return 0


def _empty_folder(path: Path) -> Path:
    """A folder without what an earlier parent's workers left: counters begin at zero with the parent."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True, mode=0o700)
    return path


def engine(settings: Settings, parent: int | None = None) -> int:
    """`turnpike engine`: one replica."""
    from engine.replica import ReplicaOptions, main  # noqa: PLC0415  # imports torch
    from engine.scheduling.queue_bounds import QueueBounds, bounds  # noqa: PLC0415  # only a replica needs it

    prepare_data_folder(settings)
    if not settings.listen:
        raise SettingError("listen: say where, as unix:PATH or tcp:HOST:PORT")
    if len(settings.model_folders) != 1:
        raise SettingError("model: a replica serves one model")
    options = ReplicaOptions(
        model=settings.model_folders[0],
        address=settings.listen,
        data=settings.data / "journal",
        name=settings.replica_name or socket.gethostname(),
        link_key=secrets.load(settings.secrets).link_key,
        device=settings.device,
        dtype=settings.dtype,
        quantize=settings.quantize,
        kv_dtype=settings.kv_dtype,
        weights=settings.weights,
        kv_memory=settings.kv_memory,
        swap_share=settings.swap_share,
        max_running=settings.max_running,
        token_budget=settings.token_budget,
        context=settings.context,
        drain_s=settings.drain_timeout,
        stall_s=settings.stall_timeout,
        patience={
            "interactive": settings.queue_timeout_interactive,
            "standard": settings.queue_timeout_standard,
            "batch": settings.queue_timeout_batch,
        },
        max_waiting=settings.queue_requests,
        lane_weights=settings.by_lane("lane_weights"),
        token_targets={lane: seconds * 1e6 for lane, seconds in settings.by_lane("inter_token_targets").items()},
        bounds=QueueBounds(
            flow=bounds(settings.by_lane("queue_requests_flow"), settings.by_lane("queue_seconds_flow")),
            lane=bounds(settings.by_lane("queue_requests_lane"), settings.by_lane("queue_seconds_lane")),
        ),
        parent_pid=parent,
    )
    return main(options)


def probe_engine(settings: Settings) -> int:
    """`turnpike engine --health`: 0 if the replica at `--listen` is well."""
    if not settings.listen:
        raise SettingError("listen: say which replica, as unix:PATH or tcp:HOST:PORT")
    try:
        found = asyncio.run(probe(settings.listen, secrets.load(settings.secrets).link_key))
    except Unreachable as error:
        raise CommandError(str(error)) from error
    if found.beat is None:
        raise CommandError(f"{found.hello.replica} answers, but sends no beat: is the link key the same?")
    if not found.advancing:
        raise CommandError(f"{found.hello.replica} has work, and is still at step {found.beat.steps}")
    print(
        f"{found.hello.replica}: {found.hello.model.name}, epoch {found.hello.epoch}, step {found.beat.steps}, "
        f"{found.beat.running} running, {sum(found.beat.waiting.values())} waiting"
    )
    return 0


def worker(settings: Settings) -> int:
    """`turnpike worker`: the billing jobs."""

    async def run() -> int:
        async with opened(settings) as office:
            logger.info("worker runs")
            task = asyncio.create_task(work(office, settings))
            await stop_event().wait()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        return 0

    return _run(run())


def stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    event = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, event.set)
    return event


def _run(role: Coroutine[None, None, int]) -> int:
    """Run a role on uvloop to its end; its exit status."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status = runner.run(role)
    sys.stdout.flush()
    return status
