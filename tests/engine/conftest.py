"""A tiny random Llama on disk, and engines made of it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from engine.adapters.adapter_store import adapters_of
from engine.core.engine import Engine, EngineLimits
from engine.execution.cpu_threads import Threads
from engine.execution.disk_tier import DiskTier
from engine.execution.executor import StepExecutor
from engine.execution.model_runner import ModelRunner
from engine.kv_cache.memory import KvMemory, host_memories
from engine.layers import attention
from engine.layers.attention_plan import CUTS
from engine.layers.linear import best_tiling
from engine.models.registry import load_model, read_config
from engine.options import KvDtype, Quantize, Weights
from engine.scheduling.fairness.queue_limits import QueueBounds
from engine.scheduling.step_costs import FixedCosts, Rates
from engine.scheduling.step_work import Work
from engine.speculation.drafter import Drafter
from engine.speculation.speculator import Speculation
from engine.startup.self_test import ensure_batch_invariance
from prompt_cache.kv.grouped_pool import ABSENT, Block, GroupedPool
from prompt_cache.tiers.record_store import RecordStore
from protocol.replicas import Scope
from protocol.requests import (
    Began,
    Counts,
    Done,
    Generate,
    PromptLogprobs,
    PromptRead,
    Sampling,
    Segment,
    TokenLogprob,
    Tokens,
)
from tests.engine.families import KeptFamilies
from tests.engine.memory_store import MemoryStore
from tests.engine.tiny_tokenizer import write_tokenizer

# Threads of torch spin while they wait for each other after each operation. With as many test workers as cores they
# would mostly wait. A test that needs more threads asks `make_bench` for them.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Whatever a test before this one, in the same process, computed with."""
    torch.set_num_threads(1)


VOCABULARY = 131

TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
    "eos_token_id": 1,
}


def write_model(folder: Path, seed: int = 0, scale: float = 0.3, **changes: object) -> Path:
    """A random Llama folder of the tiny configuration with these changes."""
    config = {**TINY, **changes}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * scale

    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads, vocabulary = (
        config[name] for name in ("num_attention_heads", "num_key_value_heads", "vocab_size")
    )
    tensors = {
        "model.embed_tokens.weight": random(vocabulary, hidden),
        "model.norm.weight": 1 + random(hidden) * 0.1,
    }
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = random(vocabulary, hidden)
    for index in range(config["num_hidden_layers"]):
        name = f"model.layers.{index}."
        tensors |= {
            name + "input_layernorm.weight": 1 + random(hidden) * 0.1,
            name + "post_attention_layernorm.weight": 1 + random(hidden) * 0.1,
            name + "self_attn.q_proj.weight": random(heads * dim, hidden),
            name + "self_attn.k_proj.weight": random(kv_heads * dim, hidden),
            name + "self_attn.v_proj.weight": random(kv_heads * dim, hidden),
            name + "self_attn.o_proj.weight": random(hidden, heads * dim),
            name + "mlp.gate_proj.weight": random(inner, hidden),
            name + "mlp.up_proj.weight": random(inner, hidden),
            name + "mlp.down_proj.weight": random(hidden, inner),
        }
    save_file(tensors, str(folder / "model.safetensors"))
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama folder: no tokenizer, which the engine does not need."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


Families: TypeAlias = Callable[[str], Path]


@pytest.fixture(scope="session")
def family_folders(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Families:
    """The folder of a family's tiny model, by the family's name. They are kept for later runs: transformers takes
    seconds to import."""
    cache = getattr(pytestconfig, "cache", None)  # there is none with `-p no:cacheprovider`
    return KeptFamilies(cache.mkdir("families") if cache else tmp_path_factory.mktemp("families"))


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny models' tokenizer, for grammars."""
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


SCOPES = {
    name: Scope(name, name.encode() * 8, name.encode().ljust(32), retention=3600.0)
    for name in ("public", "project", "other")
}


def generate(id: str, tokens: Iterable[int], max_tokens: int = 8, **fields: object) -> Generate:
    """A greedy request of scope `project` with credit for everything, with these changes."""
    tokens = list(tokens)
    sampling = {name: fields.pop(name) for name in Sampling.__struct_fields__ if name in fields}
    return Generate(
        **{
            "id": id,
            "attempt": 1,
            "segments": (Segment(len(tokens), "project"),),
            "tokens": tokens,
            "sampling": Sampling(max_tokens, **{"temperature": 0.0, **sampling}),
            "credit": 1 << 20,
            **fields,
        }
    )


@dataclass
class Run:
    """What one request got."""

    tokens: list[int] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    began: Began | None = None
    done: Done | None = None
    prompt: PromptRead | None = None
    choices: dict[int, list[int]] = field(default_factory=dict)
    """The output by choice; `tokens` is the first one's."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    emitted: tuple[list[int], ...] = ()
    """What an earlier attempt had put out, by choice."""

    def before(self, choice: int) -> int:
        """How many tokens of this choice an earlier attempt had put out."""
        return len(self.emitted[choice]) if self.emitted else 0


def without_output(counts: Counts) -> Counts:
    """What of these counts is of the prompt."""
    return msgspec.structs.replace(counts, output=0, recomputed=0, drafted=0, accepted=0)


class Bench:
    """An engine that is checked at every step, and what its requests got."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.runs: dict[str, Run] = {}
        self.now = 0.0
        engine.executor.runner.on_logits = self._logits

    def _logits(self, works: list[Work], logits: torch.Tensor) -> None:
        ahead: Counter[str] = Counter()
        """Of a request with drafts there are several rows, one behind the other."""
        for work, row in zip(works, logits, strict=True):
            if work.request.choice == 0:
                kept = self.runs[work.request.id].logits
                at = work.request.output + ahead[work.request.id]
                ahead[work.request.id] += 1
                if at < len(kept):  # the step before had no time left to draw from them
                    assert torch.equal(kept[at], row.cpu())
                else:
                    kept.append(row.to("cpu", copy=True))

    def add(self, request: Generate) -> Run:
        self.runs.setdefault(request.id, Run(emitted=request.emitted))
        self.engine.add(request, SCOPES)
        return self.runs[request.id]

    def step(self) -> None:
        result = self.engine.step()
        self.engine.pool.check()
        self.engine.scheduler.check()
        for flows in self.engine.fairness.flows.values():
            flows.check()
        tables = [request.table for request in self.engine.scheduler.running]
        held = sum(number != ABSENT for table in tables for block in table for number in block)
        assert held >= self.engine.pool.referenced_blocks
        for event in result.events:
            run = self.runs.setdefault(event.id, Run())
            assert run.done is None, "something came after Done"
            match event:
                case Began():
                    assert run.began is None
                    assert not run.tokens
                    run.began = event
                    event.counts.check()
                case Tokens():
                    assert run.began is not None
                    output = run.choices.setdefault(event.choice, run.tokens if event.choice == 0 else [])
                    assert event.start == run.before(event.choice) + len(output)
                    assert (event.prompt is None) == any(run.choices.values()), "it comes with the first tokens"
                    run.prompt = run.prompt or event.prompt
                    output += event.tokens
                    if event.choice == 0:
                        run.logprobs += event.logprobs
                case PromptLogprobs():
                    assert event.start == len(run.prompt_logprobs) + 1
                    run.prompt_logprobs += event.logprobs
                case Done():
                    run.done = event
                    event.counts.check()
                    if event.reason != "rejected":
                        assert event.counts.output == sum(map(len, (*run.emitted, *run.choices.values())))
                    if run.prompt is not None and not run.emitted:
                        assert run.prompt.counts == without_output(event.counts)
                        assert sum(lost.end - lost.start for lost in run.prompt.lost) <= event.counts.computed

    def finish(self, steps: int = 5000) -> None:
        """Step until nothing is left to do."""
        for _ in range(steps):
            if not self.engine.busy:
                if not self.engine.scheduler.waits:
                    return
                time.sleep(0.001)  # for the disk tier's threads
                self.now += 0.001
            self.step()
        raise AssertionError("the engine does not come to an end")

    def one(self, request: Generate) -> Run:
        run = self.add(request)
        self.finish()
        return run

    def counts(self, id: str) -> Counts:
        done = self.runs[id].done
        assert done is not None
        return done.counts


def poisoning(runner: ModelRunner) -> Callable[[int, int], None]:
    """What poisons freed blocks with NaN: in the step after, when what is to be kept of them was copied out."""
    freed: list[tuple[int, int]] = []
    clear = runner.clear

    def poison_and_clear(blocks: Sequence[Block]) -> None:
        for group, block in freed:
            runner.memories[group].poison(block)
        freed.clear()
        clear(blocks)

    runner.clear, runner.clears = poison_and_clear, True  # type: ignore[method-assign]
    return lambda group, block: freed.append((group, block))


_verdicts: dict[object, tuple[int, int | None, bool, int, bool]] = {}


def _be_invariant(runner: ModelRunner, model: object, budget: int, running: int, context: int) -> None:
    """What this machine needs for such a model is found out once, by the self-test."""
    if runner.device.type != "cpu":
        return  # the self-test is for the CPU; other devices have nothing to choose yet
    tiling, threads = runner.tiling, runner.threads
    key = model, threads.counts, tiling.kernels, attention.FUSED
    if key not in _verdicts:
        assert ensure_batch_invariance(runner, budget, running, context)
        fixed = runner.threads.counts != threads.counts
        _verdicts[key] = tiling.row_multiple, tiling.row_tile, runner.fused_attention, runner.prefill_tile, fixed
    tiling.row_multiple, tiling.row_tile, runner.fused_attention, runner.prefill_tile, fixed = _verdicts[key]
    if fixed:
        runner.threads.fix(runner.threads.many)


def make_bench(
    folder: Path,
    blocks: int = 64,
    budget: int = 256,
    running: int = 64,
    many_threads: int = 1,
    quantize: Quantize = "none",
    swap: int = 0,
    store: RecordStore | MemoryStore | None = None,
    dtype: torch.dtype = torch.float32,
    kv_dtype: KvDtype = "auto",
    weights: Weights = "decoded",
    window_blocks: int | None = None,
    device: str = "cpu",
    context: int | None = None,
    queue: int = QueueBounds.requests,
    drafters: Sequence[Drafter] = (),
    adapters: int = 0,
    **limits: Any,
) -> Bench:
    """A bench on the CPU, in fp32, unless told otherwise; freed blocks are poisoned with NaN.

    `swap`: blocks of host memory; `store`: the disk tier's, which needs them.
    `window_blocks`: blocks of layer groups with a window, `blocks` if None. `queue`: requests that may wait.
    `adapters`: slots for the weights of adapters.
    """
    config = read_config(folder)
    like = torch.zeros((), dtype=dtype, device=device)
    tiling = best_tiling(like)
    model = load_model(
        folder,
        config,
        like,
        tiling,
        context or config.context_tokens,
        quantize=quantize,
        kv_dtype=kv_dtype,
        weights=weights,
    )
    counts = [blocks if window_blocks is None or not group.window else window_blocks for group in model.groups]
    memories = [KvMemory(group, count, like) for group, count in zip(model.groups, counts, strict=True)]
    kept = host_memories(model.groups, [swap] * len(model.groups), like) if swap else []
    runner = ModelRunner(model, memories, like.device, tiling, kept)
    runner.threads = Threads(1, many_threads)
    files = tuple(sorted(file.resolve() for file in folder.glob("*.safetensors"))) or (folder.resolve(),)
    _be_invariant(
        runner, (files, dtype, quantize, kv_dtype, weights), budget, running, context or config.context_tokens
    )
    windows = [group.window for group in model.groups]
    pool = GroupedPool(list(zip(counts, windows, strict=True)), on_free=poisoning(runner))
    limits = {"bounds": QueueBounds(requests=queue), **limits}
    bounds = EngineLimits(context or config.context_tokens, max_running=running, budget=budget, **limits)
    swap_pool = None
    if swap:
        swap_pool = GroupedPool(
            [(swap, group.window) for group in model.groups], on_free=lambda group, block: kept[group].poison(block)
        )
    disk = None if store is None else DiskTier(store, kept, runner.checksums)
    executor = StepExecutor(runner, FixedCosts(Rates(batch=running)))
    adapted = None
    if adapters:
        adapted = adapters_of(model, tiling, "base", slots=adapters, most_bytes=1 << 30, run_beside=lambda load: load())
        runner.adapters = adapted.step
    tiers = () if disk is None else (disk,)
    engine = Engine(
        executor,
        pool,
        bounds,
        "digest",
        clock=lambda: bench.now,
        dram=swap_pool,
        tiers=tiers,
        speculation=Speculation(drafters),
        adapters=adapted,
    )
    bench = Bench(engine)
    return bench


@pytest.fixture(autouse=True)
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are cut so short that prompts of a few hundred tokens have several splits, in several batches."""
    monkeypatch.setitem(CUTS, "cpu", replace(CUTS["cpu"], split=128, slab_bytes=256 << 10))


@pytest.fixture
def bench(tiny_model: Path) -> Bench:
    return make_bench(tiny_model)


@pytest.fixture(scope="session")
def benches(tiny_model: Path) -> Callable[..., Bench]:
    return lambda **options: make_bench(tiny_model, **options)
