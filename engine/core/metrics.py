"""What an engine says of itself in each heartbeat: its queues, its memory, what it has done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.attention_backends.chooser import NAMES as FAST_NAMES
from engine.options import DRAFT_MODEL, DRAFTERS, WEIGHT_DRAFTERS
from engine.speculation.speculator import OFF
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import GroupedPool
from protocol.replicas import (
    DECODE_ROW_S,
    DECODE_STEP_S,
    LEASED_BLOCKS,
    LEASES_END,
    PROMPT_CHUNK,
    PROMPT_TOKEN_S,
    TIERS,
    Heartbeat,
    Tier,
    TierLoad,
)

if TYPE_CHECKING:
    from engine.core.engine import Engine


def heartbeat(engine: Engine) -> Heartbeat:
    """What gateways are told each second."""
    return Heartbeat(
        steps=engine.steps,
        running=engine.running,
        waiting=waiting_by_lane(engine),
        memory=memory_load(engine),
        service=engine.service(),
        metrics=engine_metrics(engine),
        adapters=engine.scheduler.adapters.residency.report(),
    )


def waiting_by_lane(engine: Engine) -> dict[str, int]:
    """Requests without KV blocks, by lane."""
    lanes: dict[str, int] = {}
    for group in (engine.scheduler.queue.waiting(), engine.scheduler.parked.values()):
        for request in group:
            lanes[request.lane] = lanes.get(request.lane, 0) + 1
    return lanes


def memory_load(engine: Engine) -> tuple[TierLoad, ...]:
    """Blocks of the device memory (`hbm`), of host memory (`dram`), and of the tiers behind it, by layer group (C4)."""
    dram = engine.scheduler.tiers.dram.pool
    pools_of: tuple[tuple[Tier, GroupedPool | None], ...] = (("hbm", engine.pool), ("dram", dram))
    loads = [
        TierLoad(name, group, pool.free_blocks, pool.referenced_blocks, pool.cached_blocks, pool.total)
        for name, pools in pools_of
        for group, pool in enumerate(pools.pools if pools else ())
    ]
    for tier in engine.tiers:
        held, most = tier.blocks
        loads += [TierLoad(tier.name, group, most - held, 0, held, most) for group in range(len(engine.pool.pools))]
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
        "turnpike_engine_swaps_total": scheduler.tiers.dram.swaps,
        "turnpike_engine_evicted_blocks_total": engine.pool.evictions,
        "turnpike_engine_service_seconds_total": service.all_given / 1e6,
        "turnpike_engine_service_elsewhere_seconds_total": service.all_heard / 1e6,
        "turnpike_engine_running_requests": engine.running,
        "turnpike_engine_waiting_requests": scheduler.waiting,
        "turnpike_engine_free_blocks": engine.pool.free_blocks,
        "turnpike_engine_cached_blocks": engine.pool.cached_blocks,
        **engine.traffic.metrics(),
        **{
            f"turnpike_engine_attention_{name.replace('-', '_')}": float(name in engine.executor.attention)
            for name in FAST_NAMES
        },
        **_speculation_metrics(engine),
        **_tier_metrics(engine),
        **_adapter_metrics(engine),
        **_routing_metrics(engine),
    }


def _adapter_metrics(engine: Engine) -> dict[str, float]:
    slots = engine.scheduler.adapters
    count, held = (0, 0) if engine.adapters is None else engine.adapters.held
    return {
        "turnpike_engine_adapter_slots": slots.most,
        "turnpike_engine_adapters_in_slots": len(slots.resident),
        "turnpike_engine_adapters_in_host_memory": count,
        "turnpike_engine_adapters_host_bytes": held,
        "turnpike_engine_adapter_waiting_requests": slots.waiting,
        "turnpike_engine_adapter_loads_total": slots.loads,
        "turnpike_engine_adapter_load_seconds_total": slots.load_s,
        "turnpike_engine_adapter_evictions_total": slots.evictions,
    }


def _routing_metrics(engine: Engine) -> dict[str, float]:
    """What the gateways expect a request's seconds by, and when the leases here have ended."""
    scheduler, costs = engine.scheduler, engine.costs
    rows = max(2, costs.rates.batch)
    alone, full = costs.step_time(0, 1), costs.step_time(0, rows)
    row = max(0.0, (full - alone) / (rows - 1))
    block_bytes = scheduler.tiers.restores.block_bytes
    blocks, until = engine.pool.leases
    figures = {
        PROMPT_TOKEN_S: costs.rates.uncached / 1e6,
        DECODE_STEP_S: max(0.0, alone - row) / 1e6,
        DECODE_ROW_S: row / 1e6,
        PROMPT_CHUNK: scheduler.prompt_room,
        LEASED_BLOCKS: blocks,
        LEASES_END: until,
        "turnpike_engine_dram_token_seconds": costs.rates.copied / BLOCK_TOKENS / 1e6
        if scheduler.tiers.dram.pool
        else 0,
    }
    read_s = {tier.name: block_bytes / tier.rate.bytes_per_s / BLOCK_TOKENS for tier in engine.tiers}
    return figures | {f"turnpike_engine_{name}_token_seconds": read_s.get(name, 0.0) for name in TIERS[2:]}


def _speculation_metrics(engine: Engine) -> dict[str, float]:
    speculator, name = engine.speculator, "turnpike_engine_speculation_"
    totals = speculator.totals
    figures: dict[str, float] = {
        f"{name}decodes_total": totals.decodes,
        f"{name}drafts_total": totals.verified,
        f"{name}drafted_tokens_total": totals.drafted,
        f"{name}accepted_tokens_total": totals.accepted,
        f"{name}emitted_tokens_total": totals.emitted,
        f"{name}drafting_seconds_total": totals.drafting_us / 1e6,
        f"{name}gained_seconds": totals.gained_us / 1e6,
        f"{name}pays": float(not speculator.off and speculator.planner.drafting),
    }
    figures |= {f"{name}accepted_at_{at}_total": tokens for at, tokens in enumerate(totals.accepted_at, 1)}
    figures |= {f"{name}off_{reason}": float(speculator.off == reason) for reason in OFF}
    for drafter in DRAFTERS:
        of = f"{name}{drafter.replace('-', '_')}"  # names of metrics have no hyphens
        names = WEIGHT_DRAFTERS if drafter == DRAFT_MODEL else (drafter,)
        figures[f"{of}_drafted_tokens_total"] = sum(totals.drafted_by[name] for name in names)
        figures[f"{of}_accepted_tokens_total"] = sum(totals.accepted_by[name] for name in names)
    return figures


def _tier_metrics(engine: Engine) -> dict[str, float]:
    tiers, restores = engine.scheduler.tiers, engine.scheduler.tiers.restores
    dropped = {saver.tier.name: saver.dropped for saver in tiers.savers}
    figures: dict[str, float] = {
        "turnpike_engine_dram_blocks_entered_total": tiers.dram.entered,
        "turnpike_engine_dram_blocks_written_ahead_total": 0 if tiers.writer is None else tiers.writer.written,
        "turnpike_engine_dram_blocks_damaged_total": tiers.dram.damaged,
        "turnpike_engine_dram_read_tokens_total": restores.read_tokens["dram"],
        "turnpike_engine_restoring_requests": len(restores.active),
        "turnpike_engine_restores_late_total": restores.late,
    }
    for name in TIERS[2:]:  # also those that this replica does not have
        figures |= {
            f"turnpike_engine_{name}_read_tokens_total": restores.read_tokens[name],
            f"turnpike_engine_{name}_fetches_failed_total": restores.fetches.failed[name],
            f"turnpike_engine_{name}_saves_dropped_total": dropped.get(name, 0),
            f"turnpike_engine_{name}_bytes": 0,
        }
    for tier in engine.tiers:
        figures |= {f"turnpike_engine_{tier.name}_{figure}": value for figure, value in tier.figures.items()}
    return figures
