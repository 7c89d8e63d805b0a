"""One replica, from the settings: started, or asked how it is.

Nothing of gateway and database is imported: whoever starts a replica waits for it.
"""

from __future__ import annotations

import asyncio
import socket

from turnpike.failures import CommandError
from turnpike.processes.replica_probe import Unreachable, probe
from turnpike.settings import secrets
from turnpike.settings.data_folder import prepare_data_folder, protect_data_folder
from turnpike.settings.settings import SettingError, Settings


def engine(settings: Settings, parent: int | None = None) -> int:
    """`turnpike engine`: one replica."""
    from engine.scheduling.fairness.queue_limits import QueueBounds, bounds  # noqa: PLC0415  # only a replica needs it
    from engine.server.replica import ReplicaOptions, main  # noqa: PLC0415  # imports torch

    prepare_data_folder(settings)
    if parent is None:  # whoever starts one as a child has looked
        protect_data_folder(settings)
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
