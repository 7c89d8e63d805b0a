"""`turnpike engine`: run one replica of a served model, or check one.

Nothing of gateway and database is imported: whoever starts a replica waits for it.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from turnpike.command_line import CommandError, CommandParser
from turnpike.processes.replica_probe import Unreachable, probe
from turnpike.settings import secrets
from turnpike.settings.data_folder import prepare_data_folder, protect_data_folder
from turnpike.settings.settings import ENGINE, SettingError, Settings

if TYPE_CHECKING:
    from engine.startup.options import ForeignOptions, ReplicaOptions


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike engine`."""
    parser.runs(engine, ENGINE)
    parser.add_argument("--health", action="store_true", help="probe the replica at --listen and exit 0 if it is well")


def engine(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike engine`: run a replica; with `--health`, check the one at `--listen`."""
    return probe_engine(settings) if arguments.health else run_engine(settings, arguments.parent_pid)


def run_engine(settings: Settings, parent: int | None = None) -> int:
    """Run one replica until a signal; `parent` is the process that started it as a child, if one did."""
    from engine.server.replica import main  # imports torch

    prepare_data_folder(settings)
    if parent is None:  # who starts one as a child has done so
        protect_data_folder(settings)
    if not settings.listen:
        raise SettingError("listen: say where, as unix:PATH or tcp:HOST:PORT")
    if len(settings.model_folders) != 1:
        raise SettingError("model: a replica serves one model")
    return main(replica_options(settings, secrets.load_link_key(settings.secrets), parent))


def replica_options(settings: Settings, link_key: bytes, parent: int | None = None) -> ReplicaOptions:
    """The options of the replica that serves the first model of these settings."""
    from engine.scheduling.fairness.queue_limits import QueueBounds, bounds  # only a replica needs it
    from engine.startup.options import ReplicaOptions

    return ReplicaOptions(
        model=settings.model_folders[0],
        address=settings.listen,
        data=settings.data / "journal",
        name=settings.replica_name or socket.gethostname(),
        link_key=link_key,
        device=settings.device,
        dtype=settings.dtype,
        quantize=settings.quantize,
        kv_dtype=settings.kv_dtype,
        weights=settings.weights,
        attention=settings.attention_of(0),
        kv_memory=settings.kv_memory,
        swap_share=settings.swap_share,
        dram_memory=settings.dram_memory,
        disk_folder=settings.kv_folder,
        disk_bytes=settings.disk_memory,
        calibration=settings.calibration,
        trials=settings.trials,
        speculation=settings.drafters_of(0),
        draft_model=settings.draft_folder(0),
        max_loras=settings.max_loras,
        lora_memory=settings.lora_memory,
        max_lora_rank=settings.max_lora_rank,
        max_running=settings.max_running,
        token_budget=settings.token_budget,
        context=settings.context,
        drain_s=settings.drain_timeout,
        stall_s=settings.stall_timeout,
        queue_timeouts={
            "interactive": settings.queue_timeout_interactive,
            "standard": settings.queue_timeout_standard,
            "batch": settings.queue_timeout_batch,
        },
        lane_weights=settings.by_lane("lane_weights"),
        token_targets={lane: seconds * 1e6 for lane, seconds in settings.by_lane("inter_token_targets").items()},
        foreign=foreign_options(settings),
        bounds=QueueBounds(
            flow=bounds(settings.by_lane("queue_requests_flow"), settings.by_lane("queue_seconds_flow")),
            lane=bounds(settings.by_lane("queue_requests_lane"), settings.by_lane("queue_seconds_lane")),
            requests=settings.queue_requests,
        ),
        parent_pid=parent,
    )


def foreign_options(settings: Settings) -> ForeignOptions | None:
    """The engine of others that computes the model; None if ours does. Raises SettingError."""
    from engine.startup.options import ForeignOptions

    if not settings.foreign:
        if settings.foreign_url or settings.foreign_key_file or settings.foreign_cache != "shared":
            raise SettingError("foreign: say which engine it is: vllm, sglang or llamacpp")
        return None
    if not settings.foreign_url.startswith(("http://", "https://")):
        raise SettingError("foreign_url: say where the engine answers, as http://HOST:PORT")
    key = ""
    if settings.foreign_key_file:
        try:
            key = Path(settings.foreign_key_file).read_text().strip()
        except OSError as error:
            raise SettingError(f"foreign_key_file: {error}") from error
    return ForeignOptions(settings.foreign, settings.foreign_url, key, settings.foreign_cache == "one-project")


def probe_engine(settings: Settings) -> int:
    """`turnpike engine --health`: 0 if the replica at `--listen` is well."""
    if not settings.listen:
        raise SettingError("listen: say which replica, as unix:PATH or tcp:HOST:PORT")
    try:
        answer = asyncio.run(probe(settings.listen, secrets.load_link_key(settings.secrets)))
    except Unreachable as error:
        raise CommandError(str(error)) from error
    hello, heartbeat = answer.hello, answer.heartbeat
    if heartbeat is None:
        raise CommandError(f"{hello.replica} answers, but sends no heartbeat: is the link key the same?")
    if not answer.advancing:
        raise CommandError(f"{hello.replica} has work, and is still at step {heartbeat.steps}")
    print(
        f"{hello.replica}: {hello.model.name}, epoch {hello.epoch}, step {heartbeat.steps}, "
        f"{heartbeat.running} running, {sum(heartbeat.waiting.values())} waiting"
    )
    return 0
