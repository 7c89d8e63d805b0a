"""Help texts of the metrics in a replica's heartbeats, by Prometheus name."""

from __future__ import annotations

HELP = {
    "turnpike_engine_steps_total": "Steps of the model that the engine has run",
    "turnpike_engine_computed_tokens_total": "Prompt tokens computed",
    "turnpike_engine_read_tokens_total": "Prompt tokens read from the prefix cache",
    "turnpike_engine_output_tokens_total": "Tokens sampled, end tokens included",
    "turnpike_engine_recomputed_tokens_total": "Tokens computed again after a preemption; they are not billed",
    "turnpike_engine_requests_finished_total": "Requests that ended, for whatever reason, after they were taken",
    "turnpike_engine_requests_rejected_total": "Requests refused: invalid ones, full queues, waits that were too long",
    "turnpike_engine_requests_failed_total": "Requests that ended with an error of the engine",
    "turnpike_engine_quarantined_inputs": "Inputs that are refused or suspected because the engine failed on them",
    "turnpike_engine_preemptions_total": "Preemptions of running requests, so that others could run",
    "turnpike_engine_swaps_total": "Preemptions that kept the KV in host memory",
    "turnpike_engine_evicted_blocks_total": "Cached KV blocks that were evicted",
    "turnpike_engine_service_seconds_total": "Engine time given to flows by this replica",
    "turnpike_engine_service_elsewhere_seconds_total": "Engine time that flows got from other replicas",
    "turnpike_engine_running_requests": "Requests that hold KV blocks on the device",
    "turnpike_engine_waiting_requests": "Requests that wait in the queue of the engine",
    "turnpike_engine_free_blocks": "Free KV blocks",
    "turnpike_engine_cached_blocks": "KV blocks with a cached prefix that no request uses now",
    "turnpike_engine_gateways": "Gateway workers that are connected to the replica",
    "turnpike_engine_journal_damaged_records": "Records of the journal that could not be read at the start",
    "turnpike_engine_journal_restored_total": "Times the journal was removed while the replica ran, and written again",
    "turnpike_engine_disk_full": "1 while the replica takes no requests because the disk of its journal is full",
    "turnpike_engine_journal_requests_total": "Requests that the journal has counted to their end",
    "turnpike_engine_journal_unacknowledged": "Ended requests whose usage no gateway has acknowledged",
    "turnpike_engine_journal_prompt_tokens_total": "Prompt tokens of ended requests in the journal",
    "turnpike_engine_journal_computed_tokens_total": "Computed prompt tokens of ended requests in the journal",
    "turnpike_engine_journal_read_hbm_tokens_total": "Prompt tokens of ended requests read from device memory",
    "turnpike_engine_journal_read_dram_tokens_total": "Prompt tokens of ended requests read from host memory",
    "turnpike_engine_journal_read_nvme_tokens_total": "Prompt tokens of ended requests read from disk",
    "turnpike_engine_journal_output_tokens_total": "Sampled tokens of ended requests in the journal",
    "turnpike_engine_journal_recomputed_tokens_total": "Recomputed tokens of ended requests in the journal",
    "turnpike_engine_journal_drafted_tokens_total": "Tokens that a drafter proposed to ended requests",
    "turnpike_engine_journal_accepted_tokens_total": "Drafted tokens of ended requests that the model accepted",
}


def metric_help_text(name: str) -> str:
    """The help text of a metric; for one that this version does not know, its name in words."""
    return HELP.get(name) or f"{name.removeprefix('turnpike_').replace('_', ' ')}, as a replica of another version says"
