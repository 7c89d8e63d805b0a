"""Assembles an engine from a model folder or file: device, weights, KV memory, self-test, calibration."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import structlog

from engine.adapters.adapter_store import adapters_of
from engine.core.engine import Engine, EngineLimits
from engine.core.quarantine import Quarantine
from engine.core.step_traffic import model_size
from engine.device import empty_like_model
from engine.errors import ModelError, StartError
from engine.execution.block_zeroing import BlockZeroing
from engine.execution.disk_tier import DISK_RATE, DiskTier
from engine.execution.executor import StepExecutor
from engine.execution.model_runner import ModelRunner, Sizes
from engine.grammar.llguidance_grammar import LlguidanceGrammars, end_tokens
from engine.kv_cache.memory import KvMemory, host_memories
from engine.layers.linear import best_tiling
from engine.model_config.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.registry import load_model, read_config
from engine.scheduling.step_costs import MeasuredCosts
from engine.scheduling.tier import Tier
from engine.speculation.speculator import MOST_DRAFTS
from engine.startup.draft_checkpoint import ServedParts, load_drafter
from engine.startup.fast_attention import fast_attention, warm_up_fast
from engine.startup.kept_trials import KeptTrials
from engine.startup.kv_size import block_counts, host_block_counts
from engine.startup.numerics import numerics_id
from engine.startup.options import ReplicaOptions
from engine.startup.runner_choice import make_ready, make_runner, with_step_sizes
from engine.startup.speculation import make_speculation
from engine.startup.warm_up import warm_up
from engine.startup.weight_formats import report_formats
from model_files.model_documents import own_name
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import GroupedPool
from prompt_cache.model_digest import model_digest, text_digest
from prompt_cache.placement.fetch_or_recompute import TierRate
from prompt_cache.tiers.disk_calibration import read_disk_rate
from prompt_cache.tiers.identity import StoreIdentity
from prompt_cache.tiers.record_store import RecordStore
from prompt_cache.tiers.store_state import StoreUnusable
from protocol.replicas import Capacity, Layout, ServedModel

logger = structlog.get_logger("engine.startup.assembly")


@dataclass(frozen=True)
class AssembledEngine:
    """An engine, and what its replica says of it in `Hello`."""

    engine: Engine
    model: ServedModel
    layout: Layout
    capacity: Capacity
    warm_up: Iterator[None]
    """Runs a piece at each step, while there is no work."""
    grammars: LlguidanceGrammars
    numerics: str


def served_name(folder: Path) -> str:
    """The name in the folder's `turnpike.toml`, or else that of the folder or GGUF file. Raises ModelError."""
    path = folder / "turnpike.toml"
    try:
        name = tomllib.loads(path.read_text()).get("name") if path.is_file() else None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from error
    return name if isinstance(name, str) and name else own_name(folder)


def assemble(
    options: ReplicaOptions,
    load: Callable[..., Decoder] = load_model,
    wait_for_others: Callable[[float], object] | None = None,
) -> AssembledEngine:
    """Load the model, by `load`, and test the machine's kernels. Raises ModelError or StartError.

    `wait_for_others`: waits while others need the disk, for so many seconds at most, before more KV is written there.
    """
    config = read_config(options.model)
    context = options.context or config.context_tokens
    if context > config.context_tokens:
        raise StartError(f"context: {context} tokens are more than the model's {config.context_tokens}")
    if context < BLOCK_TOKENS:
        raise StartError(f"context: {context} tokens are less than a block of KV, {BLOCK_TOKENS}")
    if config.rope.stretched(context):
        logger.warning(
            "longrope turns positions by its long factors in prompts of any length, transformers in long ones alone:"
            " serve the original context to have its answers to short prompts",
            context=context,
            original=config.rope.original_context,
        )
    like = empty_like_model(options.device, options.dtype)
    tiling = best_tiling(like)
    trials = KeptTrials(options.trials)
    model = load(
        options.model,
        config,
        like,
        tiling,
        context,
        quantize=options.quantize,
        kv_dtype=options.kv_dtype,
        weights=options.weights,
    )
    report_formats(model, options.kv_dtype, like)
    size = model_size(model, config)
    options = with_step_sizes(options, model, like)
    blocks = block_counts(options, model.groups, like.device, context)
    kept = host_block_counts(options, model.groups, blocks)
    dram = host_memories(model.groups, kept, like) if all(kept) else ()
    drafts = MOST_DRAFTS if options.speculation else 0
    sizes = Sizes(options.max_running, options.token_budget, context, blocks, drafts)
    runner = make_runner(model, dram, like, tiling, sizes)
    dtype = str(like.dtype).removeprefix("torch.")
    # KV is other KV if weights or KV are rounded, or if a longer context changes the rotation of positions: block keys,
    # which are made of this digest, must differ too.
    run_in = dtype if options.quantize == "none" else f"{dtype} {options.quantize}"
    run_in += "" if options.kv_dtype == "auto" else f" kv {options.kv_dtype}"
    run_in += " long" if config.rope.stretched(context) else ""
    run_in += runner.numerics
    fast = fast_attention(runner, context) if options.attention == "fast" else None
    run_in += "" if fast is None else f" attention {fast.numerics}"
    digest = model_digest(options.model, run_in)
    name = options.served or served_name(options.model)
    limits = EngineLimits(
        context,
        options.max_running,
        options.token_budget,
        bounds=options.bounds,
        queue_timeouts=options.queue_timeouts,
        lane_weights=options.lane_weights,
        token_targets=options.token_targets,
    )
    costs = MeasuredCosts(options.max_running)
    is_invariant = make_ready(runner, costs, sizes, digest, trials, fast=() if fast is None else fast.backends)
    served = ServedParts(options.model, config, runner, context, options.token_budget, digest)
    load_draft = None if options.draft_model is None else partial(load_drafter, options.draft_model, served)
    speculation = make_speculation(
        options.speculation, runner, sizes, load_draft, is_invariant=is_invariant, exact=fast is None
    )
    if dram:
        costs.observe_copies(1, runner.time_copy())
    windows = [group.window for group in model.groups]
    block_bytes = [group.block_bytes for group in model.groups]
    depth = doubling_depth(config)
    adapters = None
    if (
        options.max_loras and like.device.type == "cpu" and fast is None
    ):  # our kernels for GPUs, and libraries' attention, compute none yet
        adapters = adapters_of(
            model, tiling, text_digest(options.model), slots=options.max_loras, most_bytes=options.lora_memory
        )
        runner.adapters = adapters.step
    identity = StoreIdentity(
        digest, numerics_id(runner, options.kv_dtype, "" if fast is None else fast.numerics), model.groups
    )
    pool = GroupedPool(list(zip(blocks, windows, strict=True)), block_bytes=block_bytes, attention_tokens=depth)
    engine = Engine(
        StepExecutor(runner, costs, () if fast is None else fast.names),
        pool,
        limits,
        digest,
        dram=_host_pool(windows, kept, dram, depth) if dram else None,
        # What other starts wrote may not be read either: KV that is read has other bits than KV that is computed.
        tiers=_tiers(options, identity, runner, depth, wait_for_others)
        if dram and not pool.slides and (is_invariant or fast is not None)
        else (),
        quarantine=Quarantine(options.data / "quarantine"),
        # Nobody is promised the same bits by fast attention, so that the test decides nothing.
        publishes=is_invariant or fast is not None,
        speculation=speculation,
        size=size,
        adapters=adapters,
    )
    engine.scheduler.blocks.prompts_only = fast is not None
    return AssembledEngine(
        engine,
        ServedModel(name, digest, text_digest(options.model), dtype, config.vocabulary),
        Layout(BLOCK_TOKENS, model.groups),
        Capacity(blocks, context, options.max_running),
        chain(warm_up(runner, options.token_budget), () if fast is None else warm_up_fast(runner, fast, context)),
        LlguidanceGrammars(options.model, config.vocabulary, end_tokens(options.model)),
        identity.numerics,
    )


def doubling_depth(config: ModelConfig) -> float:
    """At how many tokens of context attention costs as much for a token as the layers' linear operations: what lies
    deeper is dearer to compute again. Of a mixture of experts one expert counts.
    """
    attended = config.heads * config.head_dim
    linear = config.hidden * (2 * attended + 2 * config.kv_heads * config.head_dim + 3 * config.intermediate)
    return linear / (2 * attended)


def _host_pool(
    windows: Sequence[int], blocks: Sequence[int], memories: Sequence[KvMemory], depth: float
) -> GroupedPool:
    """The pool of the host memory. Its blocks are zeroed when they are freed (C5)."""
    zeroing = BlockZeroing(memories)
    return GroupedPool(
        list(zip(blocks, windows, strict=True)),
        on_free=zeroing.freed,
        on_take=zeroing.taken,
        block_bytes=[memory.group.block_bytes for memory in memories],
        attention_tokens=depth,
    )


def _disk_rate(options: ReplicaOptions) -> TierRate:
    """How quick the disk is, by what was measured of it."""
    if options.calibration is None or options.disk_folder is None:
        return DISK_RATE
    return read_disk_rate(options.calibration, options.disk_folder) or DISK_RATE


def _tiers(
    options: ReplicaOptions,
    identity: StoreIdentity,
    runner: ModelRunner,
    depth: float,
    wait_for_others: Callable[[float], object] | None,
) -> Sequence[Tier]:
    """The tiers behind host memory: a disk, if there is to be one. A folder that cannot be used costs the tier, not the
    replica."""
    if not options.disk_bytes or options.disk_folder is None:
        return ()
    store = RecordStore(
        options.disk_folder,
        identity,
        limit_bytes=options.disk_bytes,
        attention_tokens=depth,
        wait_for_others=wait_for_others,
    )
    try:
        store.open()
    except StoreUnusable as error:
        logger.error("no blocks are kept on disk", folder=str(options.disk_folder), cause=str(error))
        return ()
    return (DiskTier(store, runner.dram, runner.checksums, options.disk_bytes, _disk_rate(options)),)
