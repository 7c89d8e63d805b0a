"""Runs one step's work on the device: tokens in, one sampled token for each work that samples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.execution.attention_plan_cache import AttentionPlanCache, columns
from engine.execution.cpu_threads import Threads
from engine.execution.stopwatch import Stopwatch
from engine.kv_cache.checksums import BlockChecksums
from engine.kv_cache.memory import KvMemory
from engine.layers.attention_plan import PREFILL_TILE, AttentionPlan
from engine.layers.linear import Tiling
from engine.models.decoder import Decoder
from engine.sampling.grammar_allowance import StepAllowance
from engine.sampling.sampler import logprobs_of, sample
from engine.scheduling.step_work import Work
from prompt_cache.kv.grouped_pool import ABSENT, Block
from protocol.requests import TokenLogprob

_SCORED_ROWS = 64
"""Rows of logits that are in memory at a time for the log probabilities of a prompt."""
_TIMED_COPIES = 8


class NotFinite(Exception):
    """The model computed NaN or infinity for this request."""


class DeviceFailed(Exception):
    """The device computes nothing more for this process, whatever it is asked."""


@dataclass(slots=True)
class WorkOutcome:
    """What became of a work: its sampled token, if it samples, or why it failed.

    `scored` are log probabilities of prompt tokens, from the work's second token on. `put_off`: the work's last token
    is to be computed again in a later step. `grammar_s`: CPU seconds that the request's grammar took.
    """

    token: int | None = None
    error: Exception | None = None
    logprob: TokenLogprob | None = None
    scored: tuple[TokenLogprob, ...] = ()
    put_off: bool = False
    grammar_s: float = 0.0


class ModelRunner:
    """A model with its tiling, and the KV memories of its layer groups: on the device, and in host memory (`dram`).

    `on_logits` is called with the works that sample and their logits. `clears`: whether `clear` does anything.
    `meanwhile` is called while a GPU computes a step, with what says whether that is done; it returns soon after that.
    """

    clears = True

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
        self.tiling = tiling
        self.threads = Threads(torch.get_num_threads(), torch.get_num_threads())
        self.prefill_tile = PREFILL_TILE
        self.fused_attention = device.type == "cpu" and model.embedding.weight.dtype == torch.float32
        self._grammar = StepAllowance()
        self._plan_cache = AttentionPlanCache(model.config.heads, [memory.group for memory in memories], device)
        self.on_logits: Callable[[Sequence[Work], torch.Tensor], None] | None = None
        self.meanwhile: Callable[[Callable[[], bool]], None] = lambda _done: None

    @property
    def numerics(self) -> str:
        """What decides the bits of KV beside weights and types: blocks of another kind are not found as ours."""
        return ""

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
        """Compute these works; those of one token come first. Raises what the model raises.

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
        tokens: list[int] = []
        positions: list[int] = []
        last = []
        decodes = 0
        for work in works:
            start, count = work.start, work.count
            decodes += count == 1
            tokens += work.tokens
            positions += range(start, start + count)
            last.append(len(tokens) - 1)
        padding = [0] * self.tiling.padding(len(tokens))
        plans = self._plan_cache.of(works, decodes, self.prefill_tile, self.fused_attention)
        rows = torch.from_numpy(np.array([tokens + padding, positions + padding])).to(self.device)
        hidden = self.model(rows[0], rows[1], plans, self.memories)
        # What is not finite makes the sum so as well; then it is worth the while to look where it is.
        sound = [True] * len(works) if math.isfinite(hidden.sum().item()) else self._sound(works, hidden)
        # Of what is not finite nothing can be drawn or told.
        sampling = [work for work, good in zip(works, sound, strict=True) if work.samples and good]
        ends = [end for end, work, good in zip(last, works, sound, strict=True) if work.samples and good]
        sampled = iter(self._sample(sampling, hidden, ends) if sampling else [])
        outcomes = []
        for work, good, end in zip(works, sound, last, strict=True):
            if not good:
                outcomes.append(WorkOutcome(error=NotFinite("the model computed NaN or infinity")))
                continue
            token, logprob = next(sampled) if work.samples else (None, None)
            outcomes.append(WorkOutcome(token, None, logprob, self._score(work, hidden, end - work.count + 1)))
            self._count_grammar(work, outcomes[-1])
        return outcomes

    def grammar_wait_s(self, outcomes: Sequence[WorkOutcome]) -> float:
        """Seconds of the last run, which had these outcomes, in which nothing was computed for want of a grammar."""
        return sum(outcome.grammar_s for outcome in outcomes)

    def _count_grammar(self, work: Work, outcome: WorkOutcome) -> None:
        """Enter what the work's grammar took, and whether it has put its token off."""
        row = work.request.row
        if work.samples and outcome.error is None and row is not None and row.guide is not None:
            outcome.grammar_s = self._grammar.count(row)
            if row.put_off:
                outcome.token, outcome.logprob, outcome.put_off = None, None, True

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
        finite = hidden.isfinite().all(-1).tolist()
        sound, at = [], 0
        for work in works:
            sound.append(all(finite[at : at + work.count]))
            at += work.count
        return sound

    def _sample(
        self, works: Sequence[Work], hidden: torch.Tensor, rows: list[int]
    ) -> list[tuple[int, TokenLogprob | None]]:
        padding = [rows[0]] * self.tiling.padding(len(rows))
        if rows[-1] + 1 + len(padding) < hidden.shape[0] or rows[-1] >= len(rows):
            hidden = hidden.index_select(0, torch.tensor(rows + padding, device=hidden.device))
        return self._draw(works, self._logits(hidden))

    def _draw(self, works: Sequence[Work], logits: torch.Tensor) -> list[tuple[int, TokenLogprob | None]]:
        """Tokens of these works, and their log probabilities, by the first rows of fp32 logits."""
        if self.on_logits is not None:
            self.on_logits(works, logits[: len(works), : self.model.config.vocabulary])
        tokens = sample(logits, [work.request.row for work in works if work.request.row is not None], self._grammar)
        logprobs: list[TokenLogprob | None] = [None] * len(tokens)
        told = {at: n for at, work in enumerate(works) if (n := work.request.sampling.logprobs) is not None}
        if told:
            found = logprobs_of(logits[list(told)], [tokens[at] for at in told], list(told.values()))
            for at, logprob in zip(told, found, strict=True):
                logprobs[at] = logprob
        return list(zip(tokens, logprobs, strict=True))
