"""Runs one step's work on the device: tokens in, and for each work that samples a run of tokens.

A decode has a row for its last token and one for each draft behind it. Each row draws the token that plain decoding
would draw there, from the same logits and the same random number. The run ends with the first one that is not the
draft of the next row.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import ClassVar

import numpy as np
import torch

from engine.adapters.adapted_linear import StepAdapters, adapt
from engine.adapters.adapter_weights import Prepare
from engine.attention_backends.backend import AttentionBackend
from engine.execution.attention_plan_cache import AttentionPlanCache, columns
from engine.execution.cpu_threads import Threads
from engine.execution.stopwatch import Stopwatch
from engine.execution.verification import draw_runs
from engine.kv_cache.checksums import BlockChecksums
from engine.kv_cache.memory import KvMemory
from engine.layers.attention_plan import PREFILL_TILE, AttentionPlan
from engine.layers.hidden_states import HiddenStates
from engine.layers.linear import Tiling
from engine.models.decoder import Decoder
from engine.sampling.grammar_allowance import StepAllowance
from engine.sampling.sampler import logprobs_of
from engine.scheduling.step_work import Decode, DeviceFailed, NotFinite, Step, StepPipeline, Work, WorkOutcome
from prompt_cache.kv.block_keys import BLOCK_TOKENS
from prompt_cache.kv.grouped_pool import ABSENT, Block
from protocol.requests import TokenLogprob

_SCORED_ROWS = 64
"""Rows of logits that are in memory at a time for the log probabilities of a prompt."""
_TIMED_COPIES = 8


@dataclass(frozen=True)
class Sizes:
    """`running` requests at most, `budget` tokens a step, `context` tokens; `blocks` of each layer group. `drafts`: how
    many of a request a step is to verify, where that has to be known beforehand."""

    running: int
    budget: int
    context: int
    blocks: Sequence[int]
    drafts: int = 0


class ModelRunner:
    """A model with its tiling, and the KV memories of its layer groups: on the device, and in host memory (`dram`).

    `on_logits` is called with the works that sample and their logits: a work stands there once for each token that it
    got. `clears`: whether `clear` does anything. `most_drafts`: how many a decode may have. `meanwhile` is called while
    a GPU computes a step, with what says whether that is done; it returns soon after that.

    `on_states` is called with the works of a step and [rows, `state_layers` · hidden], the hidden states of all their
    rows (`HiddenStates`), before anything is drawn from them; `gives_states`: whether it ever is.
    """

    clears = True
    gives_states = True
    has_kernels = False
    """Whether kernels of ours compute the attention, and not stock operations."""

    def __init__(
        self,
        model: Decoder,
        memories: Sequence[KvMemory],
        device: torch.device,
        tiling: Tiling,
        dram: Sequence[KvMemory] = (),
    ) -> None:
        self.model = model
        self.memories = tuple(memories)
        self.dram = tuple(dram)
        self.checksums = tuple(BlockChecksums(memory, device) for memory in dram)
        self.device = device
        self.most_drafts = BLOCK_TOKENS if device.type == "cpu" else 0
        self.pipeline = StepPipeline()
        self.tiling = tiling
        self.threads = Threads(torch.get_num_threads(), torch.get_num_threads())
        self.prefill_tile = PREFILL_TILE
        self.fused_attention = device.type == "cpu" and model.embedding.weight.dtype == torch.float32
        self._grammar = StepAllowance()
        self._plan_cache = AttentionPlanCache(model.config.heads, [memory.group for memory in memories], device)
        self.on_logits: Callable[[Sequence[Work], torch.Tensor], None] | None = None
        self.on_states: Callable[[Sequence[Work], torch.Tensor], None] | None = None
        self.state_layers: Sequence[int] = ()
        self.meanwhile: Callable[[Callable[[], bool]], None] = lambda _done: None
        self.adapters: StepAdapters | None = None
        """Told of each step's works, where the model's layers are adapted."""
        self.prepare_adapter: Prepare | None = None
        """What adapters are made ready with; None where none are computed."""

    @property
    def numerics(self) -> str:
        """What decides the bits of KV beside weights and types: blocks of another kind are not found as ours."""
        return ""

    def adapt(self) -> None:
        """Compute adapters from now on, of layers that the tests at start had as they were."""
        self.adapters = adapt(self.model, self.tiling)
        self.prepare_adapter = self.adapters.prepare

    def attend_by(self, backends: Sequence[AttentionBackend | None]) -> None:
        """Have libraries compute the attention of the layer groups for which there is one (`--attention fast`)."""
        self._plan_cache.backends = backends

    def check_device(self) -> None:
        """Raise DeviceFailed if the device computes nothing more: a fault of a CUDA kernel ends all that follows it."""
        if self.device.type != "cuda":
            return
        try:
            torch.cuda.synchronize(self.device)
        except Exception as error:
            raise DeviceFailed(f"{type(error).__name__}: {error}".partition("\n")[0]) from error

    def idles_between_steps(self) -> bool:
        """Whether a device waits for the next step now. A CPU computes in the thread that would be waited for."""
        return self.device.type != "cpu"

    def clear(self, blocks: Sequence[Block]) -> None:
        """Clear newly allocated blocks before their first use."""
        with torch.inference_mode():
            for group, memory in enumerate(self.memories):
                memory.zero([block[group] for block in blocks if block[group] != ABSENT])

    def copy_out(self, pairs: Sequence[tuple[Block, Block]]) -> None:
        """Copy blocks, given as pairs (block of the device memory, block of the host memory), with their checksums.

        On a GPU this only queues.
        """
        with torch.inference_mode():
            for group, numbers in self.by_group(pairs):
                self.dram[group].copy(self.memories[group], numbers)
                self.checksums[group].enter(numbers, self.memories[group])

    def copy_back(self, pairs: Sequence[tuple[Block, Block]]) -> list[int]:
        """Copy blocks, given as pairs (block of the host memory, block of the device memory).

        Returns which of them came back otherwise than they went (C3): indices of `pairs`. Those must not be used.
        """
        bad: set[int] = set()
        with torch.inference_mode():
            for group, numbers in self.by_group(pairs):
                memory = self.memories[group]
                memory.copy(self.dram[group], numbers)
                places = [index for index, pair in enumerate(pairs) if ABSENT not in (pair[0][group], pair[1][group])]
                differ = self.checksums[group].differing(numbers, memory).tolist()
                bad.update(index for index, differs in zip(places, differ, strict=True) if differs)
        return sorted(bad)

    def time_copy(self) -> float:
        """µs that copying a block takes once warm, among others. Uses the first block, which it clears."""
        block = (0,) * len(self.memories)
        self.clear([block])
        for _ in range(2):
            with Stopwatch(self.device) as watch:
                self.copy_out([(block, block)] * _TIMED_COPIES)
                self.copy_back([(block, block)] * _TIMED_COPIES)
        return watch.microseconds() / (2 * _TIMED_COPIES)

    def by_group(self, pairs: Sequence[tuple[Block, Block]]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        """For each layer group that has any of these pairs, the blocks' numbers in it."""
        for group in range(len(self.memories)):
            numbers = [(there[group], here[group]) for there, here in pairs]
            numbers = [pair for pair in numbers if ABSENT not in pair]
            if numbers:
                yield group, numbers

    def plans(self, chunks: Sequence[tuple[int, int, Sequence[Block]]], decodes: int) -> list[AttentionPlan]:
        """One attention plan for each layer group, for chunks (start, count, table); see `plan_attention`."""
        tables = [(start, count, columns(table)) for start, count, table in chunks]
        return self._plan_cache.plan(tables, decodes, self.prefill_tile, self.fused_attention)

    def run(self, works: Sequence[Work]) -> list[WorkOutcome]:
        """Compute these works. Raises what the model raises.

        KV may be written twice, so that a step can be run again without one of its requests.
        """
        began = time.perf_counter()
        if self.device.type == "cpu":
            rows = sum(work.count for work in works)
            # Decodes that are padded to as many rows take as long, and are compared; prompts differ in more than rows.
            self.threads.begin(rows + self.tiling.padding(rows) if rows == len(works) else rows)
        with torch.inference_mode():
            outcomes = self._run(works)
        self.threads.ended(time.perf_counter() - began)
        return outcomes

    def _run(self, works: Sequence[Work]) -> list[WorkOutcome]:
        counts = [work.count for work in works]
        singles = counts.count(1)
        if counts[:singles].count(1) < singles:  # attention plans begin with the works of one row
            order = sorted(range(len(works)), key=lambda at: counts[at] > 1)
            by_place = dict(zip(order, self._run([works[at] for at in order]), strict=True))
            return [by_place[at] for at in range(len(works))]
        tokens: list[int] = []
        positions: list[int] = []
        for work in works:
            start = work.start
            tokens += work.tokens
            positions += range(start, start + work.count)
        padding = [0] * self.tiling.padding(len(tokens))
        plans = self._plan_cache.of(works, singles, self.prefill_tile, self.fused_attention)
        there = torch.from_numpy(np.array([tokens + padding, positions + padding])).to(self.device)
        states = None if self.on_states is None else HiddenStates(self.state_layers)
        if self.adapters is not None:
            self.adapters.enter(works)
        hidden = self.model(there[0], there[1], plans, self.memories, states=states)
        if self.on_states is not None and states is not None:
            self.on_states(works, states.rows(len(tokens)))
        # What is not finite makes the sum so as well; then it is worth the while to look where it is.
        sound = [True] * len(works) if math.isfinite(hidden.sum().item()) else self._sound(works, hidden)
        ends = list(accumulate(counts))
        # Of what is not finite nothing can be drawn or told.
        sampling = [(work, end) for work, end, good in zip(works, ends, sound, strict=True) if work.samples and good]
        sampled = iter(self._sample(sampling, hidden) if sampling else [])
        undrafted = [work for work, good in zip(works, sound, strict=True) if work.drafts and not good]
        again = iter(self._run_without_drafts(undrafted) if undrafted else [])
        outcomes = []
        for work, end, good in zip(works, ends, sound, strict=True):
            if not good:
                error = NotFinite("the model computed NaN or infinity")
                outcomes.append(next(again) if work.drafts else WorkOutcome(error=error))
                continue
            outcome = next(sampled) if work.samples else WorkOutcome()
            outcome.scored = self._score(work, hidden, end - work.count)
            self._count_grammar(work, outcome)
            outcomes.append(outcome)
        return outcomes

    def grammar_wait_s(self, outcomes: Sequence[WorkOutcome]) -> float:
        """Seconds of the last run, which had these outcomes, in which nothing was computed for want of a grammar."""
        return sum(outcome.grammar_s for outcome in outcomes)

    def _count_grammar(self, work: Work, outcome: WorkOutcome) -> None:
        """Enter what the work's grammar took, and whether it has put its token off."""
        row = work.request.row
        if work.samples and outcome.error is None and row is not None and row.guide is not None:
            outcome.grammar_s = self._grammar.count(row, outcome.guide or row.guide)
            if row.put_off:
                outcome.token, outcome.logprobs, outcome.put_off = None, (), True

    def _score(self, work: Work, hidden: torch.Tensor, first: int) -> tuple[TokenLogprob, ...]:
        """Log probabilities of the prompt tokens after those of this work, a tile of rows at a time."""
        request = work.request
        wanted = request.sampling.prompt_logprobs
        if wanted is None or request.choice:
            return ()
        end = min(work.start + work.count, request.prompt - 1)
        start = max(work.start, request.scored)
        scored: list[TokenLogprob] = []
        for at in range(start, end, _SCORED_ROWS):
            until = min(at + _SCORED_ROWS, end)
            rows = [first + position - work.start for position in range(at, until)]
            logits = self._logits(hidden[rows + [rows[0]] * self.tiling.padding(len(rows))])[: len(rows)]
            scored += logprobs_of(logits, request.tokens[at + 1 : until + 1], [wanted] * len(rows))
        return tuple(scored)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """fp32 logits [rows, padded vocabulary] of normalized hidden states [rows, hidden]."""
        return self.model.head(hidden)

    def _sound(self, works: Sequence[Work], hidden: torch.Tensor) -> list[bool]:
        """Of which works all rows are finite."""
        finite = iter(hidden.isfinite().all(-1).tolist())
        return [all(list(islice(finite, work.count))) for work in works]

    def _run_without_drafts(self, works: Sequence[Work]) -> list[WorkOutcome]:
        """Compute decodes again whose drafts may have made them what is not finite: 0 x NaN is NaN, so that the key of
        a draft can reach the rows that do not see it. Nor may it reach later rows."""
        for work in works:
            for position in range(work.start + 1, work.start + work.count):
                block = work.request.table[position // BLOCK_TOKENS]
                for memory, number in zip(self.memories, block, strict=True):
                    memory.zero_token(number, position % BLOCK_TOKENS)
        return self._run([Decode(work.request) for work in works])

    def _sample(self, works: Sequence[tuple[Work, int]], hidden: torch.Tensor) -> list[WorkOutcome]:
        """What these works sample, each given with the row of the step that follows its own."""
        rows = [row for work, end in works for row in range(end - 1 - len(work.drafts), end)]
        padding = [rows[0]] * self.tiling.padding(len(rows))
        if rows[-1] + 1 + len(padding) < hidden.shape[0] or rows[-1] >= len(rows):
            hidden = hidden.index_select(0, torch.tensor(rows + padding, device=hidden.device))
        return self._draw([work for work, _ in works], self._logits(hidden))

    def _draw(self, works: Sequence[Work], logits: torch.Tensor) -> list[WorkOutcome]:
        """What these works sample, by the first rows of fp32 logits: one for each, and for each draft one more."""
        runs = draw_runs(works, logits, self._grammar)
        told = [
            (row, token, count)
            for run in runs
            if (count := run.work.request.sampling.logprobs) is not None
            for row, token in zip(run.rows, run.tokens, strict=True)
        ]
        logprobs: dict[int, TokenLogprob] = {}
        if told:
            rows, tokens, counts = map(list, zip(*told, strict=True))
            logprobs = dict(zip(rows, logprobs_of(logits[rows], tokens, counts), strict=True))
        if self.on_logits is not None:
            shown = [(run.work, row) for run in runs for row in run.rows]
            rows = [row for _, row in shown]
            self.on_logits([work for work, _ in shown], logits[rows, : self.model.config.vocabulary])
        return [
            WorkOutcome(
                run.tokens[-1],
                None,
                tuple(logprobs[row] for row in run.rows if row in logprobs),
                run.tokens[:-1],
                guide=run.guide,
            )
            for run in runs
        ]


class BlockCopies:
    """The copies of steps between the device and host memory: begun with a step, taken note of when they are done.

    These are done when `begin` returns.

    `observe`: called with a number of copied blocks and the µs that they took.
    """

    beside: ClassVar[bool] = False
    """Whether copies go on beside the steps, so that they cost them little."""

    def __init__(self, runner: ModelRunner, observe: Callable[[int, float], None]) -> None:
        self.runner = runner
        self.observe = observe
        self._done: deque[tuple[Step, list[int]]] = deque()

    @property
    def pending(self) -> bool:
        """Whether there are steps that `finished` has not returned."""
        return bool(self._done)

    def begin(self, step: Step) -> None:
        """Copy blocks out, clear fresh blocks, copy blocks back: in this order, since they may be the same blocks."""
        bad: list[int] = []
        if step.out:
            with Stopwatch(self.runner.device) as watch:
                self.runner.copy_out(step.out)
            self.observe(len(step.out), watch.microseconds())
        self.runner.clear(step.fresh)
        if step.back:
            with Stopwatch(self.runner.device) as watch:
                bad = self.runner.copy_back(step.back)
            self.observe(len(step.back), watch.microseconds())
        if step.copies:
            self._done.append((step, bad))

    def finished(self, *, wait: bool = False) -> list[tuple[Step, list[int]]]:
        """The steps whose copies are done, in order, each once; with those of `step.back` that came back damaged.

        `wait`: wait for the first that is not done, if there is any.
        """
        done = list(self._done)
        self._done.clear()
        return done

    def before(self, works: Sequence[Work]) -> None:
        """These works are about to be computed: what they write to must not be copied any more when they do."""
