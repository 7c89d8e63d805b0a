"""Help texts of the metrics in a replica's heartbeats, by Prometheus name."""

from __future__ import annotations

HELP = {
    "turnpike_engine_steps_total": "Steps of the model that the engine has run",
    "turnpike_engine_step_seconds_total": "Time that steps of the model took",
    "turnpike_engine_moved_bytes_total": "Bytes of weights and KV that steps read, by every eighth step; 0: not known",
    "turnpike_engine_operations_total": "Operations of steps, by every eighth step; 0: not known",
    "turnpike_engine_computed_tokens_total": "Prompt tokens computed",
    "turnpike_engine_read_tokens_total": "Prompt tokens read from the prefix cache",
    "turnpike_engine_output_tokens_total": "Tokens sampled, end tokens included",
    "turnpike_engine_recomputed_tokens_total": "Tokens computed again after a preemption; they are not billed",
    "turnpike_engine_requests_finished_total": "Requests that ended, for whatever reason, after they were taken",
    "turnpike_engine_requests_rejected_total": "Requests refused: invalid ones, full queues, waits that were too long",
    "turnpike_engine_requests_failed_total": "Requests that ended with an error of the engine",
    "turnpike_engine_quarantined_inputs": "Inputs that are refused or suspected because the engine failed on them",
    "turnpike_engine_publishes_blocks": "0 where no prefix is shared, since the kernels depend on the batch; else 1",
    "turnpike_engine_attention_flash_attention_4": "1 where FlashAttention 4 computes attention (attention is fast)",
    "turnpike_engine_attention_flash_attention_3": "1 where FlashAttention 3 does",
    "turnpike_engine_attention_cudnn": "1 where cuDNN does",
    "turnpike_engine_attention_flash_attention_2": "1 where FlashAttention 2 does",
    "turnpike_engine_attention_torch_flash": "1 where the FlashAttention in PyTorch does",
    "turnpike_engine_attention_torch": "1 where PyTorch's scaled_dot_product_attention does",
    "turnpike_engine_preemptions_total": "Preemptions of running requests, so that others could run",
    "turnpike_engine_dram_blocks_entered_total": "Cached KV blocks that left the device for host memory",
    "turnpike_engine_dram_blocks_written_ahead_total": "KV blocks copied to host memory before they left the device",
    "turnpike_engine_dram_blocks_damaged_total": "KV blocks that came back from host memory otherwise than they went",
    "turnpike_engine_dram_read_tokens_total": "Prompt tokens whose KV came from host memory",
    "turnpike_engine_nvme_read_tokens_total": "Prompt tokens whose KV came from disk",
    "turnpike_engine_restoring_requests": "Requests whose KV is coming from host memory or disk",
    "turnpike_engine_restores_late_total": "Restores that took too long to be waited for: computing went on",
    "turnpike_engine_nvme_fetches_failed_total": "KV blocks that could not be read from disk, or not be verified",
    "turnpike_engine_nvme_saves_dropped_total": "KV blocks that were to be saved on disk and were not",
    "turnpike_engine_nvme_bytes": "Bytes of KV on disk",
    "turnpike_engine_nvme_reads_total": "Records of KV read from disk",
    "turnpike_engine_nvme_read_bytes_total": "Bytes of KV read from disk",
    "turnpike_engine_nvme_writes_total": "Records of KV written to disk",
    "turnpike_engine_nvme_written_bytes_total": "Bytes of KV written to disk",
    "turnpike_engine_nvme_evictions_total": "Records of KV that made room for others on disk",
    "turnpike_engine_nvme_misses_total": "Reads from disk that found no usable record",
    "turnpike_engine_nvme_refused_total": "Records of KV that the disk tier did not take",
    "turnpike_engine_speculation_decodes_total": "Requests that decoded, summed over steps",
    "turnpike_engine_speculation_drafts_total": "… of these, with drafts that the step verified",
    "turnpike_engine_speculation_drafted_tokens_total": "Draft tokens that steps verified; they are not billed",
    "turnpike_engine_speculation_accepted_tokens_total": "Draft tokens that were what the model draws: output",
    "turnpike_engine_speculation_emitted_tokens_total": "Tokens that decodes put out, with drafts and without",
    "turnpike_engine_speculation_drafting_seconds_total": "Time that drafters took, during which no step ran",
    "turnpike_engine_speculation_gained_seconds": "Estimated time of plain steps that accepted drafts saved, less what "
    "verifying them cost; below 0 for a loss",
    "turnpike_engine_speculation_pays": "1 while drafts are verified where there are any, 0 where they would cost time",
    **{
        f"turnpike_engine_speculation_accepted_at_{at}_total": f"Accepted draft tokens at position {at} of a draft"
        for at in range(1, 8)
    },
    "turnpike_engine_speculation_off_setting": "1 while nothing is drafted since no drafter is configured",
    "turnpike_engine_speculation_off_attention": "1 … since attention is fast, so that drafts could change outputs",
    "turnpike_engine_speculation_off_device": "1 … since the steps of this device verify no drafts",
    "turnpike_engine_speculation_off_self_test": "1 … since outputs depend on the batch on this machine",
    "turnpike_engine_speculation_off_failed": "1 … since every drafter has failed",
    **{
        f"turnpike_engine_speculation_{drafter}_{what}_tokens_total": f"{what.title()} draft tokens of {words}"
        for drafter, words in (
            ("grammar", "what grammars force"),
            ("ngram", "the request's own text and prediction"),
            ("suffix", "earlier outputs of its scope"),
            ("draft_model", "the draft model, or a head"),
        )
        for what in ("drafted", "accepted")
    },
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
    "turnpike_engine_draining": "1 while the replica takes no requests because an operator drains it",
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
