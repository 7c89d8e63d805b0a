"""The roles of a deployment beside the replica: gateway and worker; each runs until it is told to stop."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import sys
from collections.abc import Coroutine
from pathlib import Path

import structlog
import uvloop

from turnpike.admin_services import open_admin_services
from turnpike.commands.worker_health import heartbeat_file, renew
from turnpike.processes import listener as listening
from turnpike.processes.children import AFTER_DRAIN_S, EXIT_TEMPORARY, Child
from turnpike.processes.worker import Outage, work
from turnpike.settings.data_folder import gateway_folder, prepare_data_folder, protect_data_folder, read_secrets
from turnpike.settings.settings import Settings, to_environment

_SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"
"""prometheus_client's environment variable: where the workers of one socket keep their figures
(`gateway.metrics.gateway_metrics`)."""

logger = structlog.get_logger(__name__)


def gateway(settings: Settings, listen_fd: int | None = None, metrics_fd: int | None = None) -> int:
    """`turnpike gateway`: one process, or a parent with `--workers` of them on one socket."""
    if listen_fd is not None:  # the parent has the folder, and gave us a name
        inherited = None if metrics_fd is None else listening.inherited(metrics_fd)
        return _run(_gateway(settings, listening.inherited(listen_fd), inherited))
    listener, internal = listening.listen(settings), listening.listen_for_metrics(settings)
    with gateway_folder(settings) as own:
        if own.workers > 1:
            return _run(_gateway_parent(own, listener, internal))
        return _run(_gateway(own, listener, internal))


async def _gateway(settings: Settings, listener: socket.socket, internal: socket.socket | None) -> int:
    from gateway.app import create_app  # noqa: PLC0415  # the parent of workers needs none of these
    from gateway.served_models.registry import ModelRegistry  # noqa: PLC0415
    from gateway.server import GatewayServer  # noqa: PLC0415
    from turnpike.processes.gateway import serve_until_signal, services  # noqa: PLC0415

    prepare_data_folder(settings)
    protect_data_folder(settings)
    registry = ModelRegistry.load(settings.model_folders)
    async with (
        open_admin_services(settings, "embedded") as admin,
        services(settings, admin, read_secrets(settings), registry) as built,
    ):
        logger.info("gateway listens", url=listening.url(listener), name=built.name)
        server = GatewayServer(create_app(built), internal=internal)
        await serve_until_signal(server, listener)
    return EXIT_TEMPORARY if server.over else 0


async def _gateway_parent(settings: Settings, listener: socket.socket, internal: socket.socket | None) -> int:
    prepare_data_folder(settings)
    protect_data_folder(settings)
    metrics = _empty_folder(settings.data / "metrics" / settings.own_gateway_name)
    environment = to_environment(settings) | {_SHARED_METRICS: str(metrics)}
    descriptors = {"--listen-fd": listener.fileno()}
    if internal is not None:
        descriptors["--metrics-fd"] = internal.fileno()
    flags = [word for flag, number in descriptors.items() for word in (flag, str(number))]
    children = [
        Child(
            f"gateway {name}",
            ["gateway", *flags, "--gateway-name", name],
            environment,
            pass_fds=list(descriptors.values()),
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


def worker(settings: Settings) -> int:
    """`turnpike worker`: the billing jobs."""

    async def run() -> int:
        prepare_data_folder(settings)
        protect_data_folder(settings)
        async with open_admin_services(settings, "embedded") as admin:
            logger.info("worker runs")
            outage = Outage()
            tasks = [
                asyncio.create_task(work(admin, settings, outage)),
                asyncio.create_task(renew(heartbeat_file(settings), lambda: outage.problem)),
            ]
            await stop_event().wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
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
