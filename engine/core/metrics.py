"""What an engine says of itself in each heartbeat: its queues, its memory, what it has done."""

from __future__ import annotations

from typing import Literal

from engine.core.engine import Engine
from prompt_cache.kv.grouped_pool import GroupedPool
from protocol.replicas import TierLoad


def waiting_by_lane(engine: Engine) -> dict[str, int]:
    """Requests without KV blocks, by lane."""
    lanes: dict[str, int] = {}
    for group in (engine.scheduler.queue.waiting(), engine.scheduler.parked.values()):
        for request in group:
            lanes[request.lane] = lanes.get(request.lane, 0) + 1
    return lanes


def memory_load(engine: Engine) -> tuple[TierLoad, ...]:
    """Blocks of the device memory (`hbm`), and of the swap memory (`dram`), by layer group (C4)."""
    swap = engine.scheduler.swap.pool
    tiers: tuple[tuple[Literal["hbm", "dram"], GroupedPool | None], ...] = (("hbm", engine.pool), ("dram", swap))
    return tuple(
        TierLoad(tier, group, pool.free_blocks, pool.referenced_blocks, pool.cached_blocks, pool.total)
        for tier, pools in tiers
        for group, pool in enumerate(pools.pools if pools else ())
    )


def engine_metrics(engine: Engine) -> dict[str, float]:
    """Counters and gauges by Prometheus name."""
    totals, scheduler, service = engine.outputs.totals, engine.scheduler, engine.fairness.service
    return {
        "turnpike_engine_steps_total": engine.steps,
        "turnpike_engine_computed_tokens_total": totals["computed"],
        "turnpike_engine_read_tokens_total": totals["read"],
        "turnpike_engine_output_tokens_total": totals["output"],
        "turnpike_engine_recomputed_tokens_total": totals["recomputed"],
        "turnpike_engine_requests_finished_total": totals["finished"],
        "turnpike_engine_requests_rejected_total": totals["rejected"],
        "turnpike_engine_requests_failed_total": totals["errors"],
        "turnpike_engine_quarantined_inputs": len(engine.quarantine),
        "turnpike_engine_preemptions_total": scheduler.preemptions,
        "turnpike_engine_swaps_total": scheduler.swap.kept,
        "turnpike_engine_evicted_blocks_total": engine.pool.evictions,
        "turnpike_engine_service_seconds_total": service.all_given / 1e6,
        "turnpike_engine_service_elsewhere_seconds_total": service.all_heard / 1e6,
        "turnpike_engine_running_requests": engine.running,
        "turnpike_engine_waiting_requests": scheduler.waiting,
        "turnpike_engine_free_blocks": engine.pool.free_blocks,
        "turnpike_engine_cached_blocks": engine.pool.cached_blocks,
    }
