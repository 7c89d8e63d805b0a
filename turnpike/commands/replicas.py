"""`turnpike replicas`: what holds each replica back, what its tokens cost, and which of them take no more requests."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from turnpike.api.actions import add_action
from turnpike.command_line import CommandParser

if TYPE_CHECKING:
    from gateway.fleet.replica_rates import ReplicaRates
    from turnpike.processes.replica_probe import Probe
    from turnpike.settings.settings import Settings

_LONGEST_S = 600


def add_arguments(parser: CommandParser) -> None:
    """Declare `turnpike replicas …`."""
    drained = "{name} {state}: {requests} requests run there"
    reason = {"reason": "why, for the audit log"}
    for action, text, operation in (
        ("drain", "let a replica take no more requests, and run on what it has", "drain_replica"),
        ("resume", "let a drained replica take requests again", "resume_replica"),
    ):
        add_action(parser, action, text, operation, arguments=("replica",), flags=reason, show=drained)
    text = "drain the replicas of a model that are missed least: those whose leases end soonest"
    flags = {"count": "how many; default: 1", "to_zero": "also the last one", **reason}
    add_action(parser, "scale-in", text, "scale_in", arguments=("model",), flags=flags, show=_scaled_in)
    text = "say of each replica what holds it back, by what it does while the command watches"
    explaining = parser.add_action("explain", text, explain)
    explaining.add_argument("--seconds", type=float, default=10.0, help="how long to watch; default: 10")
    explaining.add_format("json")


def explain(settings: Settings, arguments: argparse.Namespace) -> int:
    """`turnpike replicas explain`: 0, or 1 if a replica cannot be reached."""
    return asyncio.run(_explain(settings, arguments))


async def _explain(settings: Settings, arguments: argparse.Namespace) -> int:
    from turnpike.processes.replica_probe import ask_replicas

    loop = asyncio.get_running_loop()
    first, began = await ask_replicas(settings), loop.time()
    await asyncio.sleep(min(max(arguments.seconds, 1.0), _LONGEST_S))
    last, seconds = await ask_replicas(settings), loop.time() - began
    told = [_told(settings, address, first.get(address), probe, seconds) for address, probe in last.items()]
    if arguments.format == "json":
        print(msgspec.json.encode(told).decode())
    else:
        print("\n\n".join(_lines(one) for one in told))
    return int(any(probe is None for probe in last.values()))


def _scaled_in(answer: Any, _: argparse.Namespace) -> str:
    lines = []
    for one in answer["leaving"]:
        until = "" if one["leases_end_at"] is None else f" until {one['leases_end_at']}"
        lines.append(
            f"{one['name']} {one['state']}: {one['requests']} requests run there, {one['leased_blocks']} blocks under "
            f"leases{until}, {one['moved_prefixes']} prefixes given another home"
        )
    return "\n".join([*lines, f"{answer['staying']} replicas stay"])


class _Told(msgspec.Struct):
    address: str
    replica: str | None
    model: str | None
    held_back_by: str
    rates: ReplicaRates | None
    hour_cost: float
    currency: str
    adapters: _Adapters | None = None


class _Adapters(msgspec.Struct):
    """How many adapters a replica has ready, in how many slots, and how many in host memory."""

    ready: int
    slots: int
    in_host_memory: int


def _told(settings: Settings, address: str, first: Probe | None, last: Probe | None, seconds: float) -> _Told:
    from gateway.fleet.bottlenecks import bottleneck
    from gateway.fleet.replica_rates import rates_between
    from protocol.replicas import DISK_FULL, DRAINING

    costs = settings.device_costs
    if last is None:
        sentence = bottleneck("down", None, None, None)
        return _Told(address, None, None, sentence, None, costs.replica_hour, costs.currency)
    rates = None
    before = None if first is None or first.hello.epoch != last.hello.epoch else first.heartbeat
    if before is not None and last.heartbeat is not None:
        rates = rates_between(before.metrics, last.heartbeat.metrics, seconds, costs)
    metrics = {} if last.heartbeat is None else last.heartbeat.metrics
    state = "healthy" if last.advancing else "stalled"
    state = "draining" if metrics.get(DRAINING) else "disk_full" if metrics.get(DISK_FULL) else state
    sentence = bottleneck(state, last.hello, last.heartbeat, rates)
    name, model = last.hello.replica, last.hello.model.name
    adapters = _adapters(metrics)
    return _Told(address, name, model, sentence, rates, costs.replica_hour, costs.currency, adapters)


def _adapters(metrics: Mapping[str, float]) -> _Adapters | None:
    names = ("adapters_in_slots", "adapter_slots", "adapters_in_host_memory")
    ready, slots, held = (int(metrics.get(f"turnpike_engine_{name}", 0)) for name in names)
    return _Adapters(ready, slots, held) if slots else None


def _lines(told: _Told) -> str:
    lines = [f"{told.replica or told.address}{f' ({told.model})' if told.model else ''}: {told.held_back_by}"]
    if (rates := told.rates) is not None:
        lines += [
            f"  at work {rates.busy:.0%} of {rates.seconds:.0f} s; a second: {rates.steps:.1f} steps, "
            f"{rates.computed:.0f} prompt tokens computed, {rates.read:.0f} read from KV, {rates.output:.0f} drawn",
            f"  bandwidth used (MBU) {_share(rates.bandwidth)}, arithmetic (MFU) {_share(rates.arithmetic)}",
        ]
        if told.hour_cost:
            million = "nothing was done" if rates.million_cost is None else f"{rates.million_cost:.4f} {told.currency}"
            lines.append(f"  {told.hour_cost:.2f} {told.currency} an hour; a million tokens: {million}")
    if (adapters := told.adapters) is not None:
        lines.append(
            f"  adapters: {adapters.ready} ready in {adapters.slots} slots, {adapters.in_host_memory} in host memory"
        )
    return "\n".join(lines)


def _share(share: float | None) -> str:
    return "not known (set --device-bandwidth and --device-teraflops)" if share is None else f"{share:.1%}"
