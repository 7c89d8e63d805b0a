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
    """Blocks of the device memory (`hbm`), of host memory (`dram`), and of the disk (`nvme`), by layer group (C4)."""
    dram = engine.scheduler.dram.pool
    tiers: tuple[tuple[Literal["hbm", "dram"], GroupedPool | None], ...] = (("hbm", engine.pool), ("dram", dram))
    loads = [
        TierLoad(tier, group, pool.free_blocks, pool.referenced_blocks, pool.cached_blocks, pool.total)
        for tier, pools in tiers
        for group, pool in enumerate(pools.pools if pools else ())
    ]
    if engine.disk is not None:
        held, most = engine.disk.blocks
        loads += [TierLoad("nvme", group, most - held, 0, held, most) for group in range(len(engine.pool.pools))]
    return tuple(loads)


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
        "turnpike_engine_publishes_blocks": float(engine.input_processor.publishes),
        "turnpike_engine_preemptions_total": scheduler.preemptions,
        "turnpike_engine_swaps_total": scheduler.dram.swaps,
        "turnpike_engine_evicted_blocks_total": engine.pool.evictions,
        "turnpike_engine_service_seconds_total": service.all_given / 1e6,
        "turnpike_engine_service_elsewhere_seconds_total": service.all_heard / 1e6,
        "turnpike_engine_running_requests": engine.running,
        "turnpike_engine_waiting_requests": scheduler.waiting,
        "turnpike_engine_free_blocks": engine.pool.free_blocks,
        "turnpike_engine_cached_blocks": engine.pool.cached_blocks,
        **_tier_metrics(engine),
    }


def _tier_metrics(engine: Engine) -> dict[str, float]:
    scheduler, restores, disk = engine.scheduler, engine.scheduler.restores, engine.disk
    saver, writer = scheduler.saver, scheduler.tiers.writer
    figures: dict[str, float] = {
        "turnpike_engine_dram_blocks_entered_total": scheduler.dram.entered,
        "turnpike_engine_dram_blocks_written_ahead_total": 0 if writer is None else writer.written,
        "turnpike_engine_dram_blocks_damaged_total": scheduler.dram.damaged,
        "turnpike_engine_dram_read_tokens_total": restores.read_tokens["dram"],
        "turnpike_engine_nvme_read_tokens_total": restores.read_tokens["nvme"],
        "turnpike_engine_restoring_requests": len(restores.active),
        "turnpike_engine_restores_late_total": restores.late,
        "turnpike_engine_nvme_fetches_failed_total": restores.fetches.failed,
        "turnpike_engine_nvme_saves_dropped_total": 0 if saver is None else saver.dropped,
        "turnpike_engine_nvme_bytes": 0 if disk is None else disk.store.used_bytes,
    }
    if disk is not None:
        counters = disk.store.counters
        figures |= {
            f"turnpike_engine_nvme_{name}_total": counters.get(name, 0)
            for name in ("reads", "read_bytes", "writes", "written_bytes", "evictions")
        }
        figures["turnpike_engine_nvme_misses_total"] = sum(n for name, n in counters.items() if name[:5] == "miss_")
        refused = sum(n for name, n in counters.items() if name.startswith("refused_"))
        figures["turnpike_engine_nvme_refused_total"] = refused
    return figures
