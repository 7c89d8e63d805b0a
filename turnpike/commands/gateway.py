"""`turnpike gateway`: run the API processes of a deployment."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import socket
from pathlib import Path

import structlog

from turnpike.command_line import CommandParser
from turnpike.processes import listener
from turnpike.processes.children import AFTER_DRAIN_S, EXIT_TEMPORARY, Child
from turnpike.processes.event_loop import run_role, stop_event
from turnpike.settings.data_folder import gateway_folder, prepare_data_folder, protect_data_folder, read_secrets
from turnpike.settings.loading import to_environment
from turnpike.settings.settings import GATEWAY, Settings

_SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable of prometheus_client that names the folder where processes on one socket keep their metrics
(`gateway.metrics.gateway_metrics`)."""

logger = structlog.get_logger(__name__)


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike gateway`. The parent of several processes passes on its sockets by two hidden flags."""
    parser.runs(gateway, GATEWAY)
    parser.add_argument("--listen-fd", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--metrics-fd", type=int, default=None, help=argparse.SUPPRESS)


def gateway(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike gateway`: one process, or a parent with `--workers` of them on one socket."""
    if arguments.listen_fd is not None:  # the parent has locked the folder and given us a name
        metrics = None if arguments.metrics_fd is None else listener.inherited(arguments.metrics_fd)
        return run_role(_gateway(settings, listener.inherited(arguments.listen_fd), metrics))
    api, metrics = listener.listen(settings), listener.listen_for_metrics(settings)
    with gateway_folder(settings) as own:
        if own.workers > 1:
            return run_role(_gateway_parent(own, api, metrics))
        return run_role(_gateway(own, api, metrics))


async def _gateway(settings: Settings, api: socket.socket, metrics: socket.socket | None) -> int:
    from gateway.app import create_app  # the parent of several processes needs none of these
    from gateway.served_models.registry import ModelRegistry
    from gateway.server import GatewayServer
    from turnpike.admin_services import open_admin_services
    from turnpike.processes.gateway import open_gateway_services, serve_until_signal

    prepare_data_folder(settings)
    protect_data_folder(settings)
    registry = ModelRegistry.load(settings.model_folders, settings.aliases)
    async with (
        open_admin_services(settings, "embedded") as admin,
        open_gateway_services(settings, admin, read_secrets(settings), registry) as services,
    ):
        logger.info("gateway listens", url=listener.url(api), name=services.name)
        server = GatewayServer(create_app(services), internal=metrics)
        await serve_until_signal(server, api)
    return EXIT_TEMPORARY if server.over else 0


async def _gateway_parent(settings: Settings, api: socket.socket, metrics: socket.socket | None) -> int:
    prepare_data_folder(settings)
    protect_data_folder(settings)
    metrics_folder = _empty_folder(settings.data / "metrics" / settings.own_gateway_name)
    environment = to_environment(settings) | {_SHARED_METRICS: str(metrics_folder)}
    descriptors = {"--listen-fd": api.fileno()}
    if metrics is not None:
        descriptors["--metrics-fd"] = metrics.fileno()
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
    # While ours were open, connections would be taken after the last worker has stopped, and hang.
    api.close()
    if metrics is not None:
        metrics.close()
    await asyncio.gather(*(child.stop(settings.drain_timeout + AFTER_DRAIN_S) for child in children))
    stopping.cancel()
    await asyncio.gather(*running)
    return 0


def _empty_folder(path: Path) -> Path:
    """A folder without what an earlier parent's processes left: counters begin at zero with the parent."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True, mode=0o700)
    return path
